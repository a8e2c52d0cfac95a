"""Busy-polls for the next request before yielding to trio.

For each request, pyfuse3's loop takes a lock and waits for its descriptor. These are two passes of
trio's event loop, each with calls to epoll: more than the rest of a small request costs.

Here the descriptor is polled for a moment first. A program that makes one call after another has
sent its next request by then. Where waking up takes long, polling lasts longer. The lock is not
needed, since only one task reads (``request_loop``).
"""

from __future__ import annotations

import select
from collections.abc import Callable
from time import perf_counter
from typing import Any

import pyfuse3
import trio

from gitguardfs.sessions.pyfuse3_session.cpu_latency import CpuLatencyRequest
from gitguardfs.sessions.pyfuse3_session.read_interrupter import ReadInterrupter

SPINS = 20
"""How often to poll for the next request without waiting: about 15 us."""
MAX_SPINS = 200
"""How often to poll while requests come within ``WAKEUP_TIME``."""
WAKEUP_TIME = 200e-6
"""Seconds that waking up takes at most. Polling for longer would save nothing."""
INLINE_WAIT = 2
"""Milliseconds to wait outside of trio's event loop, if no other task needs the loop."""
ABORT_LIMIT = 100
"""Milliseconds that the kernel takes at most, while it ends a connection, from refusing replies to
reporting POLLERR (fuse_abort_conn in fs/fuse/dev.c): microseconds, unless a VM is stalled."""
REQUESTS_IN_A_ROW = 64
"""Requests after which trio's event loop makes a pass in any case, so that signals are seen. With
``--no-cpu-idle``, processors are then kept from halting until there is a pause."""

Poll = Callable[[int], list[tuple[int, int]]]


def poll_of(*fds: int) -> Poll:
    """Return a function that polls ``fds`` for reading, for the given milliseconds (poll(2))."""
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    return poller.poll


class _NoLock:
    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, *_: object) -> None:
        return None


class BusyPoll:
    """Waits for the requests of one mount. Stands in for trio.lowlevel in pyfuse3."""

    def __init__(
        self,
        is_alone: Callable[[], bool],
        is_ending: Callable[[], bool],
        interrupter: ReadInterrupter,
        *,
        no_cpu_idle: bool = False,
    ) -> None:
        """Prepare to wait; ``install`` makes pyfuse3 use this object.

        ``is_alone`` returns whether no other task waits for anything except signals. ``is_ending``
        returns whether the session takes no more requests; it does so before
        trio.lowlevel.notify_closing is called. ``no_cpu_idle`` keeps processors from halting while
        many requests come in a row.
        """
        self._is_alone = is_alone
        self._is_ending = is_ending
        self._interrupter = interrupter
        self._cpu_latency = CpuLatencyRequest(no_cpu_idle)
        self._spins = SPINS
        self._in_a_row = 0
        self._fuse_fd = -1
        """The descriptor of /dev/fuse, once it has been waited for; -1 before."""
        self._poll = self._poll_either = poll_of()
        self._other_fd = -1

    def install(self) -> None:
        """Make pyfuse3 wait by this object, if its module holds trio under that name."""
        if getattr(pyfuse3, "trio", None) is trio:
            pyfuse3.trio = _Trio(self)  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> Any:
        return getattr(trio.lowlevel, name)

    async def wait_readable(self, fd: int) -> None:
        """Wait until ``fd`` is readable: polls first, then waits by trio.

        Raises ClosedResourceError, as trio's function does.
        """
        if fd != self._fuse_fd:
            self._fuse_fd, self._poll = fd, poll_of(fd)
        poll = self._poll
        if self._in_a_row < REQUESTS_IN_A_ROW:
            self._in_a_row += 1
            if poll(0):
                return
            since = perf_counter()
            for _ in range(self._spins):
                if poll(0):
                    return
            if self._is_alone():
                came = poll(INLINE_WAIT)
                self._adapt(perf_counter() - since)
                if came:
                    return
        elif self._cpu_latency.acquire():
            self._interrupter.start()
        self._in_a_row = 0
        if self._cpu_latency.held:
            with trio.move_on_after(INLINE_WAIT / 1000):
                await trio.lowlevel.wait_readable(fd)
                return
            self.release()
            if self._is_ending():  # notify_closing came while nothing waited in trio
                raise trio.ClosedResourceError
        await trio.lowlevel.wait_readable(fd)

    def comes_first(self, fd: int, milliseconds: int) -> bool:
        """Return whether ``fd`` becomes readable within that time, before a request comes."""
        if fd != self._other_fd:
            both = (each for each in (fd, self._fuse_fd) if each >= 0)
            self._other_fd, self._poll_either = fd, poll_of(*both)
        return any(ready == fd for ready, _ in self._poll_either(milliseconds))

    def has_ended(self) -> bool:
        """Wait up to ``ABORT_LIMIT``; return whether the kernel has ended the connection."""
        if self._fuse_fd < 0:
            return False
        poller = select.poll()
        poller.register(self._fuse_fd, 0)  # POLLERR is always reported
        return bool(poller.poll(ABORT_LIMIT))

    def _adapt(self, waited: float) -> None:
        """Poll longer for the next request if that would have caught this one."""
        if waited > WAKEUP_TIME or self._cpu_latency.held:
            self._spins = max(SPINS, self._spins // 2)
        else:
            self._spins = MAX_SPINS

    def release(self) -> None:
        """Let processors halt: no request comes, or no task takes one."""
        if self._cpu_latency.release():
            self._interrupter.stop()


class _Trio:
    """The module trio as pyfuse3 sees it: without locking, and with ``BusyPoll``."""

    Lock = _NoLock

    def __init__(self, lowlevel: BusyPoll) -> None:
        self.lowlevel = lowlevel

    def __getattr__(self, name: str) -> Any:
        return getattr(trio, name)
