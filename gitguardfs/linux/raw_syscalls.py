"""System calls that the doctor's attacks make directly, and that Python has no function for."""

from __future__ import annotations

import ctypes
import os

from gitguardfs.errors import os_error
from gitguardfs.linux.syscalls import (
    AT_EMPTY_PATH,
    AT_FDCWD,
    AT_SYMLINK_FOLLOW,
    CLONE_NEWNS,
    CLONE_NEWUSER,
)

_IN_ALL_EVENTS = 0xFFF

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> int:
    ctypes.set_errno(0)
    result: int = getattr(_libc, name)(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise os_error(number)
    return result


def renameat2(old: str, new: str, flags: int) -> None:
    """Rename with RENAME_* flags (renameat2(2)). Raises OSError."""
    paths = (AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new))
    _call("renameat2", *paths, ctypes.c_uint(flags))


def linkat_empty_path(descriptor: int, new: str) -> None:
    """Link the object behind a descriptor to a name (linkat(2), AT_EMPTY_PATH). OSError."""
    _call("linkat", descriptor, b"", AT_FDCWD, os.fsencode(new), AT_EMPTY_PATH)


def linkat_by_proc(descriptor: int, new: str) -> None:
    """Link as ``linkat_empty_path``, by /proc/self/fd, which needs no privilege. OSError."""
    old = b"/proc/self/fd/%d" % descriptor
    _call("linkat", AT_FDCWD, old, AT_FDCWD, os.fsencode(new), AT_SYMLINK_FOLLOW)


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Mount a file system (mount(2)). Raises OSError."""
    texts = (os.fsencode(source), os.fsencode(target), kind.encode())
    _call("mount", *texts, ctypes.c_ulong(flags), os.fsencode(data))


def umount(target: str, flags: int = 0) -> None:
    """Unmount a file system (umount2(2)). Raises OSError."""
    _call("umount2", os.fsencode(target), flags)


def watch(path: str) -> None:
    """Add an inotify watch on ``path``, and drop it again (inotify(7)). Raises OSError."""
    descriptor = _call("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mask = ctypes.c_uint32(_IN_ALL_EVENTS)
        _call("inotify_add_watch", descriptor, os.fsencode(path), mask)
    finally:
        os.close(descriptor)


def enter_namespace(namespace: int) -> None:
    """Enter the namespace behind a descriptor (setns(2)). Raises OSError."""
    _call("setns", namespace, 0)


def unshare_user_and_mounts() -> None:
    """Enter new user and mount namespaces, without id mappings (unshare(2)). Raises OSError."""
    _call("unshare", CLONE_NEWUSER | CLONE_NEWNS)
