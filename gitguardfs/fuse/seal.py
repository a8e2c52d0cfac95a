"""The seal: an empty, unreadable mount over the raw share while its guarded view is up.

It is a tmpfs of mode 000, read-only, called gitguardfs-seal. The daemon holds a lock on it, so
that a seal without its daemon, after a crash, can be told from one that is in use. Taking the
seal off is part of a clean end; after a crash it stays, and the raw share stays closed.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from stat import S_IXGRP, S_IXOTH, S_IXUSR

from gitguardfs import mounts
from gitguardfs.core import syscalls
from gitguardfs.errors import Exit, UserError

NAME = "gitguardfs-seal"
_FLAGS = syscalls.MS_RDONLY | syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC


class Seal:
    """A seal that is on; the lock goes with the process."""

    def __init__(self, source: str) -> None:
        """Cover ``source`` (resolved); OSError if the kernel refuses."""
        self._path = os.fsencode(source)
        syscalls.mount(NAME, self._path, "tmpfs", _FLAGS, "mode=000,size=4k,nr_inodes=1")
        try:
            self._lock = _open(source)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            syscalls.umount(self._path, syscalls.MNT_DETACH)
            raise

    def lift(self) -> None:
        """Take the seal off."""
        os.close(self._lock)
        with suppress(OSError):
            syscalls.umount(self._path, syscalls.MNT_DETACH)


def _open(source: str) -> int:
    return os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def lift_stale(source: str) -> bool:
    """Take off seals that a crashed daemon left on ``source``; whether there was one.

    Raises UserError if the daemon that put it there is alive.
    """
    lifted = False
    while (top := mounts.top_at(source)) is not None and top.source == NAME:
        if top.fstype != "tmpfs":
            break
        try:
            lock = _open(source)
        except PermissionError:
            raise UserError(
                f"{source} is sealed", "only root can guard it again", Exit.MOUNT
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno != errno.EWOULDBLOCK:
                raise
            raise UserError(
                f"{source} is guarded already and sealed", "unmount that view first", Exit.MOUNT
            ) from None
        finally:
            os.close(lock)
        syscalls.umount(os.fsencode(source), syscalls.MNT_DETACH)
        lifted = True
    return lifted


def is_share_root(source: str) -> bool:
    """Whether ``source`` is where a 9p or virtiofs share is mounted."""
    top = mounts.top_at(source)
    return top is not None and top.fstype in mounts.SHARE_TYPES


def is_reachable_by_others(source: str, uid: int) -> bool:
    """Whether a user other than ``uid`` and root can get to ``source`` by its path."""
    path = source
    while path != "/":
        path = os.path.dirname(path)
        st = os.stat(path)
        passable = bool(st.st_mode & S_IXOTH)
        passable |= st.st_gid != 0 and uid == 0 and bool(st.st_mode & S_IXGRP)
        passable |= st.st_uid not in (0, uid) and bool(st.st_mode & S_IXUSR)
        if not passable:
            return False
    st = os.stat(source)
    return bool(st.st_mode & 0o007) or st.st_uid not in (0, uid)
