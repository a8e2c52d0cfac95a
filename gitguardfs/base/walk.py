"""Walks a tree that others may change meanwhile, and reads files in it.

Each directory is opened by name relative to its parent's descriptor, and no symlink is followed.
A directory that was replaced by a symlink is an error, so the walk never leaves the tree. Files
are read up to a limit; FIFOs, sockets and devices are not opened.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from stat import S_IFDIR, S_IFLNK, S_IFREG, S_ISREG

from gitguardfs.base.constants import MAX_SYMLINKS
from gitguardfs.base.errors import os_error

MAX_HELD = 64
"""The most directories that are kept open above the current one: a process may have 1024."""
MAX_FILE = 1 << 20
"""The most bytes of a file that are read: files written by hand are shorter."""

DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""How to open a directory by its name in another; fails for a symlink."""
_STEP = DIRECTORY_FLAGS | getattr(os, "O_PATH", 0)
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Unread(Exception):  # noqa: N818  # what happened
    """A file could not be read or parsed; the message says why."""


class FileTooLong(Unread):
    """A file is longer than the limit; git may read all of it."""


@dataclass
class ScannedDirectory:
    """One directory of the tree."""

    path: str
    """Its absolute path."""
    fd: int
    """A descriptor, valid until the iterator is asked for the next directory."""
    entries: dict[str, int]
    """The names in it and their types (S_IFDIR, S_IFREG, S_IFLNK, or 0 for anything else)."""
    enter: list[str]
    """Its subdirectories that are walked next; the caller may remove some."""


class TreeScan:
    """One walk of the tree below a directory."""

    def __init__(self, top: int, path: str, failed: Callable[[str, OSError], None]) -> None:
        """Start at the descriptor ``top`` of ``path``; ``failed`` gets what cannot be listed."""
        self._top = top
        self.path = path
        self._failed = failed
        self._held: list[tuple[str, int | None]] = []
        self._seen: set[tuple[int, int]] = set()
        self.names = 0
        """How many names were listed so far."""

    def is_new(self, path: str, fd: int) -> bool:
        """Return whether a directory is to be listed: a bind mount may lead back up. OSError."""
        st = os.fstat(fd)
        identity = (st.st_dev, st.st_ino)
        is_new = identity not in self._seen
        self._seen.add(identity)
        return is_new

    def directories(self) -> Iterator[ScannedDirectory]:
        """Yield each directory once, a parent before its subdirectories."""
        queue: list[tuple[str, ...]] = [()]
        try:
            while queue:
                parts = queue.pop()
                path = "/".join((self.path.rstrip("/"), *parts)) or "/"
                try:
                    fd = self._open(parts)
                    if not self.is_new(path, fd):
                        continue
                    entries = list_directory(fd)
                except OSError as error:
                    self._failed(path, error)
                    continue
                self.names += len(entries)
                inner = [name for name, file_type in entries.items() if file_type == S_IFDIR]
                directory = ScannedDirectory(path, fd, entries, inner)
                yield directory
                queue += [(*parts, name) for name in directory.enter]
        finally:
            self._close(0)

    def _open(self, parts: Sequence[str]) -> int:
        """Open a directory, starting at the deepest of its parents that is still open. OSError."""
        common = 0
        for (name, _), part in zip(self._held, parts, strict=False):
            if name != part:
                break
            common += 1
        self._close(common)
        while self._held and self._held[-1][1] is None:
            self._held.pop()
        fd = self._held[-1][1] if self._held else self._top
        assert fd is not None
        for index in range(len(self._held), len(parts)):
            fd = os.open(parts[index], DIRECTORY_FLAGS, dir_fd=fd)
            self._held.append((parts[index], fd))
            if index >= MAX_HELD:
                name, old = self._held[index - MAX_HELD]
                if old is not None:
                    os.close(old)
                self._held[index - MAX_HELD] = (name, None)
        return fd

    def _close(self, keep: int) -> None:
        while len(self._held) > keep:
            _, fd = self._held.pop()
            if fd is not None:
                os.close(fd)


def list_directory(fd: int) -> dict[str, int]:
    """Return the names in a directory and their types, as ``ScannedDirectory.entries``. OSError."""
    entries = {}
    with os.scandir(fd) as listing:
        for entry in listing:
            if entry.is_symlink():
                file_type = S_IFLNK
            elif entry.is_dir(follow_symlinks=False):
                file_type = S_IFDIR
            else:
                file_type = S_IFREG if entry.is_file(follow_symlinks=False) else 0
            entries[entry.name] = file_type
    return entries


