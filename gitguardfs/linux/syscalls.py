"""System calls that Python's os module lacks. All functions raise OSError."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import time
from contextlib import suppress

from gitguardfs.base.errors import os_error
from gitguardfs.base.protocol import NOW

AT_FDCWD = -100
AT_SYMLINK_FOLLOW = 0x400
AT_EMPTY_PATH = 0x1000
AT_STATX_FORCE_SYNC, AT_STATX_DONT_SYNC = 0x2000, 0x4000
AT_SYMLINK_NOFOLLOW = 0x100
STATX_BASIC_STATS = 0x7FF
STATX_BTIME = 0x800
STATX_MNT_ID = 0x1000
FALLOC_FL_KEEP_SIZE = 1
UTIME_NOW = (1 << 30) - 1
UTIME_OMIT = (1 << 30) - 2

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_NOATIME = 1, 2, 4, 8, 32, 1024
MS_SYNCHRONOUS, MS_DIRSYNC = 16, 128
MS_BIND, MS_REC, MS_PRIVATE = 1 << 12, 1 << 14, 1 << 18
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC, AT_RECURSIVE = 1, os.O_CLOEXEC, 0x8000
MOVE_MOUNT_F_EMPTY_PATH, MOVE_MOUNT_T_EMPTY_PATH, MOVE_MOUNT_BENEATH = 4, 0x40, 0x200
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOEXEC = 1, 2, 4, 8
_FSCONFIG_SET_FLAG, _FSCONFIG_SET_STRING, _FSCONFIG_CMD_CREATE = 0, 1, 6
# The same on every architecture; the C library of Debian 12 has no functions for them.
_SYS_OPEN_TREE, _SYS_MOVE_MOUNT, _SYS_FSOPEN, _SYS_FSCONFIG, _SYS_FSMOUNT = range(428, 433)
_SYS_OPENAT2 = 437
RESOLVE_NO_XDEV, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH = 1, 2, 4, 8
_IN_ALL_EVENTS = 0xFFF
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
MNT_FORCE, MNT_DETACH, MNT_EXPIRE, UMOUNT_NOFOLLOW = 1, 2, 4, 8

_libc = ctypes.CDLL(None, use_errno=True)


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise os_error(number)
    return result


def renameat2(old_dir: int, old: bytes, new_dir: int, new: bytes, flags: int) -> None:
    """Rename with RENAME_* flags, relative to directory descriptors (renameat2(2))."""
    _check(_libc.renameat2(old_dir, old, new_dir, new, ctypes.c_uint(flags)))


def rename_path(old: str, new: str, flags: int) -> None:
    """Rename with RENAME_* flags, by paths (renameat2(2))."""
    renameat2(AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new), flags)


def linkat_empty_path(fd: int, new: str) -> None:
    """Link the object behind a descriptor to a name (linkat(2), AT_EMPTY_PATH)."""
    _check(_libc.linkat(fd, b"", AT_FDCWD, os.fsencode(new), AT_EMPTY_PATH))


def linkat_by_proc(fd: int, new: str) -> None:
    """Link as ``linkat_empty_path``, by /proc/self/fd, which needs no privilege."""
    old = b"/proc/self/fd/%d" % fd
    _check(_libc.linkat(AT_FDCWD, old, AT_FDCWD, os.fsencode(new), AT_SYMLINK_FOLLOW))


def fallocate(fd: int, mode: int, offset: int, length: int) -> None:
    """Allocate, free or zero a range of a file, by FALLOC_FL_* (fallocate(2))."""
    arguments = ctypes.c_int64(offset), ctypes.c_int64(length)
    while True:
        with suppress(InterruptedError):
            _check(_libc.fallocate64(fd, mode, *arguments))
            return


def watch(path: str) -> None:
    """Add an inotify watch on ``path``, and drop it again (inotify(7))."""
    fd = _check(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    try:
        mask = ctypes.c_uint32(_IN_ALL_EVENTS)
        _check(_libc.inotify_add_watch(fd, os.fsencode(path), mask))
    finally:
        os.close(fd)


def utimens(path: bytes, atime: int | None, mtime: int | None) -> None:
    """Set times in nanoseconds, following symlinks; None keeps one, NOW is the current time."""
    times = (_Timespec * 2)(_timespec(atime), _timespec(mtime))
    _check(_libc.utimensat(AT_FDCWD, path, times, 0))


def _timespec(nanoseconds: int | None) -> _Timespec:
    if nanoseconds is None:
        return _Timespec(0, UTIME_OMIT)
    if nanoseconds == NOW:
        return _Timespec(0, UTIME_NOW)
    return _Timespec(*divmod(nanoseconds, 10**9))


class _OpenHow(ctypes.Structure):
    # struct open_how of <linux/openat2.h>
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


def open_parent(fd: int) -> int:
    """Return an O_PATH descriptor of the directory above ``fd``. OSError(EXDEV) across a mount.

    That is so if ``fd`` is a mount's root, and if the directory above is covered by a mount.
    """
    how = _OpenHow(os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, 0, RESOLVE_NO_XDEV)
    size = ctypes.c_size_t(ctypes.sizeof(how))
    return _syscall(_SYS_OPENAT2, fd, b"..", ctypes.byref(how), size)


def open_beneath(fd: int, path: bytes, flags: int, *, crosses_mounts: bool = True) -> int:
    """Return a descriptor of ``path``, which never leaves the directory ``fd``.

    ``..`` may stand in the path. OSError(EXDEV) where it leads out, or unless ``crosses_mounts`` to
    what is mounted there; OSError(ELOOP) at any symlink, OSError(EAGAIN) if a directory was moved
    meanwhile.
    """
    resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS
    if not crosses_mounts:
        resolve |= RESOLVE_NO_XDEV
    how = _OpenHow(flags | os.O_CLOEXEC, 0, resolve)
    size = ctypes.c_size_t(ctypes.sizeof(how))
    return _syscall(_SYS_OPENAT2, fd, path, ctypes.byref(how), size)


def _syscall(number: int, *arguments: object) -> int:
    return _check(_libc.syscall(ctypes.c_long(number), *arguments))


class _Statx(ctypes.Structure):
    # struct statx of <linux/stat.h>, up to stx_mnt_id.
    _fields_ = (
        ("stx_mask", ctypes.c_uint32),
        ("_before", ctypes.c_uint8 * 76),
        ("btime_sec", ctypes.c_int64),
        ("btime_nsec", ctypes.c_uint32),
        ("_between", ctypes.c_uint8 * 44),
        ("dev_major", ctypes.c_uint32),
        ("dev_minor", ctypes.c_uint32),
        ("mnt_id", ctypes.c_uint64),
        ("_rest", ctypes.c_uint8 * 104),
    )


_STATX = _Statx()
_STATX_ADDRESS = ctypes.byref(_STATX)
"""One buffer for ``birth_ns`` and ``mount_id``: to make one takes longer than the system call."""


def birth_ns(fd: int) -> int:
    """Return when the object behind ``fd`` was made, in nanoseconds (statx(2), stx_btime).

    Returns 0 if the kernel or the file system does not know it. Used on one thread only. Raises
    OSError.
    """
    result = _STATX
    if _libc.statx(fd, b"", AT_EMPTY_PATH, STATX_BTIME, _STATX_ADDRESS) < 0:
        if ctypes.get_errno() == errno.ENOSYS:
            return 0
        raise os_error(ctypes.get_errno())
    if not result.stx_mask & STATX_BTIME:
        return 0
    return int(result.btime_sec) * 10**9 + int(result.btime_nsec)


def refresh(dir_fd: int, name: bytes) -> None:
    """Have a file system ask its server for an entry's attributes (statx(2))."""
    flags = AT_SYMLINK_NOFOLLOW | AT_STATX_FORCE_SYNC
    _check(_libc.statx(dir_fd, name, flags, STATX_BASIC_STATS, _STATX_ADDRESS))


