"""A stand-in for a 9p client of Linux (v9fs with cache=none), below the functions of ``os``.

A name of which a descriptor is held stays in the kernel's cache, and so do the names above it. The
kernel then asks the server for attributes by path, but shows the number and the type that it knows.
The server reaches everything by path, also through a descriptor. What was changed on the host by
another way than this client is seen once no descriptor holds the name any more.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from stat import S_IFDIR, S_IFLNK, S_IFMT, S_IMODE
from typing import Any

import pytest

from gitguardfs.base.errors import os_error
from gitguardfs.linux import syscalls

_PROC = re.compile(rb"/proc/self/fd/(\d+)")


class _Entry:
    """A name in the kernel's cache, with the object that was there when it was looked up."""

    def __init__(self, above: _Entry | None, name: bytes, st: os.stat_result) -> None:
        self.above = above
        self.name = name
        self.number = st.st_ino
        self.file_type = S_IFMT(st.st_mode)
        self.users = 0
        """Descriptors of it, and entries below it."""
        self.below: dict[bytes, _Entry] = {}


class PathClient:
    """The functions of ``os``, for descriptors of one directory and what is below it."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self._path = os.fsencode(root)
        self._root = _Entry(None, b"", os.lstat(root))
        self._root.users = 1
        self._held: dict[int, _Entry] = {}
        self._os = {name: getattr(os, name) for name in _REPLACED}
        for name in _REPLACED:
            patch.setattr(os, name, getattr(self, name))
        patch.setattr(syscalls, "birth_ns", lambda _: 0)
        patch.setattr(syscalls, "utimens", self._utimens)
        patch.setattr(syscalls, "renameat2", self._renameat2)

    # Names

    def _path_of(self, entry: _Entry) -> bytes:
        """Return the server's path; ENOTDIR if a symlink is on the way, which it never follows."""
        parts: list[bytes] = []
        step: _Entry | None = entry
        while step is not None and step.above is not None:
            parts.append(step.name)
            step = step.above
        path = self._path
        for part in reversed(parts[1:]):
            path += b"/" + part
            if S_IFMT(os.lstat(path).st_mode) == S_IFLNK:
                raise os_error(errno.ENOTDIR)
        return path + b"/" + parts[0] if parts else path

    def _at(self, directory: _Entry, name: bytes) -> bytes:
        return self._path_of(_Entry(directory, name, _ANY))

    def _look_up(self, directory: _Entry, name: bytes) -> _Entry:
        if name == b".":
            return directory
        self._check_directory(directory)
        held = directory.below.get(name)
        if held is not None:
            return held
        return _Entry(directory, name, os.lstat(self._at(directory, name)))

    def _check_directory(self, entry: _Entry) -> None:
        if entry.file_type != S_IFDIR:
            raise os_error(errno.ENOTDIR)

    def _named(self, fd: int | None, path: Any) -> _Entry | None:
        """Return the entry that a call is about; None for a call outside of the directory."""
        if isinstance(path, int):
            return self._held.get(path)
        name = os.fsencode(path)
        if fd is not None:
            if fd not in self._held:
                return None
            directory = self._held[fd]
            return self._look_up(directory, name) if name else directory
        match = _PROC.fullmatch(name)
        return self._held.get(int(match[1])) if match else None

    def _use(self, entry: _Entry) -> None:
        entry.users += 1
        if entry.users == 1 and entry.above is not None:
            entry.above.below[entry.name] = entry
            self._use(entry.above)

    def _leave(self, entry: _Entry) -> None:
        entry.users -= 1
        if entry.users == 0 and entry.above is not None:
            self._drop(entry)
            self._leave(entry.above)

    def _drop(self, entry: _Entry) -> None:
        if entry.above is not None and entry.above.below.get(entry.name) is entry:
            del entry.above.below[entry.name]

    def _shown(self, entry: _Entry) -> os.stat_result:
        st = os.lstat(self._path_of(entry))
        fields: dict[str, Any] = {name: getattr(st, name) for name in _FURTHER}
        mode = entry.file_type | S_IMODE(st.st_mode)
        return os.stat_result((mode, entry.number, *st[2:10]), fields)

    # Opening

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if dir_fd is None and os.fsencode(path) == self._path:
            return self._hold(self._root, self._os["open"](path, flags))
        if dir_fd in self._held and flags & os.O_CREAT:
            directory, name = self._held[dir_fd], os.fsencode(path)
            self._check_directory(directory)
            if name in directory.below:
                raise os_error(errno.EEXIST)
            at = self._at(directory, name)
            opened = self._os["open"](at, flags, mode)
            return self._hold(_Entry(directory, name, os.lstat(at)), opened)
        entry = self._named(dir_fd, path)
        if entry is None:
            return int(self._os["open"](path, flags, mode, dir_fd=dir_fd))
        if flags & os.O_PATH:
            return self._hold(entry, self._os["open"](b"/", os.O_PATH | os.O_CLOEXEC))
        if entry.file_type == S_IFLNK:
            raise os_error(errno.ELOOP)
        if flags & os.O_DIRECTORY:
            self._check_directory(entry)
        return self._hold(entry, self._os["open"](self._path_of(entry), flags | os.O_NOFOLLOW))

    def _hold(self, entry: _Entry, fd: int) -> int:
        self._use(entry)
        self._held[fd] = entry
        return fd

    def close(self, fd: int) -> None:
        self._os["close"](fd)
        entry = self._held.pop(fd, None)
        if entry is not None:
            self._leave(entry)

    def dup(self, fd: int) -> int:
        copy = int(self._os["dup"](fd))
        return self._hold(self._held[fd], copy) if fd in self._held else copy

    def dup2(self, fd: int, fd2: int, inheritable: bool = True) -> int:
        self._os["dup2"](fd, fd2, inheritable)
        former = self._held.pop(fd2, None)
        if fd in self._held:
            self._hold(self._held[fd], fd2)
        if former is not None:
            self._leave(former)
        return fd2

    # Reading

    def fstat(self, fd: int) -> os.stat_result:
        entry = self._held.get(fd)
        return self._os["fstat"](fd) if entry is None else self._shown(entry)

    def stat(self, path: Any, *, dir_fd: Any = None, follow_symlinks: bool = True) -> Any:
        entry = self._named(dir_fd, path)
        if entry is None:
            return self._os["stat"](path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
        return self._shown(entry)

    def listdir(self, path: Any) -> Any:
        entry = self._named(None, path)
        return self._os["listdir"](path if entry is None else self._path_of(entry))

    def scandir(self, path: Any = ".") -> Any:
        entry = self._named(None, path)
        return self._os["scandir"](path if entry is None else self._path_of(entry))

    def readlink(self, path: Any, *, dir_fd: Any = None) -> Any:
        entry = self._named(dir_fd, path)
        return self._os["readlink"](path) if entry is None else self._read_link(entry)

    def _read_link(self, entry: _Entry) -> bytes:
        if entry.file_type != S_IFLNK:
            raise os_error(errno.EINVAL)
        return bytes(self._os["readlink"](self._path_of(entry)))

    # Changing names

    def _new(self, dir_fd: int, name: bytes) -> bytes:
        directory = self._held[dir_fd]
        self._check_directory(directory)
        if name in directory.below:
            raise os_error(errno.EEXIST)
        return self._at(directory, name)

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: Any = None) -> None:
        self._os["mkdir"](path if dir_fd not in self._held else self._new(dir_fd, path), mode)

    def mknod(self, path: Any, mode: int = 0o600, device: int = 0, *, dir_fd: Any = None) -> None:
        where = path if dir_fd not in self._held else self._new(dir_fd, path)
        self._os["mknod"](where, mode, device)

    def symlink(self, src: Any, dst: Any, *_: Any, dir_fd: Any = None) -> None:
        self._os["symlink"](src, dst if dir_fd not in self._held else self._new(dir_fd, dst))

    def link(self, src: Any, dst: Any, *, dst_dir_fd: Any = None, **more: Any) -> None:
        entry = self._named(None, src)
        if entry is None:
            self._os["link"](src, dst, **more)
        else:
            to = self._new(dst_dir_fd, dst)
            self._os["link"](self._path_of(entry), to, follow_symlinks=False)

    def unlink(self, path: Any, *, dir_fd: Any = None) -> None:
        self._remove("unlink", path, dir_fd, is_directory=False)

    def rmdir(self, path: Any, *, dir_fd: Any = None) -> None:
        self._remove("rmdir", path, dir_fd, is_directory=True)

    def _remove(self, call: str, path: Any, dir_fd: Any, is_directory: bool) -> None:
        entry = self._named(dir_fd, path)
        if entry is None:
            self._os[call](path, dir_fd=dir_fd)
            return
        if is_directory != (entry.file_type == S_IFDIR):
            raise os_error(errno.ENOTDIR if is_directory else errno.EISDIR)
        self._os[call](self._path_of(entry))
        self._drop(entry)

    def rename(self, src: Any, dst: Any, *, src_dir_fd: Any = None, dst_dir_fd: Any = None) -> None:
        moved = self._named(src_dir_fd, src)
        if moved is None:
            self._os["rename"](src, dst)
            return
        directory, name = self._held[dst_dir_fd], os.fsencode(dst)
        replaced = directory.below.get(name)
        if replaced is moved:
            return
        if replaced is not None and (replaced.file_type == S_IFDIR) != (moved.file_type == S_IFDIR):
            raise os_error(errno.ENOTDIR if moved.file_type == S_IFDIR else errno.EISDIR)
        self._os["rename"](self._path_of(moved), self._at(directory, name))
        if replaced is not None:
            self._drop(replaced)
        above = moved.above
        self._drop(moved)
        if moved.users and above is not None:
            self._use(directory)
            moved.above, moved.name = directory, name
            directory.below[name] = moved
            self._leave(above)

    def _renameat2(self, *_: Any) -> None:
        raise os_error(errno.EINVAL)

    # Changing attributes

    def chown(self, path: Any, uid: int, gid: int) -> None:
        entry = self._named(None, path)
        self._os["chown"](path if entry is None else self._path_of(entry), uid, gid)

    def chmod(self, path: Any, mode: int, **_: Any) -> None:
        entry = self._named(None, path)
        self._os["chmod"](path if entry is None else self._path_of(entry), mode)

    def truncate(self, path: Any, size: int) -> None:
        entry = self._named(None, path)
        self._os["truncate"](path if entry is None else self._path_of(entry), size)

    def ftruncate(self, fd: int, size: int) -> None:
        entry = self._held.get(fd)
        self._os["truncate"](fd if entry is None else self._path_of(entry), size)

    def _utimens(self, path: bytes, atime_ns: int | None, mtime_ns: int | None) -> None:
        entry = self._named(None, path)
        at = path if entry is None else self._path_of(entry)
        st = self._os["stat"](at)
        given = (
            (st.st_atime_ns if atime_ns is None else atime_ns),
            (st.st_mtime_ns if mtime_ns is None else mtime_ns),
        )
        os.utime(at, ns=given)


_ANY = os.lstat("/")
_FURTHER = (
    "st_atime", "st_mtime", "st_ctime", "st_atime_ns", "st_mtime_ns", "st_ctime_ns", "st_blksize",
    "st_blocks", "st_rdev",
)  # fmt: skip
_REPLACED = (
    "open", "close", "dup", "dup2", "fstat", "stat", "listdir", "scandir", "readlink", "mkdir",
    "mknod", "symlink", "link", "unlink", "rmdir", "rename", "chown", "chmod", "truncate",
    "ftruncate",
)  # fmt: skip
