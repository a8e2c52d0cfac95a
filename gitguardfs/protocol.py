"""What a session and the operations exchange. No I/O."""

from __future__ import annotations

from typing import NamedTuple

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
RENAME_WHITEOUT = 4

NOW = -(1 << 62)
"""Stands for "now" among times in nanoseconds; before any that file systems can store."""


class Caller(NamedTuple):
    """Who asks, in guest ids. Requests on a handle bring none."""

    uid: int
    gid: int
    pid: int = 0
    """0 if it is not known."""


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
    lasts: bool = True
    """Whether the kernel may go on using the node without a look at its name."""


class SetAttr(NamedTuple):
    """What setattr is to change; None leaves a thing as it is. Times are nanoseconds."""

    size: int | None = None
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    atime_ns: int | None = None
    mtime_ns: int | None = None


class EntryReply(NamedTuple):
    """A node and its attributes, and for how many seconds the kernel may believe that."""

    node: int
    """0: there is nothing of that name, which the kernel may believe as well."""
    attributes: Attributes | None
    """None only if there is nothing."""
    entry_timeout: float
    attr_timeout: float


class OpenReply(NamedTuple):
    """An open file: its handle, and what becomes of what the kernel remembers of the file."""

    handle: int
    keep_cache: bool
    """Whether the kernel may keep the file's pages (FOPEN_KEEP_CACHE)."""
    direct_io: bool
    """Whether no pages are kept at all (FOPEN_DIRECT_IO)."""
    attributes_changed: bool = False
    """Whether the session is to make the kernel ask for the attributes anew."""


class DirEntry(NamedTuple):
    """One entry of a listing."""

    name: bytes
    offset: int
    """Where to go on after it."""
    reply: EntryReply | None = None
    """None if only type and inode number are reported, as of ``.`` and ``..``."""
    file_type: int = 0
    inode: int = 0


class RequestError(Exception):
    """A request fails with ``errno``."""

    def __init__(self, errno: int) -> None:
        super().__init__(errno)
        self.errno = errno


class Later(Exception):  # noqa: N818  # what the session is to do, not that something broke
    """Nothing was changed; the session makes the same call again and serves others meanwhile.

    Times are seconds of time.monotonic. A call that still raises this at ``deadline`` fails
    with EBUSY.
    """

    def __init__(self, why: str, ask_again_at: float, deadline: float) -> None:
        super().__init__(why)
        self.why = why
        self.ask_again_at = ask_again_at
        self.deadline = deadline
