"""Writes the two lines of fstab(5) for a guarded share into a file that has other lines as well.

Lines of ours have the option MARK. All other lines stay as they are, byte for byte.
"""

from __future__ import annotations

import os
import re
import shlex

from gitguardfs.base import quote
from gitguardfs.base.constants import FSTYPE
from gitguardfs.base.errors import UserError
from gitguardfs.options.fstab_entries import MARK, FstabEntry, entries, format_line
from gitguardfs.options.guarded_share import GuardedShare
from gitguardfs.options.parsing import quote_o

_AT_BOOT = ("_netdev", "nofail", MARK)
"""Mount after the network and the devices have started; if that fails, the boot goes on."""
_BEFORE_USERS = "x-systemd.before=remote-fs.target"
"""The order that nofail drops. User sessions, cron and at start after that target, and so find the
raw share sealed."""

_GENERIC = {
    "defaults", "ro", "rw", "auto", "noauto", "nofail", "user", "nouser", "users", "nousers",
    "owner", "noowner", "group", "nogroup", "exec", "noexec", "suid", "nosuid", "dev", "nodev",
    "sync", "async", "dirsync", "atime", "noatime", "diratime", "nodiratime", "relatime",
    "norelatime", "strictatime", "nostrictatime", "lazytime", "nolazytime", "mand", "nomand",
    "iversion", "noiversion", "symfollow", "nosymfollow", "silent", "loud", "remount", "move",
    "bind", "rbind", "private", "rprivate", "shared", "rshared", "slave", "rslave", "unbindable",
    "runbindable", "loop", "offset", "sizelimit", "encryption", "uhelper", "helper", "comment",
    "context", "fscontext", "defcontext", "rootcontext", "seclabel", "setuid", "drop_privileges",
}  # fmt: skip
"""Options that mount(8), libmount, mount.fuse3 or systemd's generator take for themselves."""
_PREFIXES = ("x-", "X-", "_netdev", "verity.")


def share_line(spec: GuardedShare) -> str:
    """Return the line that mounts the raw share."""
    modules = (f"x-systemd.requires={unit}" for unit in spec.module_units)
    options = (*spec.share_options, *modules, *_AT_BOOT)
    return format_line(spec.tag, spec.mount, spec.transport, options)


def guard_line(spec: GuardedShare) -> str:
    """Return the line that mounts the guard after the share. Raises UserError."""
    _check_values(spec)
    the_map, *further = spec.guard_options
    # mount(8) resolves symlinks of any user in the target before the guard sees the path.
    place = f"mountpoint={quote_o(spec.map_mount)}"
    # The automatic dependency on an absolute source is lost with _netdev.
    needs = (spec.mount, *spec.repository)
    requires = (f"x-systemd.requires={_requirement(path)}" for path in needs)
    options = (the_map, *requires, *_AT_BOOT, _BEFORE_USERS, place, *further)
    return format_line(spec.mount, spec.map_mount, FSTYPE, options)


def _check_values(spec: GuardedShare) -> None:
    r"""Raise UserError for a value that a reader of the guard's line would change.

    libmount and systemd disagree on ``\``, and on where a ``"`` ends a quotation. libmount and
    mount.fuse3 split at each comma, even a quoted one, and take the options that they know.
    """
    if "\\" in spec.mount:
        raise _not_for_fstab("a backslash", spec.mount)
    for value in (spec.map_mount, spec.map, *spec.options):
        if "\\" in value:
            raise _not_for_fstab("a backslash", value)
        if '"' in value:
            raise _not_for_fstab('a "', value)
        for piece in value.split(",")[1:]:
            if not piece or piece.partition("=")[0] in _GENERIC or piece.startswith(_PREFIXES):
                raise _not_for_fstab(f"{',' + piece!r}", value)


def _not_for_fstab(what: str, value: str) -> UserError:
    return UserError(f"fstab cannot carry {what} in {value!r}", "use --style systemd")


def _requirement(path: str) -> str:
    # A unit's name is used if the path has a character with a meaning in a list of options.
    plain = re.fullmatch(r"[A-Za-z0-9/._+@-]+", path)
    return path if plain else f"{quote.systemd_unit_name(path)}.mount"


def render(spec: GuardedShare) -> str:
    """Return both lines, the share's first."""
    return f"{share_line(spec)}\n{guard_line(spec)}\n"


def install(text: bytes, spec: GuardedShare) -> bytes:
    """Return ``text`` with both lines for ``spec`` at the end, in place of our lines that differ.

    If a line that is not ours mounts the same share there, it stays and ours is left out. Raises
    UserError if a line that is not ours is in the way.
    """
    wanted = [] if is_adopted(text, spec) else [share_line(spec)]
    new = [os.fsencode(line) for line in (*wanted, guard_line(spec))]
    replaced = _our_lines(text, spec.mount, (spec.map_mount,), spec.tag)
    lines = text.split(b"\n")
    if [lines[number - 1] for number in replaced] == new:
        return text
    kept = _without(text, replaced)
    end = b"" if not kept or kept.endswith(b"\n") else b"\n"
    return kept + end + b"".join(line + b"\n" for line in new)


def remove(text: bytes, mount: str, map_mounts: tuple[str, ...]) -> bytes:
    """Return ``text`` without our lines for the share at ``mount`` and its guards."""
    return _without(text, _our_lines(text, mount, map_mounts))


def _our_lines(
    text: bytes, mount: str, map_mounts: tuple[str, ...], tag: str | None = None
) -> list[int]:
    """Return the numbers of our lines for a share, for its guards and for ``map_mounts``.

    Includes the lines of shares that lose their last guard with these. Without a guard these shares
    would be mounted open.
    """
    shares, guards, left = [], [], []
    for entry in entries(text):
        if entry.is_ours and entry.is_share and (entry.target == mount or entry.source == tag):
            shares.append(entry)
        elif (
            entry.is_ours
            and entry.is_guard
            and (entry.source == mount or entry.target in map_mounts)
        ):
            guards.append(entry)
        else:
            left.append(entry)
    unguarded = {e.source for e in guards} - {e.source for e in left if e.is_guard}
    orphans = [e for e in left if e.is_ours and e.is_share and e.target in unguarded]
    return sorted(entry.number for entry in (*shares, *guards, *orphans))


def is_adopted(text: bytes, spec: GuardedShare) -> bool:
    """Return whether a line that is not ours mounts the share there.

    Raises UserError if such a line is in the way.
    """
    found = [_adopts(entry, spec) for entry in entries(text) if not entry.is_ours]
    return any(found)


def _adopts(entry: FstabEntry, spec: GuardedShare) -> bool:
    """Return whether a line that is not ours mounts the share there.

    Raises UserError if the line is in the way.
    """
    if entry.target == spec.mount and entry.is_share and entry.source == spec.tag:
        return True
    if entry.target in (spec.mount, spec.map_mount):
        raise UserError(
            f"line {entry.number} of fstab already mounts {entry.source} at {entry.target}",
            "delete that line, or choose another mount point",
        )
    if entry.is_share and entry.source == spec.tag and "noauto" not in entry.options:
        raise UserError(
            f"line {entry.number} of fstab already mounts {spec.tag} at {entry.target}",
            f"delete that line, or use --mount {shlex.quote(entry.target)}",
        )
    return False


def _without(text: bytes, numbers: list[int]) -> bytes:
    lines = re.findall(rb"[^\n]*\n|[^\n]+\Z", text)
    return b"".join(line for number, line in enumerate(lines, 1) if number not in numbers)
