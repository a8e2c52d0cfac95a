"""Helpers of the checks: users, outcomes of system calls, time stamps, raw calls."""

import ctypes
import errno
import os
import socket
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from tests.support.people import CLONE_NEWUSER, as_user


class User(NamedTuple):
    uid: int
    gid: int
    groups: tuple[int, ...] = ()


ROOT = User(0, 0)
NOBODY = User(65534, 65534)
OTHER = User(65533, 65533)
ALICE = User(1000, 1000)
BOB = User(1001, 1001)

AT_FDCWD = -100
AT_SYMLINK_NOFOLLOW = 0x100
AT_SYMLINK_FOLLOW = 0x400
RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
UTIME_NOW = (1 << 30) - 1
UTIME_OMIT = (1 << 30) - 2
CLOCK_REALTIME_COARSE = 5
PR_SET_DUMPABLE = 4

libc = ctypes.CDLL(None, use_errno=True)


# ---------------------------------------------------------------- comparing


def equal(label: str, got: object, want: object) -> None:
    """Assert ``got == want`` and say which of many comparisons it was."""
    assert got == want, f"{label}: got {got!r}, expected {want!r}"


def outcome(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """``ok``, or the name of the errno that the call fails with. Closes a descriptor it returns."""
    try:
        result = function(*args, **kwargs)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    if function is os.open:
        os.close(result)
    return "ok"


class Call(NamedTuple):
    """One row of a table: the outcome that ``function(*args)`` should have."""

    want: str
    function: Callable[..., Any]
    args: tuple[Any, ...]

    def __str__(self) -> str:
        name = getattr(self.function, "__name__", str(self.function))
        return f"{name}{tuple(_short(a) for a in self.args)}"


def _short(value: object) -> object:
    if isinstance(value, str | bytes) and len(value) > 60:
        return f"{value[:24]!r}...{value[-24:]!r}"
    return value


def call(want: str, function: Callable[..., Any], *args: Any) -> Call:
    return Call(want, function, args)


def calls(*rows: Call, by: User = ROOT, umask: int = 0o022, label: str = "") -> None:
    """Make the calls one after the other as one user and compare their outcomes."""

    def make_all() -> list[str]:
        return [outcome(row.function, *row.args) for row in rows]

    for row, got in zip(rows, run(by, make_all, umask=umask), strict=True):
        equal(f"{label} {row} by {by.uid}".strip(), got, row.want)


def run(user: User, function: Callable[..., Any], *args: Any, umask: int = 0o022) -> Any:
    """Call ``function`` as ``user`` and return what it returns; OSError comes through."""
    return as_user(function, *args, uid=user.uid, gid=user.gid, groups=user.groups, umask=umask)


# ---------------------------------------------------------------- objects


def file(path: str, mode: int = 0o644, owner: User = ROOT, data: bytes = b"") -> str:
    """Make a regular file with exactly this owner and mode."""
    with open(path, "wb") as stream:
        stream.write(data)
    return _settle(path, mode, owner)


def folder(path: str, mode: int = 0o755, owner: User = ROOT) -> str:
    os.mkdir(path)
    return _settle(path, mode, owner)


def _settle(path: str, mode: int, owner: User) -> str:
    os.chown(path, owner.uid, owner.gid)
    os.chmod(path, mode)
    return path


def bind(path: str) -> None:
    """Leave a socket at ``path``, however long the path is."""
    with descriptor(os.path.dirname(path), os.O_PATH) as parent:
        with socket.socket(socket.AF_UNIX) as endpoint:
            endpoint.bind(f"/proc/self/fd/{parent}/{os.path.basename(path)}")


def make_block(path: str) -> None:
    os.mknod(path, stat.S_IFBLK | 0o644, os.makedev(7, 200))


def make_char(path: str) -> None:
    os.mknod(path, stat.S_IFCHR | 0o644, os.makedev(1, 3))


def make_symlink(path: str) -> None:
    os.symlink("nowhere", path)


MAKERS: Mapping[str, Callable[[str], Any]] = {
    "regular": file,
    "dir": os.mkdir,
    "fifo": os.mkfifo,
    "block": make_block,
    "char": make_char,
    "socket": bind,
    "symlink": make_symlink,
}
"""Every type of object that a directory can hold."""

NON_DIRECTORIES = tuple(kind for kind in MAKERS if kind != "dir")


def make(kind: str, path: str, owner: User = ROOT, mode: int | None = None) -> str:
    MAKERS[kind](path)
    os.lchown(path, owner.uid, owner.gid)
    if mode is not None and kind != "symlink":
        os.chmod(path, mode)
    return path


def remove(path: str) -> None:
    if stat.S_ISDIR(os.lstat(path).st_mode):
        os.rmdir(path)
    else:
        os.unlink(path)


def mode_of(path: str | int) -> int:
    found = os.fstat(path) if isinstance(path, int) else os.lstat(path)
    return stat.S_IMODE(found.st_mode)


def owner_of(path: str | int) -> tuple[int, int]:
    found = os.fstat(path) if isinstance(path, int) else os.lstat(path)
    return found.st_uid, found.st_gid


def content(path: str) -> bytes:
    with open(path, "rb") as stream:
        return stream.read()


@contextmanager
def descriptor(path: str | bytes, flags: int = os.O_RDONLY, mode: int = 0o644) -> Iterator[int]:
    fd = os.open(path, flags, mode)
    try:
        yield fd
    finally:
        os.close(fd)


# ---------------------------------------------------------------- time


def tick() -> None:
    """Wait until the clock that stamps files has moved on."""
    start = time.clock_gettime_ns(CLOCK_REALTIME_COARSE)
    while time.clock_gettime_ns(CLOCK_REALTIME_COARSE) - start < 1_000_000:
        time.sleep(0.001)


def stamps(label: str, action: Callable[[], Any], wanted: Mapping[str, str]) -> None:
    """Assert which of mtime (m) and ctime (c) of each path moves when ``action`` is done.

    Each path has to exist before and after the action.
    """
    before = {path: os.lstat(path) for path in wanted}
    tick()
    action()
    for path, letters in wanted.items():
        after = os.lstat(path)
        moved = "m" if after.st_mtime_ns > before[path].st_mtime_ns else ""
        moved += "c" if after.st_ctime_ns > before[path].st_ctime_ns else ""
        equal(f"{label}: stamps of {os.path.basename(path)}", moved, letters)


def rejected(action: Callable[[], Any], want: str) -> Callable[[], None]:
    """An action for ``stamps`` that has to fail."""

    def attempt() -> None:
        equal("outcome", outcome(action), want)

    return attempt


# ---------------------------------------------------------------- raw system calls


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def renameat2(old: str, new: str, flags: int) -> None:
    old_bytes, new_bytes = os.fsencode(old), os.fsencode(new)
    _checked(libc.renameat2(AT_FDCWD, old_bytes, AT_FDCWD, new_bytes, ctypes.c_uint(flags)))


def become_fake_root(uid: int, gid: int) -> None:
    """Enter a new user namespace in which ``uid`` and ``gid`` are 0."""
    _checked(libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0))  # else /proc/self belongs to the real root
    _checked(libc.unshare(CLONE_NEWUSER))
    maps = (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1"))
    for name, text in maps:
        with open(f"/proc/self/{name}", "w") as stream:
            stream.write(text)


def link_followed(old: str, new: str) -> None:
    """linkat with AT_SYMLINK_FOLLOW (os.link leaves the flag out when asked to follow)."""
    _checked(libc.linkat(AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new), AT_SYMLINK_FOLLOW))


