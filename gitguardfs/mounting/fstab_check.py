"""Compares a guard's source and mount point with their lines in fstab.

mount(8) resolves the mount point before it passes it on, and follows symlinks of any user. It also
does not know that a share must be mounted before its guard.
"""

from __future__ import annotations

import os
import shlex

from gitguardfs.base.constants import SUBTYPE
from gitguardfs.base.errors import Exit, UserError
from gitguardfs.linux import mountinfo, safe_open
from gitguardfs.mounting import seal
from gitguardfs.options import fstab_entries
from gitguardfs.options.fstab_entries import FstabEntry

FSTAB = "/etc/fstab"
_BETWEEN = ("sh", "dash", "bash", "mount.fuse3", "mount.fuse")
"""Names of the programs that may stand between mount(8) and this process."""
_OLD_TYPE, _OLD_PREFIX = "fuse", f"{SUBTYPE}#"
"""The old way to write a FUSE file system in fstab: type fuse, source ``gitguardfs#SOURCE``."""


class NotMountedError(UserError):
    """The share to guard is not mounted. A seal put on now would lie below it, without effect."""


def expected_mountpoint(source: str, mountpoint: str) -> str | None:
    """Return the mount point of the guard of ``source`` in fstab, if mount(8) started us.

    The path in fstab is walked by descriptors. Returns None if mount(8) did not start us, or if
    fstab has no guard of ``source``: then root gave the mount point. Raises UserError if fstab has
    another one than ``mountpoint``, or if a user may have put a symlink on the path.
    """
    lines = [each for each in _guards() if _same(each[0], source)] if _by_mount_8() else []
    if not lines:
        return None
    for _, target in lines:
        try:
            fd = safe_open.open_directory(target, True)
        except OSError:
            continue
        try:
            real = safe_open.path_of(fd)
        finally:
            os.close(fd)
        if real == os.path.realpath(mountpoint):
            return real
    targets = " or ".join(target for _, target in lines)
    raise UserError(
        f"fstab has the guard of {source} at {targets}, and {mountpoint} was given",
        "look for a symlink on the path; mountpoint=PATH in that line names the real mount point",
        Exit.MOUNT,
    )


def check_mounted(source: str, real: str, source_fd: int) -> None:
    """Raise NotMountedError if fstab mounts something at ``source`` and nothing is mounted there.

    ``real`` is the path of the directory behind ``source_fd``.
    """
    wanted = [e for e in _entries() if not _is_guard(e) and e.target in (source.rstrip("/"), real)]
    if not wanted:
        return
    there = [m for m in mountinfo.stack_of(source_fd) if m.mount_point == os.fsencode(real)]
    if any(not seal.is_seal(m) and m.fstype != "autofs" for m in there):
        return
    raise NotMountedError(
        f"fstab mounts {wanted[0].source} at {source}, and it is not mounted",
        f"mount {shlex.quote(source)}",
        Exit.MOUNT,
    )


def _entries() -> list[FstabEntry]:
    try:
        with open(FSTAB, "rb") as file:
            return fstab_entries.entries(file.read())
    except FileNotFoundError:
        return []


def _is_guard(entry: FstabEntry) -> bool:
    return entry.is_guard or (entry.fstype == _OLD_TYPE and entry.source.startswith(_OLD_PREFIX))


def _guards() -> list[tuple[str, str]]:
    """Return source and mount point of each guard in fstab."""
    found = filter(_is_guard, _entries())
    return [(entry.source.removeprefix(_OLD_PREFIX), entry.target) for entry in found]


def _same(one: str, other: str) -> bool:
    return one == other or os.path.realpath(one) == os.path.realpath(other)


def _by_mount_8() -> bool:
    """Return whether mount(8) started this process, directly or by mount.fuse3 and a shell."""
    pid = os.getppid()
    while pid > 1:
        with open(f"/proc/{pid}/stat", "rb") as file:
            name, _, rest = file.read().partition(b"(")[2].rpartition(b")")
        if name == b"mount":
            return True
        if os.fsdecode(name) not in _BETWEEN:
            return False
        pid = int(rest.split()[1])
    return False