def mount_id(fd: int) -> int:
    """Return the id of the mount through which ``fd`` was opened, without asking a server.

    Returns 0 if the kernel cannot tell (before Linux 5.8). Used on one thread only. Raises OSError.
    """
    flags = AT_EMPTY_PATH | AT_STATX_DONT_SYNC
    if _libc.statx(fd, b"", flags, STATX_MNT_ID, _STATX_ADDRESS) < 0:
        raise os_error(ctypes.get_errno())
    return int(_STATX.mnt_id) if _STATX.stx_mask & STATX_MNT_ID else 0


def device_of(fd: int) -> int:
    """Return the st_dev of the object behind ``fd``, without a request to a FUSE server."""
    result = _Statx()
    _check(_libc.statx(fd, b"", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, 0, ctypes.byref(result)))
    return os.makedev(result.dev_major, result.dev_minor)


def mount(
    source: str, target: str | bytes, fstype: str = "", flags: int = 0, data: str = ""
) -> None:
    """Mount a file system (mount(2))."""
    texts = (os.fsencode(source), os.fsencode(target), fstype.encode())
    _check(_libc.mount(*texts, ctypes.c_ulong(flags), os.fsencode(data) or None))


def umount(target: str | bytes, flags: int = 0) -> None:
    """Unmount a file system (umount2(2))."""
    _check(_libc.umount2(os.fsencode(target), flags))


