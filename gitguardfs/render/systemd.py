"""Native units for a guarded share: a .mount for the share, gitguardfs@.service for the guard.

The service is a template; its instance is the guard's mount point, escaped, and a drop-in per
instance carries what the guard is to do. Only the service is enabled: it brings the share in, so
that the raw share is never mounted for its own sake.
"""

from __future__ import annotations

import re

from gitguardfs.errors import UserError
from gitguardfs.render import quote
from gitguardfs.render.guarded_share import GuardedShare

TEMPLATE = "gitguardfs@.service"
COMMAND = "/usr/local/bin/gitguardfs"
PACKAGED_COMMAND = "/usr/bin/gitguardfs"
"""Where install.sh puts the program, and where packages do."""
HEADER = "# Written by gitguardfs (gitguard units, vm-mount).\n"
"""The first line of each file, by which ours are known."""

_NAME_LIMIT = 255
"""Of a unit's name (systemd.unit(5)), and of a file's."""

_MODULES = {"9p": ("virtio_pci", "9pnet_virtio"), "virtiofs": ("virtio_pci", "virtiofs")}

_MOUNT = """\
[Unit]
Description=Directory {tag} of the host, raw ({kind})
# Loaded here and now: without them the tag is unknown, and no device unit tells when it is there.
Wants={modules}
After={modules}
# Not a part of local-fs.target, which would send the boot to the emergency shell without it.
DefaultDependencies=no
After=local-fs.target
Conflicts=umount.target
Before=umount.target

[Mount]
What={tag}
Where={where}
Type={kind}
Options={options}
DirectoryMode=0700
"""

_SERVICE = """\
[Unit]
Description=Guarded view %f
Wants=modprobe@fuse.service
After=modprobe@fuse.service
# Nobody is logged in while the raw share is there and its seal is not; if this fails, they are.
Before=systemd-user-sessions.service cron.service crond.service atd.service

[Service]
Type=notify
# By way of the environment: what stands there is not looked through for $ again.
Environment="GITGUARDFS_MOUNTPOINT=%f"
ExecStart={command} --foreground -o ${{GITGUARDFS_OPTIONS}} -- \
${{GITGUARDFS_SOURCE}} ${{GITGUARDFS_MOUNTPOINT}}
# After a crash the mount point stays dead, not open, until the next start has taken it over:
# no ExecStopPost= that unmounts.
Restart=on-failure
# A restart on demand leaves the seal on for the next daemon.
RestartKillSignal=SIGUSR2
RestartSec=1
# 1 is a mistake in the options: the next start would find it again.
RestartPreventExitStatus=1
# SIGTERM is root's word to unmount and to take the seal off: not for a start that takes too long,
# nor because the kernel, short of memory, has killed something here.
TimeoutStartFailureMode=kill
OOMPolicy=continue

# What is here leaves the mount where everybody sees it. PrivateTmp=, ProtectSystem= and whatever
# else makes a mount namespace would hide it from them.
NoNewPrivileges=yes
# SYS_CHROOT: with SYS_ADMIN, what setns(2) to a mount namespace needs. A restart does that to get
# below the seal that a crash left, without lifting it.
# SYS_PTRACE: seeing what processes hold of the share from before the seal.
CapabilityBoundingSet=CAP_SYS_ADMIN CAP_SYS_CHROOT CAP_SYS_PTRACE
CapabilityBoundingSet=CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH
CapabilityBoundingSet=CAP_CHOWN CAP_FOWNER CAP_FSETID CAP_SETUID CAP_SETGID CAP_MKNOD
# Those of mounts, and of users to look into the mounts that these have kept.
RestrictNamespaces=mnt user
RestrictRealtime=yes
RestrictAddressFamilies=AF_UNIX
LockPersonality=yes
MemoryDenyWriteExecute=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service @mount
SystemCallErrorNumber=EPERM
IPAddressDeny=any
DevicePolicy=closed
DeviceAllow=/dev/fuse rw
KeyringMode=private

[Install]
WantedBy=multi-user.target
"""