def readlink(path: str) -> str | None:
    """Return the text of a symlink; None for anything else, and for nothing."""
    try:
        return os.readlink(path)
    except OSError:
        return None


def steps(
    path: str, read: Callable[[str], str | None] = readlink, place: str = "/"
) -> Iterator[tuple[str, str | None, list[str]]]:
    """Yield each place that the kernel passes on a path from a directory without symlinks.

    With it comes its text, if it is a symlink, and the names after it, the last one first. Ends at
    the first symlink that is not followed because of a loop, or of ``MAX_SYMLINKS`` before it.
    """
    rest, followed = path.split("/")[::-1], 0
    while rest:
        name = rest.pop()
        if name in ("", ".", ".."):
            place = os.path.dirname(place) if name == ".." else place
            continue
        place = os.path.join(place, name)
        text = read(place)
        yield place, text, rest
        if text is not None:
            followed += 1
            if followed > MAX_SYMLINKS:
                return
            place = "/" if text.startswith("/") else os.path.dirname(place)
            rest += text.split("/")[::-1]
    yield place.rstrip("/") or "/", None, rest


def trail(path: str, read: Callable[[str], str | None] = readlink) -> list[str]:
    """Return the symlinks on an absolute path, in order, and where it ends."""
    passed = list(steps(path, read))
    return [*(place for place, text, _ in passed if text is not None), passed[-1][0]]


def resolved(path: str) -> str:
    """Return an absolute path with its symlinks resolved."""
    return trail(path)[-1]


def open_directory(path: str, top: int | None = None) -> int:
    """Open a directory by a path without symlinks; return its descriptor.

    The path is absolute, or relative to the directory ``top``. Raises OSError; ELOOP or ENOTDIR if
    a component has become a symlink.
    """
    fd = os.open("/", _STEP) if top is None else os.dup(top)
    try:
        for name in [*path.split("/"), "."]:
            if name == "":
                continue
            flags = DIRECTORY_FLAGS if name == "." else _STEP
            inner = os.open(name, flags, dir_fd=fd)
            os.close(fd)
            fd = inner
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextmanager
def opened(path: str, directory: int | None = None) -> Iterator[int]:
    """Open a directory by its name in another, or by a path as ``open_directory`` does; close it.

    Raises OSError.
    """
    if directory is None:
        fd = open_directory(path)
    else:
        fd = os.open(path, DIRECTORY_FLAGS, dir_fd=directory)
    try:
        yield fd
    finally:
        os.close(fd)


def read_file(directory: int, name: str, limit: int = MAX_FILE, whole: bool = True) -> bytes:
    """Return the first ``limit`` bytes of a regular file.

    Raises FileNotFoundError, OSError (ELOOP for a symlink), and Unread if it is not a regular file.
    Raises FileTooLong if ``whole`` is true and the file is longer than that.
    """
    fd = _open_regular(directory, name)
    try:
        data = b""
        while len(data) <= limit and (chunk := os.read(fd, limit + 1 - len(data))):
            data += chunk
    finally:
        os.close(fd)
    if whole and len(data) > limit:
        raise FileTooLong(f"it is longer than {limit} bytes")
    return data[:limit]


def read_path(path: str) -> bytes:
    """Return the content of a regular file by a path without symlinks. Raises as ``read_file``."""
    with opened(os.path.dirname(path)) as parent:
        return read_file(parent, os.path.basename(path))


def _open_regular(directory: int, name: str) -> int:
    if hasattr(os, "O_PATH"):
        # The type is checked before opening: opening a device can have an effect.
        step = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            _check_regular(os.fstat(step).st_mode)
            return os.open(f"/proc/self/fd/{step}", _FILE)
        finally:
            os.close(step)
    _check_regular(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    fd = os.open(name, _FILE | os.O_NOFOLLOW, dir_fd=directory)
    try:
        _check_regular(os.fstat(fd).st_mode)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_regular(mode: int) -> None:
    if mode & 0o170000 == S_IFLNK:
        raise os_error(errno.ELOOP)
    if not S_ISREG(mode):
        raise Unread("it is not a regular file")