def fallocate(fd: int, mode: int, offset: int, length: int) -> None:
    """fallocate(2) itself: os.posix_fallocate writes where the file system cannot."""
    _checked(libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length)))


class Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


Moment = tuple[int, int]
NOW: Moment = (0, UTIME_NOW)
OMIT: Moment = (0, UTIME_OMIT)


def utimensat(path: str, access: Moment, modification: Moment, follow: bool = True) -> None:
    pair = (Timespec * 2)(Timespec(*access), Timespec(*modification))
    flags = 0 if follow else AT_SYMLINK_NOFOLLOW
    _checked(libc.utimensat(AT_FDCWD, os.fsencode(path), pair, flags))


def futimens(fd: int, access: Moment, modification: Moment) -> None:
    pair = (Timespec * 2)(Timespec(*access), Timespec(*modification))
    _checked(libc.futimens(fd, pair))


class Entry(NamedTuple):
    name: bytes
    inode: int
    kind: int
    offset: int


def getdents(fd: int, size: int = 32768) -> list[Entry]:
    """One getdents64 call: the entries it returned, none at the end."""
    buffer = ctypes.create_string_buffer(size)
    filled = _checked(libc.getdents64(fd, buffer, ctypes.c_size_t(size)))
    return list(_entries(buffer.raw[:filled]))


def _entries(raw: bytes) -> Iterable[Entry]:
    at = 0
    while at < len(raw):
        inode = int.from_bytes(raw[at : at + 8], "little")
        offset = int.from_bytes(raw[at + 8 : at + 16], "little", signed=True)
        length = int.from_bytes(raw[at + 16 : at + 18], "little")
        name = raw[at + 19 : at + length].split(b"\0", 1)[0]
        yield Entry(name, inode, raw[at + 18], offset)
        at += length
