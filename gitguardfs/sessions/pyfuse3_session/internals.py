"""What relies on names and texts that pyfuse3 does not promise, for the releases that have them.

With another release of pyfuse3 the mount works, and only what is described here is missing.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import select
from collections.abc import Callable
from typing import Any

import pyfuse3
import trio
from pyfuse3 import EntryAttributes

from gitguardfs.base.protocol import DirEntry
from gitguardfs.sessions.choice import is_known

SPINS = 60
"""How often to poll for the next request without waiting: about 45 us, as waking up takes."""
INLINE_WAIT = 2
"""Milliseconds to wait outside of trio's event loop, if no other task needs the loop."""
REQUESTS_IN_A_ROW = 64
"""Requests after which trio's event loop makes a pass in any case, so that signals are seen."""
ABORT_LIMIT = 100
"""Milliseconds that the kernel takes at most, while it ends a connection, from refusing replies to
reporting POLLERR (fuse_abort_conn in fs/fuse/dev.c): microseconds, unless a VM is stalled."""

LOG = logging.getLogger("pyfuse3")
_FAILED = "fuse_reply_* failed with %s"
_NO_SUCH_REQUEST = (os.strerror(errno.ENOENT),)

_FIELDS = object.__basicsize__
"""Where the fields of an extension type begin; the first is a struct fuse_entry_param."""
_PROBE = 0x0123456789ABCDEF


class RequestWait:
    """Waits for the requests of one mount. Stands in for trio.lowlevel in pyfuse3.

    For each request, pyfuse3 takes a lock of trio and waits for its descriptor by trio. These are
    two passes of the event loop, each with calls to epoll: more than the rest of a small request
    costs. Here poll(2) waits a moment first, and a lock that is free costs no pass.
    """

    def __init__(self, is_alone: Callable[[], bool], on_end: Callable[[], None]) -> None:
        """Prepare to wait.

        ``is_alone`` returns whether no other task waits for a call's end. ``on_end`` is called when
        the kernel has ended the connection.
        """
        self._is_alone = is_alone
        self._on_end = on_end
        self._in_a_row = 0
        self._fuse_fd = -1
        """The descriptor of /dev/fuse, once it has been waited for; -1 before."""
        self._poll = _poll_of()

    def install(self) -> None:
        """Make a known pyfuse3 wait by this object. Call it before pyfuse3.init.

        In releases before 3.4.1, pyfuse3.init creates the lock of pyfuse3's loop.
        """
        if is_known(pyfuse3.__version__):
            pyfuse3.trio = _Trio(self)  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> Any:
        return getattr(trio.lowlevel, name)

    async def wait_readable(self, fd: int) -> None:
        """Wait until ``fd``, which is /dev/fuse, is readable: by poll(2) first, then by trio.

        Raises ClosedResourceError, as trio's function does.
        """
        if fd != self._fuse_fd:
            self._fuse_fd, self._poll = fd, _poll_of(fd)
        if self._in_a_row < REQUESTS_IN_A_ROW:
            self._in_a_row += 1
            ready = self._poll(0) or self._polled()
        else:
            ready = []
        if not ready:
            self._in_a_row = 0
            await trio.lowlevel.wait_readable(fd)
            ready = self._poll(0)
        if ready and ready[0][1] & select.POLLERR:
            self._on_end()

    def _polled(self) -> list[tuple[int, int]]:
        poll = self._poll
        for _ in range(SPINS):
            if ready := poll(0):
                return ready
        return poll(INLINE_WAIT) if self._is_alone() else []

    def comes_first(self, fd: int, *, alone: bool) -> bool:
        """Return whether ``fd`` becomes readable within INLINE_WAIT.

        Unless it is waited for ``alone``, a request that comes earlier ends the waiting.
        """
        poll = _poll_of(fd) if alone else _poll_of(fd, self._fuse_fd)
        return any(ready == fd for ready, _ in poll(INLINE_WAIT))

    def has_ended(self) -> bool:
        """Wait up to ``ABORT_LIMIT``; return whether the kernel has ended the connection."""
        poller = select.poll()
        if self._fuse_fd >= 0:
            poller.register(self._fuse_fd, 0)  # POLLERR is always reported
            return bool(poller.poll(ABORT_LIMIT))
        return False


def _poll_of(*fds: int) -> Callable[[int], list[tuple[int, int]]]:
    """Return a function that polls ``fds`` for reading, for the given milliseconds (poll(2))."""
    poller = select.poll()
    for fd in fds:
        if fd >= 0:
            poller.register(fd, select.POLLIN)
    return poller.poll


class _Lock:
    """A lock that is taken without a pass of the event loop if it is free."""

    def __init__(self) -> None:
        self._is_taken = False
        self._others = trio.lowlevel.ParkingLot()

    async def __aenter__(self) -> None:
        while self._is_taken:
            await self._others.park()
        self._is_taken = True

    async def __aexit__(self, *_: object) -> None:
        self._is_taken = False
        if self._others:
            self._others.unpark()


class _Trio:
    """The module trio as pyfuse3 sees it."""

    Lock = _Lock

    def __init__(self, lowlevel: RequestWait) -> None:
        self.lowlevel = lowlevel

    def __getattr__(self, name: str) -> Any:
        return getattr(trio, name)


class NamesOnlyEntry:
    """An entry of a listing with name, type and inode number, but without a node.

    pyfuse3 serves only listings with attributes (FUSE_READDIRPLUS), which cost a stat and a node
    for each entry. The kernel also takes an entry without attributes, whose node id is 0
    (``fuse_direntplus_link`` in fs/fuse/readdir.c). EntryAttributes has one property for both the
    node id and the inode number. So 0 is written directly to the memory of the node id.
    """

    def __init__(self) -> None:
        self._entry = EntryAttributes()
        node = ctypes.c_uint64.from_address(id(self._entry) + _FIELDS)
        self._entry.st_ino = _PROBE
        self.works = is_known(pyfuse3.__version__) and node.value == _PROBE
        """Whether the node id was found where it is expected in memory. If not, only ``.`` and
        ``..`` can be reported without a node, since the kernel takes none for them."""
        self._node = node if self.works else None

    def of(self, entry: DirEntry) -> EntryAttributes:
        """Return the attributes to report for ``entry``; valid until the next call."""
        self._entry.st_ino = entry.inode
        if self._node is None and entry.name not in (b".", b".."):
            self._entry.st_ino = 0
        self._entry.st_mode = entry.file_type
        if self._node is not None:
            self._node.value = 0
        return self._entry


class UnwantedReplies(logging.Filter):
    """Drops pyfuse3's records of replies that failed because the connection had ended.

    When a connection ends, the kernel withdraws every unanswered request and fails the reply with
    ENOENT. The last RELEASE of a lazily unmounted view is often such a request: its sender does not
    wait for the reply, and ends the mount. pyfuse3 logs each failed reply as an error. While the
    connection lives, ENOENT means that a request was answered twice. That stays an error.
    """

    def __init__(self, has_ended: Callable[[], bool]) -> None:
        """``has_ended`` returns whether the kernel has ended the connection."""
        super().__init__()
        self._has_ended = has_ended

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is to be logged."""
        is_unknown = str(record.msg).endswith(_FAILED) and record.args == _NO_SUCH_REQUEST
        return not (is_unknown and self._has_ended())
