"""Waiting for the next request without a turn of trio's loop.

For each request pyfuse3's loop takes a lock and waits for its descriptor, which are two turns of
trio's scheduler, each with calls to epoll: more than everything else that a small request costs.
Here the descriptor is polled for a moment first, in which a program that makes one call after
another has sent its next one; for longer where waking up is what takes long. The lock is not
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
"""How often to look for the next request at once: about 15 us."""
MOST_LOOKS = 200
"""As long as requests come sooner than it takes to wake up for them."""
SOON = 200e-6
"""Seconds after which it would have been as well to sleep."""
PATIENCE = 2
"""Milliseconds to wait outside of trio's loop if nothing else is going on in it."""
ABORT = 100
"""Milliseconds that the kernel takes at most, while it ends a connection, from refusing replies to
saying so (fuse_abort_conn in fs/fuse/dev.c): microseconds, unless a hypervisor stalls us."""
REQUESTS_IN_A_ROW = 64
"""After so many, trio gets a turn whatever comes: signals have to be seen. And with
``--no-cpu-idle`` processors are kept awake (``cpu_latency``) until there is a pause."""

Poll = Callable[[int], list[tuple[int, int]]]


def poll_of(*fds: int) -> Poll:
    """A poll(2) for reading, given milliseconds, that was told of ``fds`` once and for all."""
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
    """How one mount waits for its requests: pyfuse3's trio.lowlevel, but for the one function."""

    def __init__(
        self,
        is_alone: Callable[[], bool],
        is_ending: Callable[[], bool],
        tick: Tick,
        *,
        no_cpu_idle: bool = False,
    ) -> None:
        """``is_alone`` says that no other task waits for anything but signals.

        ``is_ending`` says that no more requests are to be waited for, from before
        trio.lowlevel.notify_closing says so. ``no_cpu_idle`` keeps processors from being halted
        while many requests come in a row.
        """
        self._is_alone = is_alone
        self._is_ending = is_ending
        self._tick = tick
        self._awake = Awake(no_cpu_idle)
        self._looks = LOOKS
        self._in_a_row = 0
        self._requests = -1
        """The descriptor that requests come from, once they are waited for."""
        self._poll = self._poll_either = poll_of()
        self._other = -1

    def install(self) -> None:
        """Let pyfuse3 wait like this from now on, if its module knows trio by that name."""
        if getattr(pyfuse3, "trio", None) is trio:
            pyfuse3.trio = _Trio(self)  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> Any:
        return getattr(trio.lowlevel, name)

    async def wait_readable(self, fd: int) -> None:
        """As trio's, at once if a request comes soon; raises ClosedResourceError as trio's does."""
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
            if self._is_ending():  # said after that time was over: nobody was told
                raise trio.ClosedResourceError
        await trio.lowlevel.wait_readable(fd)

    def comes_first(self, fd: int, milliseconds: int) -> bool:
        """Whether ``fd`` becomes readable in that time and before there is a request."""
        if fd != self._other:
            both = (each for each in (fd, self._requests) if each >= 0)
            self._other, self._poll_either = fd, poll_of(*both)
        return any(ready == fd for ready, _ in self._poll_either(milliseconds))

    def has_ended(self) -> bool:
        """Return whether the kernel has ended the connection; waits a moment if it has not."""
        if self._requests < 0:
            return False
        poller = select.poll()
        poller.register(self._requests, 0)  # errors only, which are reported unasked
        return bool(poller.poll(ABORT))

    def _learn(self, waited: float) -> None:
        """Look longer for the next request if that would have caught this one."""
        if waited > SOON or self._awake.held:
            self._looks = max(LOOKS, self._looks // 2)
        else:
            self._looks = MOST_LOOKS

    def let_go(self) -> None:
        """Processors may be halted, since nothing comes or nobody takes it."""
        if self._awake.let_go():
            self._tick.stop()


class _Trio:
    """The module trio as pyfuse3 sees it."""

    Lock = _NoLock

    def __init__(self, lowlevel: Turns) -> None:
        self.lowlevel = lowlevel

    def __getattr__(self, name: str) -> Any:
        return getattr(trio, name)
