"""The seal: an empty, unreadable mount over the raw share while its guarded view is up.

It is a tmpfs of mode 000, read-only, called gitguardfs-seal. The daemon holds a lock on it, so
that a seal without its daemon, after a crash, can be told from one that is in use. Taking the
seal off is part of a clean end; after a crash it stays, and so it does where a guard does not start
or loses its mount point: the raw share stays closed.
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
from gitguardfs.fuse import directories

NAME = "gitguardfs-seal"
_FLAGS = syscalls.MS_RDONLY | syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC


class Seal:
    """A seal that is on; the lock goes with the process."""

    def __init__(self, source: str, source_fd: int) -> None:
        """Cover ``source``, or take over the seal of a daemon that died.

        ``source_fd`` is of the directory to cover. OSError if the kernel refuses, or if the
        path has come to lead elsewhere.
        """
        if not is_sealed(source):
            target = b"/proc/self/fd/%d" % source_fd
            syscalls.mount(NAME, target, "tmpfs", _FLAGS, "mode=000,size=4k,nr_inodes=1")
        self._lock = _open(source)
        top = mounts.top_at(source)
        if top is None or top.source != NAME or top.number != mounts.number_of(self._lock):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def lift(self) -> None:
        """Take the seal off, at a clean end: this very mount, by its own descriptor."""
        with suppress(OSError):
            syscalls.umount(b"/proc/self/fd/%d" % self._lock, syscalls.MNT_DETACH)
        os.close(self._lock)

    def leave(self) -> None:
        """Leave it on, as a crash does, for the next daemon to take over."""
        os.close(self._lock)


def _open(source: str) -> int:
    return os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def fail_closed(source: str, wanted: bool | None, error: UserError) -> UserError:
    """``error``, which kept ``source`` from being guarded, after it was sealed, if root asks.

    ``wanted`` is what was asked for: a seal, none, or (None) one for the root of a share.
    """
    if os.geteuid() != 0 or wanted is False or not _close(source, bool(wanted)):
        return error
    sealed = f"{source} is sealed until it is guarded; umount {source} opens it"
    return UserError(error.message, f"{error.hint}; {sealed}".removeprefix("; "), error.code)


def _close(source: str, wanted: bool) -> bool:
    """Put a seal on, if one is wanted and there is none; whether there is one that no guard has."""
    try:
        fd = directories.open_directory(source, True)
    except (OSError, UserError):
        return False
    try:
        path = directories.path_of(fd)
        if not is_sealed(path):
            if not (wanted or is_share_root(path)):
                return False
            Seal(path, fd).leave()
        check_free(path)
    except (OSError, UserError):
        return False
    finally:
        os.close(fd)
    return True


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
            f"{source} is guarded already and sealed",
            f"unmount that view; where there is none any more: kill -USR2 {holder(lock)}",
            Exit.MOUNT,
        ) from None
    finally:
        os.close(lock)


def holder(lock: int) -> str:
    """The process that has locked what ``lock`` is open on (proc(5), /proc/locks)."""
    st = os.fstat(lock)
    where = f"{os.major(st.st_dev):02x}:{os.minor(st.st_dev):02x}:{st.st_ino}"
    with open("/proc/locks") as file:
        held = [line.split() for line in file]
    return next((f[4] for f in held if len(f) > 5 and f[1] == "FLOCK" and f[5] == where), "?")


def lift_stale(source: str) -> None:
    """Take off what ``check_free`` has found to be nobody's, where no seal is wanted any more."""
    while is_sealed(source):
        top = mounts.top_at(source)
        if top is None or not mounts.detach(top):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))


def open_below(source: str) -> int:
    """An O_PATH descriptor of what lies below the seal of ``source``.

    A seal is not taken off for that, not for a moment: whoever opened the raw share in that
    moment would have it for good. It is taken off in a mount namespace that nobody else sees,
    and what lies below is copied from there. Must be called before any thread is started.
    """
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