class Capabilities(ctypes.Structure):
    """The capabilities of a thread: a header, and three words twice.

    These are struct __user_cap_header_struct and __user_cap_data_struct of <linux/capability.h>.
    ``words`` are the lower and upper halves of effective, permitted and inheritable ones.
    """

    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int), ("words", ctypes.c_uint32 * 6))

    def drop(self, number: int) -> None:
        """Take a capability out of the effective ones."""
        self.words[3 * (number // 32)] &= ~(1 << number % 32)

    def keep(self, *numbers: int) -> None:
        """Leave these capabilities below 32 alone, effective and permitted."""
        word = sum(1 << number for number in numbers)
        self.words[:] = [word, word, 0, 0, 0, 0]


_CAPABILITIES_3, _CAPABILITIES_HEADER = 0x20080522, 8


def capget() -> Capabilities:
    """Return the calling thread's capabilities (capget(2))."""
    found = Capabilities(_CAPABILITIES_3)
    _check(_libc.capget(ctypes.byref(found), ctypes.byref(found, _CAPABILITIES_HEADER)))
    return found


def capset(given: Capabilities) -> None:
    """Set the calling thread's capabilities (capset(2))."""
    _check(_libc.capset(ctypes.byref(given), ctypes.byref(given, _CAPABILITIES_HEADER)))


def setfsuid(uid: int) -> None:
    """Set the user by whom the kernel takes the calling thread for file systems (setfsuid(2))."""
    _libc.setfsuid(uid)


def forbid_more_rights() -> None:
    """Keep this process, and those it starts, from getting rights by execve(2) (prctl(2))."""
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0))))


def end_with_parent() -> None:
    """Have this process killed when the thread that started it ends (prctl(2))."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, *map(ctypes.c_ulong, (signal.SIGKILL, 0, 0, 0))))


def make_root_here() -> None:
    """Make the working directory, a mount's root, the root; unmount all else (pivot_root(2)).

    For a process in a mount namespace of its own. It is to change to "/" then.
    """
    _check(_libc.pivot_root(b".", b"."))
    umount(".", MNT_DETACH)


def ticks(seconds: float) -> int:
    """Return a descriptor that can be read each time these seconds have passed (timerfd(2))."""
    fd = _check(_libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_CLOEXEC | os.O_NONBLOCK))
    every = _Timespec(int(seconds), int(seconds % 1 * 10**9))
    try:
        _check(_libc.timerfd_settime(fd, 0, ctypes.byref((_Timespec * 2)(every, every)), None))
    except BaseException:
        os.close(fd)
        raise
    return fd


def unshare_mounts() -> None:
    """Enter a new mount namespace, with all mounts private (unshare(2))."""
    _check(_libc.unshare(CLONE_NEWNS))
    mount("none", b"/", "none", MS_REC | MS_PRIVATE)


def unshare_user_and_mounts() -> None:
    """Enter new user and mount namespaces, without id mappings (unshare(2))."""
    _check(_libc.unshare(CLONE_NEWUSER | CLONE_NEWNS))


def enter_mounts(namespace: int) -> None:
    """Enter the mount namespace behind a descriptor (setns(2))."""
    _check(_libc.setns(namespace, CLONE_NEWNS))


def clone_tree(path: bytes, *, recursive: bool = True) -> int:
    """Return a descriptor of a private copy of the mounts at and below ``path`` (open_tree(2)).

    Unless ``recursive``, only the mount at ``path`` is copied.
    """
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | (AT_RECURSIVE if recursive else 0)
    return _syscall(_SYS_OPEN_TREE, AT_FDCWD, path, ctypes.c_uint(flags))


def new_mount(fstype: str, source: str, attributes: int, options: dict[str, str]) -> int:
    """Return a descriptor of a new file system that is mounted nowhere yet (fsmount(2)).

    ``attributes`` are MOUNT_ATTR_*. An option without a value is a flag.
    """
    context = _syscall(_SYS_FSOPEN, fstype.encode(), 1)  # FSOPEN_CLOEXEC
    try:
        for key, value in {"source": source, **options}.items():
            command = _FSCONFIG_SET_STRING if value else _FSCONFIG_SET_FLAG
            _configure(context, command, key.encode(), value.encode() or None)
        _configure(context, _FSCONFIG_CMD_CREATE, None, None)
        return _syscall(_SYS_FSMOUNT, context, 1, attributes)  # FSMOUNT_CLOEXEC
    finally:
        os.close(context)


def _configure(context: int, command: int, key: bytes | None, value: bytes | None) -> None:
    _syscall(_SYS_FSCONFIG, context, command, key, value, 0)


def attach_tree(tree: int, target: int, beneath: bool = False) -> None:
    """Mount the result of ``clone_tree`` or ``new_mount`` on a directory (move_mount(2)).

    It is attached in one step, on top of all mounts there, or ``beneath`` the uppermost one.
    ``target`` is then the root of that one (Linux 6.5; EINVAL before).
    """
    flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH | beneath * MOVE_MOUNT_BENEATH
    _syscall(_SYS_MOVE_MOUNT, tree, b"", target, b"", ctypes.c_uint(flags))
