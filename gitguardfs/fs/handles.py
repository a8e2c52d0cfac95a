"""Open files and directories, by the ids that the kernel uses.

A handle's descriptor stays open until its release, which the kernel sends after the last request on
the handle. So a worker thread may use the descriptor freely.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from typing import cast

from gitguardfs.base.errors import os_error
from gitguardfs.base.protocol import GuestUid, HandleId
from gitguardfs.fs.nodes import Directory, Node

MAX_NAMES = 1 << 20
"""Names in all snapshots of directories together; at about 80 bytes each, 80 MiB."""

ENOUGH = 2
"""Lookups of files after which a process that was given names alone gets attributes as well."""
REMEMBERED = 256
"""Processes that are remembered at a time; the one seen first is forgotten."""


class FileHandle:
    """An open file."""

    __slots__ = (
        "append", "changed_ns", "fd", "flags", "is_local", "mappable", "node", "positional_fd",
        "size", "supports_nowait", "synchronous", "writable",
    )  # fmt: skip

    def __init__(
        self,
        node: Node,
        fd: int,
        flags: int,
        size: int = 0,
        is_local: bool = True,
        changed_ns: int = 0,
    ) -> None:
        self.node = node
        self.fd = fd
        self.positional_fd = -1
        """An append handle's second descriptor, which writes at a given offset; -1 until needed."""
        self.flags = flags
        self.append = bool(flags & os.O_APPEND)
        self.synchronous = bool(flags & (os.O_SYNC | os.O_DSYNC))
        self.writable = flags & os.O_ACCMODE != os.O_RDONLY
        self.mappable = flags & os.O_ACCMODE == os.O_RDWR
        """Whether a process can map the file shared and writable."""
        self.supports_nowait = True
        """Whether the source's file system supports RWF_NOWAIT reads."""
        self.size = size
        """Size of the file in bytes when it was opened."""
        self.changed_ns = changed_ns
        """The file's ctime when it was opened: what was born later is another file."""
        self.is_local = is_local
        """Whether writes go to memory and do not wait for a server."""


class DirectoryHandle:
    """An open directory; ``snapshot`` holds its names, taken when reading starts."""

    __slots__ = ("node", "overlaid", "pid", "snapshot", "types", "uid")

    def __init__(self, node: Directory, uid: GuestUid, pid: int = 0) -> None:
        self.node = node
        self.uid = uid
        self.pid = pid
        """``uid`` and ``pid`` are of the process that opened it; requests to read carry neither."""
        self.snapshot: list[bytes] | None = None
        self.types: dict[bytes, tuple[int, int]] = {}
        """By name: type and inode number, if the snapshot was taken with them."""
        self.overlaid: dict[bytes, tuple[int, int]] = {}
        """Type and inode number of each name in the snapshot that the source does not have."""


class ReaddirplusAdvice:
    """Decides which processes get attributes with their listings.

    A listing with attributes costs a stat and a node for each entry. A program that only walks the
    names, such as find, gets names alone if the session can report those.
    """

    def __init__(self) -> None:
        self.lookups: OrderedDict[int, int] = OrderedDict()
        """By process that has listed names: how many non-directories it has looked up since."""

    def wants_names_only(self, pid: int) -> bool:
        """Return whether the process ``pid`` has only listed names, and looked up few, so far."""
        lookups = self.lookups.setdefault(pid, 0)
        if len(self.lookups) > REMEMBERED:
            self.lookups.popitem(last=False)
        return lookups < ENOUGH


class HandleTable:
    """All open handles."""

    def __init__(self, first: int = 1) -> None:
        """Give the handles numbers from ``first`` on."""
        self.files: dict[HandleId, FileHandle] = {}
        self.directories: dict[HandleId, DirectoryHandle] = {}
        self._read: OrderedDict[DirectoryHandle, int] = OrderedDict()
        self._names = 0
        self.continue_at(HandleId(first))

    def __len__(self) -> int:
        return len(self.files) + len(self.directories)

    def continue_at(self, first: HandleId) -> None:
        """Give the handles numbers from ``first`` on: a former daemon has given those below."""
        self._first = first
        self._ids = cast("Iterator[HandleId]", count(first))

    def is_former(self, handle_id: HandleId) -> bool:
        """Return whether only a former daemon has opened a directory of that id."""
        return handle_id < self._first and handle_id not in self.directories

    def next_id(self) -> HandleId:
        """Return a number that no handle has had."""
        return next(self._ids)

    def restore_file(self, handle_id: HandleId, handle: FileHandle) -> None:
        """Add a handle of a former daemon, whose file was opened again."""
        self.files[handle_id] = handle
        handle.node.open_fds += (handle.fd,)

    def add_file(self, handle: FileHandle) -> HandleId:
        """Add a handle and return its id; its descriptor also serves its node."""
        handle_id = next(self._ids)
        self.files[handle_id] = handle
        handle.node.open_fds += (handle.fd,)
        return handle_id

    def add_directory(self, handle: DirectoryHandle) -> HandleId:
        """Add a handle and return its id."""
        handle_id = next(self._ids)
        self.directories[handle_id] = handle
        return handle_id

    def file(self, handle_id: HandleId) -> FileHandle:
        """Return the open file of that id.

        Raises OSError if there is none: ESTALE if a former daemon had one, otherwise EBADF.
        """
        try:
            return self.files[handle_id]
        except KeyError:
            raise os_error(errno.ESTALE if handle_id < self._first else errno.EBADF) from None

    def opens(self, st: os.stat_result) -> bool:
        """Return whether a file with the number and type of ``st`` is open."""
        return any(handle.node.matches(st) for handle in self.files.values())

    def directory(self, handle_id: HandleId) -> DirectoryHandle:
        """Return the open directory of that id. Raises OSError as ``file`` does."""
        try:
            return self.directories[handle_id]
        except KeyError:
            raise os_error(errno.ESTALE if handle_id < self._first else errno.EBADF) from None

    def release_file(self, handle_id: HandleId) -> None:
        """Close a file. Raises OSError(EBADF) if the id was never in use."""
        handle = self.files.pop(handle_id, None)
        if handle is None:
            if handle_id < self._first:  # it could not be opened again
                return
            raise os_error(errno.EBADF)
        fds = handle.node.open_fds
        handle.node.open_fds = () if len(fds) == 1 else tuple(fd for fd in fds if fd != handle.fd)
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
        handle.overlaid = {}
        self._names -= self._read.pop(handle, 0)

    def release_directory(self, handle_id: HandleId) -> None:
        """Close a directory; an unknown id is ignored."""
        handle = self.directories.pop(handle_id, None)
        if handle is not None:
            self._drop_snapshot(handle)

    def close_all(self) -> None:
        """Close all handles, at the end of a mount."""
        for handle_id in list(self.files):
            self.release_file(handle_id)
        self.directories.clear()
