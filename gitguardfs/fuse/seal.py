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
        """Cover ``source`` (resolved), or take over the seal of a daemon that died.

        OSError if the kernel refuses.
        """
        self._path = os.fsencode(source)
        taken_over = is_sealed(source)
        if not taken_over:
            syscalls.mount(NAME, self._path, "tmpfs", _FLAGS, "mode=000,size=4k,nr_inodes=1")
        try:
            self._lock = _open(source)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if not taken_over:
                syscalls.umount(self._path, syscalls.MNT_DETACH)
            raise
        self._taken_over = taken_over

    def lift(self) -> None:
        """Take the seal off, at a clean end."""
        os.close(self._lock)
        with suppress(OSError):
            syscalls.umount(self._path, syscalls.MNT_DETACH)

    def give_up(self) -> None:
        """Leave things as they were found, when the mount did not come about."""
        if self._taken_over:
            os.close(self._lock)
        else:
            self.lift()


def _open(source: str) -> int:
    return os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def is_sealed(source: str) -> bool:
    """Whether a seal, of a daemon dead or alive, is on ``source``."""
    top = mounts.top_at(source)
    return top is not None and top.fstype == "tmpfs" and top.source == NAME


def check_free(source: str) -> None:
    """Raise UserError if the daemon that sealed ``source`` is alive."""
    if not is_sealed(source):
        return
    try:
        lock = _open(source)
    except PermissionError:
        raise UserError(f"{source} is sealed", "only root can guard it again", Exit.MOUNT) from None
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


def lift_stale(source: str) -> None:
    """Take off what ``check_free`` has found to be nobody's, where no seal is wanted any more."""
    while is_sealed(source):
        syscalls.umount(os.fsencode(source), syscalls.MNT_DETACH)


def open_below(source: str) -> int:
    """An O_PATH descriptor of ``source``, below a seal if one is there.

    A seal is not taken off for that, not for a moment: whoever opened the raw share in that
    moment would have it for good. It is taken off in a mount namespace that nobody else sees,
    and what lies below is copied from there. Must be called before any thread is started.
    """
    if not is_sealed(source):
        return os.open(source, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    here = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    syscalls.unshare_mounts()
    try:
        lift_stale(source)
        return syscalls.clone_tree(os.fsencode(source))
    finally:
        syscalls.enter_mounts(here)
        os.close(here)


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
