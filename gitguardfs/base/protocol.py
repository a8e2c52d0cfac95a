"""The types that a session and the operations exchange. No I/O."""

from __future__ import annotations

from typing import NamedTuple, NewType

NodeId = NewType("NodeId", int)
"""The number by which kernel and session name a node."""
HandleId = NewType("HandleId", int)
"""The number of an open file or directory."""
DirOffset = NewType("DirOffset", int)
"""A position in a listing, from which it can be continued."""

ReadData = bytes | bytearray | memoryview
"""What a read returns."""

ShareUid = NewType("ShareUid", int)
GuestUid = NewType("GuestUid", int)
ShareGid = NewType("ShareGid", int)
GuestGid = NewType("GuestGid", int)

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
RENAME_WHITEOUT = 4

make = tuple.__new__
"""Builds a NamedTuple in half the time of its own constructor; every field must be given."""

NOW = -(1 << 62)
"""Stands for "now" among times in nanoseconds; earlier than any that file systems store."""


class Caller(NamedTuple):
    """The process that makes a request, in guest ids. Requests on a handle carry none."""

    uid: GuestUid
    gid: GuestGid
    pid: int = 0
    """0 if the process is not known."""


class Attributes(NamedTuple):
    """The attributes of a node for the guest: ids are the guest's, times are nanoseconds."""

    ino: int
    mode: int
    nlink: int
    uid: int
    gid: int
    rdev: int
    size: int
    blocks: int
    blksize: int
    atime_ns: int
    mtime_ns: int
    ctime_ns: int


class SetAttr(NamedTuple):
    """The attributes that a setattr changes; None leaves one unchanged. Times are nanoseconds."""

    size: int | None = None
    mode: int | None = None
    uid: GuestUid | None = None
    gid: GuestGid | None = None
    atime_ns: int | None = None
    mtime_ns: int | None = None


class EntryReply(NamedTuple):
    """A node, its attributes, and for how many seconds the kernel may cache each."""

    node: NodeId
    """0 is a negative entry: nothing has that name. The kernel may cache that too."""
    attributes: Attributes | None
    """None only for a negative entry."""
    entry_timeout: float
    attr_timeout: float


class OpenReply(NamedTuple):
    """An open file or directory: its handle, and what the kernel does with its cache of it."""

    handle: HandleId
    keep_cache: bool
    """Whether the kernel may keep the file's pages, or the listing (FOPEN_KEEP_CACHE)."""
    direct_io: bool
    """Whether the kernel caches no pages (FOPEN_DIRECT_IO), or no listing."""
    attributes_changed: bool = False
    """Whether the session must invalidate the attributes that the kernel has cached."""
    backing_fd: int = -1
    """A descriptor of the source's file, which the kernel may read and write by itself; or -1."""
    closes_silently: bool = False
    """Whether close(2) can have no error to report (FOPEN_NOFLUSH)."""


class DirEntry(NamedTuple):
    """One entry of a listing."""

    name: bytes
    offset: DirOffset
    """The offset from which the listing continues after this entry."""
    reply: EntryReply | None = None
    """None if only type and inode number are reported, as of ``.`` and ``..``."""
    file_type: int = 0
    inode: int = 0


class RequestError(Exception):
    """The request failed with ``errno``."""

    def __init__(self, errno: int) -> None:
        super().__init__(errno)
        self.errno = errno