_DROP_IN = """\
[Unit]
RequiresMountsFor={paths}

[Service]
Environment={source}
Environment={options}
"""

_NO_CPU_IDLE = """\
# For no-cpu-idle: while requests stream, idle processors poll (docs/performance.md).
DeviceAllow=/dev/cpu_dma_latency rw
"""


def mount_name(path: str) -> str:
    """The unit that mounts ``path``; UserError if that makes a name too long."""
    return _checked(f"{quote.systemd_unit_name(path)}.mount", path)


def service_name(map_mount: str) -> str:
    """The instance that guards ``map_mount``; UserError if that makes a name too long."""
    return _checked(f"gitguardfs@{quote.systemd_unit_name(map_mount)}.service", map_mount)


def drop_in_name(map_mount: str) -> str:
    """The drop-in of that instance, below the directory of units."""
    _checked(f"{service_name(map_mount)}.d", map_mount)
    return f"{service_name(map_mount)}.d/share.conf"


def _checked(name: str, path: str) -> str:
    if len(name) > _NAME_LIMIT:
        raise UserError(f"{path} is too long for a unit's name", "use --style fstab")
    return name


def files(spec: GuardedShare, command: str = COMMAND) -> dict[str, str]:
    """Every file, by its name below the directory of units."""
    return {
        mount_name(spec.mount): share_unit(spec),
        TEMPLATE: template(command),
        drop_in_name(spec.map_mount): drop_in(spec),
    }


def share_unit(spec: GuardedShare) -> str:
    """The .mount of the raw share."""
    return HEADER + _MOUNT.format(
        tag=quote.systemd(spec.tag),
        kind=spec.kind,
        where=quote.systemd(spec.mount),
        options=",".join(spec.share_options),
        modules=" ".join(f"modprobe@{module}.service" for module in _MODULES[spec.kind]),
    )


def template(command: str = COMMAND) -> str:
    """The template of the guard; ``command`` is the program's absolute path."""
    plain = re.fullmatch(r"[A-Za-z0-9/._+-]+", command)
    return HEADER + _SERVICE.format(command=command if plain else quote.systemd_argument(command))


def drop_in(spec: GuardedShare) -> str:
    """What one instance guards, and how."""
    parent = spec.map_mount.rpartition("/")[0] or "/"
    text = _DROP_IN.format(
        paths=" ".join(map(quote.systemd_word, (spec.mount, parent))),
        source=quote.systemd_word(f"GITGUARDFS_SOURCE={spec.mount}"),
        options=quote.systemd_word(f"GITGUARDFS_OPTIONS={','.join(spec.guard_options)}"),
    )
    return HEADER + text + (_NO_CPU_IDLE if spec.no_cpu_idle else "")


def is_ours(text: bytes) -> bool:
    """Whether we wrote this file."""
    return text.startswith(HEADER.encode())


def shares(units: dict[str, bytes]) -> dict[str, str]:
    """Mount points and tags of the shares that our files among ``units`` (by name) mount."""
    found = {}
    for name, text in _ours(units).items():
        what = re.search(r"(?m)^What=(.*)$", text)
        where = re.search(r"(?m)^Where=(.*)$", text)
        if name.endswith(".mount") and what and where:
            found[where[1].replace("%%", "%")] = what[1].replace("%%", "%")
    return found


def guards(units: dict[str, bytes]) -> dict[str, str]:
    """Mount points of the guards that our files among ``units`` start, and what they guard."""
    found = {}
    for name, text in _ours(units).items():
        source = re.search(r'(?m)^Environment="GITGUARDFS_SOURCE=((?:[^"\\]|\\.)*)"$', text)
        if name.endswith(".service.d/share.conf") and source:
            found[_instance_path(name)] = re.sub(r"\\(.)", r"\1", source[1]).replace("%%", "%")
    return found


def options(units: dict[str, bytes]) -> dict[str, str]:
    """Mount points of the same guards, and their options as ``-o`` has them."""
    found = {}
    for name, text in _ours(units).items():
        line = re.search(r'(?m)^Environment="GITGUARDFS_OPTIONS=((?:[^"\\]|\\.)*)"$', text)
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
