"""Open files and directories, by the handle numbers that the kernel uses.

The table changes only on the event loop's thread. A handle's descriptor stays open until its
release, which the kernel sends after the last request on the handle. So a worker thread may use
the descriptor freely.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from itertools import count

from gitguardfs.errors import os_error
from gitguardfs.fs.nodes import Node

MAX_NAMES = 1 << 20
"""Names in all snapshots of directories together; at about 80 bytes each, 80 MiB."""


class FileHandle:
    """An open file."""

    __slots__ = (
        "append", "fd", "is_local", "mappable", "node", "positional_fd", "size",
        "supports_nowait", "synchronous", "writable",
    )  # fmt: skip

    def __init__(
        self, node: Node, fd: int, flags: int, size: int = 0, is_local: bool = True
    ) -> None:
        self.node = node
        self.fd = fd
        self.positional_fd = -1
        """An append handle's second descriptor, which writes at a given offset; -1 until needed."""
        self.append = bool(flags & os.O_APPEND)
        self.synchronous = bool(flags & (os.O_SYNC | os.O_DSYNC))
        self.writable = flags & os.O_ACCMODE != os.O_RDONLY
        self.mappable = flags & os.O_ACCMODE == os.O_RDWR
        """Whether a process can map the file shared and writable."""
        self.supports_nowait = True
        """Whether the source's file system supports RWF_NOWAIT reads."""
        self.size = size
        """Size of the file in bytes when it was opened."""
        self.is_local = is_local
        """Whether writes go to memory and do not wait for a server."""


class DirectoryHandle:
    """An open directory; ``snapshot`` holds its names, taken when reading starts."""

    __slots__ = ("node", "pid", "snapshot", "types", "uid")

    def __init__(self, node: Node, uid: int, pid: int = 0) -> None:
        self.node = node
        self.uid = uid
        self.pid = pid
        """``uid`` and ``pid`` are of the process that opened it; requests to read carry neither."""
        self.snapshot: list[bytes] | None = None
        self.types: dict[bytes, tuple[int, int]] = {}
        """By name: type and inode number, if the snapshot was taken with them."""


class HandleTable:
    """All open handles."""

    def __init__(self) -> None:
        self._files: dict[int, FileHandle] = {}
        self._directories: dict[int, DirectoryHandle] = {}
        self._read: OrderedDict[DirectoryHandle, int] = OrderedDict()
        self._names = 0
        self._numbers = count(1)

    def __len__(self) -> int:
        return len(self._files) + len(self._directories)

    def add_file(self, handle: FileHandle) -> int:
        """Add a handle and return its number; its descriptor also serves its node."""
        number = next(self._numbers)
        self._files[number] = handle
        handle.node.open_fds += (handle.fd,)
        return number

    def add_directory(self, handle: DirectoryHandle) -> int:
        """Add a handle and return its number."""
        number = next(self._numbers)
        self._directories[number] = handle
        return number

    def file(self, number: int) -> FileHandle:
        """Return the open file of that number. Raises OSError(EBADF) if there is none."""
        try:
            return self._files[number]
        except KeyError:
            raise os_error(errno.EBADF) from None

    def files(self) -> Iterable[FileHandle]:
        """Return all open files."""
        return self._files.values()

    def directory(self, number: int) -> DirectoryHandle:
        """Return the open directory of that number. Raises OSError(EBADF) if there is none."""
        try:
            return self._directories[number]
        except KeyError:
            raise os_error(errno.EBADF) from None

    def release_file(self, number: int) -> None:
        """Close a file. Raises OSError(EBADF) if the number is not in use."""
        handle = self.file(number)
        del self._files[number]
        handle.node.open_fds = tuple(fd for fd in handle.node.open_fds if fd != handle.fd)
        for fd in (handle.fd, handle.positional_fd):
            if fd >= 0:
                with suppress(OSError):  # the descriptor is gone whatever close(2) says
                    os.close(fd)

    def keep_snapshot(self, handle: DirectoryHandle, names: list[bytes]) -> None:
        """Keep a snapshot; beyond MAX_NAMES names, drop the oldest snapshots.

        A handle whose snapshot was dropped takes a new one at its next read.
        """
        self._drop_snapshot(handle)
        handle.snapshot = names
        self._read[handle] = len(names)
        self._names += len(names)
        while self._names > MAX_NAMES and len(self._read) > 1:
            self._drop_snapshot(next(iter(self._read)))

    def _drop_snapshot(self, handle: DirectoryHandle) -> None:
        handle.snapshot = None
        handle.types = {}
        self._names -= self._read.pop(handle, 0)

    def release_directory(self, number: int) -> None:
        """Close a directory; an unknown number is ignored."""
        handle = self._directories.pop(number, None)
        if handle is not None:
            self._drop_snapshot(handle)

    def close_all(self) -> None:
        """Close all handles, at the end of a mount."""
        for number in list(self._files):
            self.release_file(number)
        self._directories.clear()
