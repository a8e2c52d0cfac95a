"""Native units for a guarded share: a .mount for the share, gitguardfs@.service for the guard.

The service is a template. Its instance name is the guard's mount point, escaped; a drop-in for the
instance holds source and options. Only the service is enabled, and it requires the .mount: so the
raw share is never mounted without a guard.
"""

from __future__ import annotations

import re

from gitguardfs.base import installation, quote
from gitguardfs.base.errors import UserError
from gitguardfs.options.guarded_share import MODULES, GuardedShare, share_options

TEMPLATE = "gitguardfs@.service"
CHANGES = "gitguardfs-changes.service"
"""Takes in the host's changes, for all guards; it does nothing without the port for them."""
COMMAND = "/usr/local/bin/gitguardfs"
PACKAGED_COMMAND = "/usr/bin/gitguardfs"
"""Where install.sh (COMMAND) and packages (PACKAGED_COMMAND) put the program."""
HEADER = "# Written by gitguardfs (gitguard units, vm-mount).\n"
"""The first line of each file, which marks it as ours."""

_NAME_LIMIT = 255
"""Characters of a unit's name (systemd.unit(5)), and of a file's."""

_MOUNT = """\
[Unit]
Description=Directory {tag} of the host, raw ({transport})
# Load these first: without them the tag is unknown, and no device unit shows when it appears.
Wants={modules}
After={modules}
# Not in local-fs.target: if the mount failed, that would start the emergency shell.
DefaultDependencies=no
After=local-fs.target
Conflicts=umount.target
Before=umount.target

[Mount]
What={tag}
Where={where}
Type={transport}
Options={options}
DirectoryMode=0700
"""

_DROP_IN = """\
[Unit]
RequiresMountsFor={paths}

[Service]
Environment={source}
Environment={options}
"""


def mount_name(path: str) -> str:
    """Return the name of the unit that mounts ``path``. Raises UserError if it is too long."""
    return _checked(f"{quote.systemd_unit_name(path)}.mount", path)


def service_name(map_mount: str) -> str:
    """Return the name of the instance that guards ``map_mount``. Raises UserError if too long."""
    return _checked(f"gitguardfs@{quote.systemd_unit_name(map_mount)}.service", map_mount)


def drop_in_name(map_mount: str) -> str:
    """Return the path of that instance's drop-in, relative to the directory of units. UserError."""
    _checked(f"{service_name(map_mount)}.d", map_mount)
    return f"{service_name(map_mount)}.d/share.conf"


def _checked(name: str, path: str) -> str:
    if len(name) > _NAME_LIMIT:
        raise UserError(f"{path} is too long for a unit's name", "use --style fstab")
    return name


def files(spec: GuardedShare, command: str = COMMAND) -> dict[str, str]:
    """Return the text of every file, by its path relative to the directory of units."""
    return {
        mount_name(spec.mount): share_unit(spec),
        TEMPLATE: template(command),
        drop_in_name(spec.map_mount): drop_in(spec),
        CHANGES: changes_unit(command),
    }


def share_unit(spec: GuardedShare) -> str:
    """Return the .mount unit of the raw share."""
    return raw_unit(spec.tag, spec.transport, spec.mount)


def raw_unit(tag: str, transport: str, mount: str) -> str:
    """Return the .mount unit of a raw share, which a guard's service has to require."""
    return HEADER + _MOUNT.format(
        tag=quote.systemd(tag),
        transport=transport,
        where=quote.systemd(mount),
        options=",".join(share_options(transport)),
        modules=" ".join(f"modprobe@{module}.service" for module in MODULES[transport]),
    )


def template(command: str = COMMAND) -> str:
    """Return the guard's template unit; ``command`` is the absolute path of gitguardfs."""
    return _with_program(TEMPLATE, COMMAND, command)


def changes_unit(command: str = COMMAND) -> str:
    """Return the unit that takes in the host's changes; ``gitguard`` lies beside ``command``."""
    ours, theirs = (f"{path.rpartition('/')[0]}/gitguard" for path in (COMMAND, command))
    return _with_program(CHANGES, ours, theirs)


def _with_program(unit: str, ours: str, program: str) -> str:
    plain = re.fullmatch(r"[A-Za-z0-9/._+-]+", program)
    word = program if plain else quote.systemd_argument(program)
    text = installation.text(f"guest/files/{unit}")
    return text.replace(f"ExecStart={ours} ", f"ExecStart={word} ")


def drop_in(spec: GuardedShare) -> str:
    """Return the drop-in of one instance: its source and options."""
    parent = spec.map_mount.rpartition("/")[0] or "/"
    text = _DROP_IN.format(
        paths=" ".join(map(quote.systemd_word, (spec.mount, parent, *spec.repository))),
        source=quote.systemd_word(f"GITGUARDFS_SOURCE={spec.mount}"),
        options=quote.systemd_word(f"GITGUARDFS_OPTIONS={','.join(spec.guard_options)}"),
    )
    return HEADER + text


def is_ours(text: bytes) -> bool:
    """Return whether gitguardfs wrote this file."""
    return text.startswith(HEADER.encode())


def shares(units: dict[str, bytes]) -> dict[str, str]:
    """Return the tag by mount point of each share that our files among ``units`` mount."""
    found = {}
    for name, text in _ours(units).items():
        what = re.search(r"(?m)^What=(.*)$", text)
        where = re.search(r"(?m)^Where=(.*)$", text)
        if name.endswith(".mount") and what and where:
            found[where[1].replace("%%", "%")] = what[1].replace("%%", "%")
    return found


def guards(units: dict[str, bytes]) -> dict[str, str]:
    """Return the source by mount point of each guard that our files among ``units`` start."""
    return _variable(units, "GITGUARDFS_SOURCE")


def options(units: dict[str, bytes]) -> dict[str, str]:
    """Return the options (as for ``-o``) by mount point of the same guards."""
    return _variable(units, "GITGUARDFS_OPTIONS")


def _variable(units: dict[str, bytes], variable: str) -> dict[str, str]:
    """Return the value of an environment variable by mount point of the same guards."""
    found = {}
    for name, text in _ours(units).items():
        line = re.search(rf'(?m)^Environment="{variable}=((?:[^"\\]|\\.)*)"$', text)
        if name.endswith(".service.d/share.conf") and line:
            found[_instance_path(name)] = re.sub(r"\\(.)", r"\1", line[1]).replace("%%", "%")
    return found


def _ours(units: dict[str, bytes]) -> dict[str, str]:
    return {name: text.decode() for name, text in units.items() if is_ours(text)}


def _instance_path(name: str) -> str:
    escaped = name.partition("@")[2].rpartition(".service.d")[0]
    raw = re.sub(
        rb"\\x([0-9a-f]{2})|-",
        lambda m: bytes([int(m[1], 16)]) if m[1] else b"/",
        escaped.encode(),
    )
    return f"/{raw.decode(errors='surrogateescape')}"
