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

from gitguardfs.sessions.pyfuse3_session.cpu_latency import Awake
from gitguardfs.sessions.pyfuse3_session.read_interrupter import Tick

LOOKS = 20
"""How often to poll for the next request at once: about 15 us."""
MOST_LOOKS = 200
"""How often to poll while requests come sooner than the time that waking up takes."""
SOON = 200e-6
"""Seconds after which sleeping would have cost no more than polling."""
PATIENCE = 2
"""Milliseconds to wait outside of trio's event loop if no other task needs it."""
ABORT = 100
"""Milliseconds that the kernel takes at most, while it ends a connection, from refusing replies to
reporting POLLERR (fuse_abort_conn in fs/fuse/dev.c): microseconds, unless a VM is stalled."""
REQUESTS_IN_A_ROW = 64
"""Requests after which trio's event loop makes a pass in any case, so that signals are seen. With
``--no-cpu-idle``, processors are then kept awake (``cpu_latency``) until there is a pause."""

Poll = Callable[[int], list[tuple[int, int]]]


def poll_of(*fds: int) -> Poll:
    """Return a function that polls ``fds`` for reading, for so many milliseconds (poll(2))."""
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    return poller.poll


class _NoLock:
    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, *_: object) -> None:
        return None


class Turns:
    """Waits for the requests of one mount. Stands in for trio.lowlevel in pyfuse3."""

    def __init__(
        self,
        is_alone: Callable[[], bool],
        is_ending: Callable[[], bool],
        tick: Tick,
        *,
        no_cpu_idle: bool = False,
    ) -> None:
        """Prepare to wait; ``install`` makes pyfuse3 use this object.

        ``is_alone`` returns whether no other task waits for anything but signals. ``is_ending``
        returns whether no more requests are to be waited for; it does so before
        trio.lowlevel.notify_closing is called. ``no_cpu_idle`` keeps processors from halting while
        many requests come in a row.
        """
        self._is_alone = is_alone
        self._is_ending = is_ending
        self._tick = tick
        self._awake = Awake(no_cpu_idle)
        self._looks = LOOKS
        self._in_a_row = 0
        self._requests = -1
        """The descriptor of /dev/fuse, once it has been waited for; -1 before."""
        self._poll = self._poll_either = poll_of()
        self._other = -1

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
        if fd != self._requests:
            self._requests, self._poll = fd, poll_of(fd)
        poll = self._poll
        if self._in_a_row < REQUESTS_IN_A_ROW:
            self._in_a_row += 1
            if poll(0):
                return
            since = perf_counter()
            for _ in range(self._looks):
                if poll(0):
                    return
            if self._is_alone():
                came = poll(PATIENCE)
                self._learn(perf_counter() - since)
                if came:
                    return
        elif self._awake.hold():
            self._tick.start()
        self._in_a_row = 0
        if self._awake.held:
            with trio.move_on_after(PATIENCE / 1000):
                await trio.lowlevel.wait_readable(fd)
                return
            self.let_go()
            if self._is_ending():  # notify_closing came while nothing waited in trio
                raise trio.ClosedResourceError
        await trio.lowlevel.wait_readable(fd)

    def comes_first(self, fd: int, milliseconds: int) -> bool:
        """Return whether ``fd`` becomes readable within that time, before a request comes."""
        if fd != self._other:
            both = (each for each in (fd, self._requests) if each >= 0)
            self._other, self._poll_either = fd, poll_of(*both)
        return any(ready == fd for ready, _ in self._poll_either(milliseconds))

    def has_ended(self) -> bool:
        """Return whether the kernel has ended the connection; waits up to ``ABORT`` for that."""
        if self._requests < 0:
            return False
        poller = select.poll()
        poller.register(self._requests, 0)  # POLLERR is always reported
        return bool(poller.poll(ABORT))

    def _learn(self, waited: float) -> None:
        """Poll longer for the next request if that would have caught this one."""
        if waited > SOON or self._awake.held:
            self._looks = max(LOOKS, self._looks // 2)
        else:
            self._looks = MOST_LOOKS

    def let_go(self) -> None:
        """Allow processors to halt: no request comes, or no task takes one."""
        if self._awake.let_go():
            self._tick.stop()


class _Trio:
    """The module trio as pyfuse3 sees it: without locking, and with ``Turns``."""

    Lock = _NoLock

    def __init__(self, lowlevel: Turns) -> None:
        self.lowlevel = lowlevel

    def __getattr__(self, name: str) -> Any:
        return getattr(trio, name)
