"""The session loop: one task that reads requests, and one more for each that waits for a call.

pyfuse3.main always keeps two tasks, which hand a lock to one another for every request. That costs
two passes of the event loop where one would do. Here a second task is started only when the first
has given its call to a thread. A task ends as soon as another one waits for requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pyfuse3
import trio

from gitguardfs.daemon.signals import leave_to_main_thread
from gitguardfs.sessions.pyfuse3_session.busy_poll import Turns
from gitguardfs.sessions.pyfuse3_session.io_thread import Helper
from gitguardfs.sessions.pyfuse3_session.read_interrupter import Tick
from gitguardfs.sessions.pyfuse3_session.unwanted_replies import UnwantedReplies

WORKERS = 32
"""Threads for calls that wait, at most. More would not make a disk faster."""

PATIENCE = 2
"""Milliseconds to wait for a call outside of trio's event loop, if no other task waits."""

NO_IDLE_TASK, NO_FURTHER_TASK = 0, -(2**31)
"""Arguments of pyfuse3's loop: end if another task waits for requests; start no task."""

R = TypeVar("R")


class Requests:
    """The request loops of one mount; used on the event loop's thread only."""

    def __init__(self, *, no_cpu_idle: bool = False) -> None:
        """``no_cpu_idle`` keeps processors from halting while requests come in a row."""
        self._no_cpu_idle = no_cpu_idle
        self._limiter = trio.CapacityLimiter(WORKERS)
        self._nursery: trio.Nursery | None = None
        self._loops = 0
        self._waiting = 0
        self._ending = trio.Event()
        self._tick = Tick()
        self._turns: Turns | None = None
        self._helper: Helper | None = None
        self.answers = 0
        """How many calls that were waited for have returned. The number only grows."""

    def end(self) -> None:
        """Finish the requests under way, and take no more."""
        self._ending.set()
        pyfuse3.terminate()

    @property
    def is_ending(self) -> bool:
        """Whether only the requests under way are still finished."""
        return self._ending.is_set()

    async def serve(self) -> None:
        """Serve until the file system is unmounted or ``end`` is called."""
        if not hasattr(pyfuse3, "_session_loop"):  # private; in every release so far
            await pyfuse3.main()
            return
        self._tick.install()
        self._turns = Turns(
            lambda: self._waiting == 0,
            self._ending.is_set,
            self._tick,
            no_cpu_idle=self._no_cpu_idle,
        )
        self._turns.install()
        unwanted = UnwantedReplies(self._turns.has_ended)
        unwanted.install()
        try:
            self._helper = Helper()
            async with trio.open_nursery() as self._nursery:
                self._start_loop(self._nursery)
            self._helper.close()
        finally:
            unwanted.remove()
            self._tick.remove()

    def _start_loop(self, nursery: trio.Nursery) -> None:
        self._loops += 1
        nursery.start_soon(self._loop, nursery)

    async def _loop(self, nursery: trio.Nursery) -> None:
        try:
            await pyfuse3._session_loop(nursery, NO_IDLE_TASK, NO_FURTHER_TASK)  # type: ignore[attr-defined]
        finally:
            self.answers += 1
            self._loops -= 1
            if self._loops == self._waiting:  # the session has ended: no task takes requests
                self._ending.set()
                if self._turns is not None:
                    self._turns.let_go()

    async def wait(self, call: Callable[..., R], *args: Any, quick: bool = False) -> R:
        """Run a call on a thread while other requests are served; return what it returns.

        If the call is expected to be ``quick``, other requests wait a moment for it. Raises what
        the call raises.
        """
        helper = self._helper
        if helper is None or not helper.is_idle:
            with self._others_served():
                return await trio.to_thread.run_sync(_call, call, args, limiter=self._limiter)
        helper.give(call, args)
        if self._waiting or not self._comes_soon(helper, quick):
            with self._others_served(), trio.CancelScope(shield=True):
                await trio.lowlevel.wait_readable(helper.fd)
        return helper.take()  # type: ignore[no-any-return]

    def _comes_soon(self, helper: Helper, quick: bool) -> bool:
        if quick or self._turns is None:
            return helper.is_done(PATIENCE)
        return self._turns.comes_first(helper.fd, PATIENCE)

    async def pause(self, seconds: float) -> None:
        """Wait while other requests are served, at most until ``end`` is called."""
        with self._others_served(), trio.move_on_after(seconds):
            await self._ending.wait()

    @contextmanager
    def _others_served(self) -> Iterator[None]:
        self._waiting += 1
        self._tick.start()
        if self._nursery is not None and self._waiting == self._loops:
            self._start_loop(self._nursery)
        try:
            yield
        finally:
            self.answers += 1
            self._waiting -= 1
            self._tick.stop()


def _call(call: Callable[..., R], args: tuple[Any, ...]) -> R:
    leave_to_main_thread()
    return call(*args)
