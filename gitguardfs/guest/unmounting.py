"""Unmounting exactly what was looked at, although users can bend the way to it."""

from __future__ import annotations

import errno
import os
import time

from gitguardfs import mounts
from gitguardfs.core import syscalls
from gitguardfs.errors import Exit, UserError
from gitguardfs.fuse import directories, seal

SETTLE_LIMIT = 15.0
"""Seconds within which a daemon whose view was unmounted has to lift its seal and end."""
END_LIMIT = 5.0
"""Seconds for which such a daemon may still hold the share after that."""
_UMOUNT_NOFOLLOW = 8
_PAUSE = 0.05


def unmount(number: int, *, lazy: bool = False, patience: float = 0) -> None:
    """Unmount the mount of this number, wherever it is by now; nothing if it is gone.

    Unless ``lazy``, one that is used is left: UserError, after ``patience`` seconds, with the
    names of the programs that use it.
    """
    deadline = time.monotonic() + patience
    while True:
        mount = next((m for m in mounts.listed() if m.number == number), None)
        if mount is None:
            return
        path = os.fsdecode(mount.path)
        try:
            return _unmount(mount, path, syscalls.MNT_DETACH if lazy else 0)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise UserError(f"umount {path}: {error.strerror}", code=Exit.MOUNT) from None
            if time.monotonic() > deadline:
                users = ", ".join(_users_of(path))
                hint = f"leave it first: {users}" if users else ""
                raise UserError(f"{path} is busy", hint, Exit.MOUNT) from None
        time.sleep(_PAUSE)


def _unmount(mount: mounts.Mount, path: str, flags: int) -> None:
    # By its parent: a descriptor of the mount itself would make it busy. While the parent is
    # held, nobody can put something else under the name of a mount point.
    parent = directories.open_directory(os.path.dirname(path), True)
    try:
        name = os.path.basename(path)
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            found = mounts.number_of(fd)
        finally:
            os.close(fd)
        if found != mount.number:
            raise UserError(
                f"{path} is covered by another mount, or leads elsewhere now",
                f"see findmnt {path}, and unmount that first",
                Exit.MOUNT,
            )
        here = f"/proc/self/fd/{parent}/{name}"
        syscalls.umount(os.fsencode(here), flags | _UMOUNT_NOFOLLOW)
    finally:
        os.close(parent)


def unmount_guard(number: int, source: str) -> None:
    """Unmount a guard, unless it is busy, and wait until its daemon has lifted its seal."""
    unmount(number)
    deadline = time.monotonic() + SETTLE_LIMIT
    while seal.is_sealed(source):
        if time.monotonic() > deadline:
            raise UserError(f"the seal of {source} is not lifted", f"umount {source}", Exit.SYSTEM)
        time.sleep(_PAUSE)


def close_off(source: str) -> str:
    """Close a raw share that nothing guards any more, by a seal; say what was done.

    The seal outlives this process, as that of a daemon that crashed: the next one takes it over.
    """
    top = mounts.top_at(source)
    if top is None:
        return f"nothing is mounted at {source}"
    if not seal.is_sealed(source):
        try:
            fd = directories.open_directory(source, True)
            try:
                seal.Seal(source, fd).leave()
            finally:
                os.close(fd)
        except OSError:
            unmount(top.number, lazy=True)
            return f"the raw share at {source} was unmounted"
    return f"the raw share at {source} is sealed, and nobody can use it until it is guarded again"


def _users_of(path: str, at_most: int = 5) -> list[str]:
    """Programs that have their working directory or a file at or below ``path``."""
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        links = [f"/proc/{pid}/cwd", f"/proc/{pid}/root"]
        try:
            links += [f"/proc/{pid}/fd/{number}" for number in os.listdir(f"/proc/{pid}/fd")]
            held = [os.readlink(link) for link in links]
            if any(f"{name}/".startswith(f"{path}/") for name in held):
                with open(f"/proc/{pid}/comm") as file:
                    found.append(f"{file.read().strip()} ({pid})")
        except OSError:  # it has ended, or closed the file
            continue
    return found[:at_most]
