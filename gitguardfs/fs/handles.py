"""Open files and directories, as the kernel numbers them.

Changed only on the event loop's thread. A handle's descriptor stays open until its release,
which the kernel sends after the last request on it; so a worker thread may use it freely.
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
"""Names in all snapshots of directories together, about 80 bytes each."""


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
        """Of an append handle, a descriptor that writes where it is told; -1 until needed."""
        self.append = bool(flags & os.O_APPEND)
        self.synchronous = bool(flags & (os.O_SYNC | os.O_DSYNC))
        self.writable = flags & os.O_ACCMODE != os.O_RDONLY
        self.mappable = flags & os.O_ACCMODE == os.O_RDWR
        """Whether a shared writable mapping can be made of it."""
        self.supports_nowait = True
        """Whether the source's file system can say that a read would have to wait."""
        self.size = size
        """Of the file when it was opened."""
        self.is_local = is_local
        """Whether writes go to memory, and no server is waited for."""


class DirectoryHandle:
    """An open directory; the names are a snapshot taken when reading starts."""

    __slots__ = ("names", "node", "pid", "types", "uid")

    def __init__(self, node: Node, uid: int, pid: int = 0) -> None:
        self.node = node
        self.uid = uid
        self.pid = pid
        """Who opened it, and by which process; requests to read it do not say who asks."""
        self.names: list[bytes] | None = None
        self.types: dict[bytes, tuple[int, int]] = {}
        """Type and inode number by name, where the snapshot was taken with them."""


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
        """Number a handle; its descriptor also serves its node."""
        number = next(self._numbers)
        self._files[number] = handle
        handle.node.open_fds += (handle.fd,)
        return number

    def add_directory(self, handle: DirectoryHandle) -> int:
        """Number a handle."""
        number = next(self._numbers)
        self._directories[number] = handle
        return number

    def file(self, number: int) -> FileHandle:
        """The open file of that number; OSError(EBADF) if there is none."""
        try:
            return self._files[number]
        except KeyError:
            raise os_error(errno.EBADF) from None

    def files(self) -> Iterable[FileHandle]:
        """All open files."""
        return self._files.values()

    def directory(self, number: int) -> DirectoryHandle:
        """The open directory of that number; OSError(EBADF) if there is none."""
        try:
            return self._directories[number]
        except KeyError:
            raise os_error(errno.EBADF) from None

    def release_file(self, number: int) -> None:
        """Close a file."""
        handle = self.file(number)
        del self._files[number]
        handle.node.open_fds = tuple(fd for fd in handle.node.open_fds if fd != handle.fd)
        for fd in (handle.fd, handle.positional_fd):
            if fd >= 0:
                with suppress(OSError):  # the descriptor is gone whatever close(2) says
                    os.close(fd)

    def keep_names(self, handle: DirectoryHandle, names: list[bytes]) -> None:
        """Keep a snapshot; where there are too many, those taken first are let go.

        Such a handle takes a new one when it is read on.
        """
        self._drop_names(handle)
        handle.names = names
        self._read[handle] = len(names)
        self._names += len(names)
        while self._names > MAX_NAMES and len(self._read) > 1:
            self._drop_names(next(iter(self._read)))

    def _drop_names(self, handle: DirectoryHandle) -> None:
        handle.names = None
        handle.types = {}
        self._names -= self._read.pop(handle, 0)

    def release_directory(self, number: int) -> None:
        """Close a directory."""
        handle = self._directories.pop(number, None)
        if handle is not None:
            self._drop_names(handle)

    def close_all(self) -> None:
        """Close everything, at the end of a mount."""
        for number in list(self._files):
            self.release_file(number)
        self._directories.clear()
