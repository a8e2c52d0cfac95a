"""The session loop: one task that reads requests, and one more for each that waits for a call.

pyfuse3.main always keeps two tasks, which pass a lock to each other for every request. That costs
two passes of the event loop where one would do. Here a second task is started only when the first
has handed its call to a thread. A task ends as soon as another one waits for requests.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pyfuse3
import trio

from gitguardfs.base.signals import leave_to_main_thread
from gitguardfs.fs.blocking import Blocking
from gitguardfs.sessions.pyfuse3_session.busy_poll import INLINE_WAIT, BusyPoll
from gitguardfs.sessions.pyfuse3_session.io_thread import IoThread
from gitguardfs.sessions.pyfuse3_session.read_interrupter import ReadInterrupter
from gitguardfs.sessions.pyfuse3_session.unwanted_replies import LOG, UnwantedReplies

WORKERS = 32
"""Threads for calls that wait, at most. More would not make a disk faster."""

NO_IDLE_TASK, NO_FURTHER_TASK = 0, -(2**31)
"""Arguments of pyfuse3's loop: end if another task waits for requests; start no task."""

R = TypeVar("R")


class RequestLoop:
    """The tasks that take requests of one mount; used on the event loop's thread only."""

    def __init__(self, *, no_cpu_idle: bool = False) -> None:
        self._no_cpu_idle = no_cpu_idle
        self._limiter = trio.CapacityLimiter(WORKERS)
        self._queues: dict[Hashable, trio.CapacityLimiter] = {}
        self._nursery: trio.Nursery | None = None
        self._tasks = 0
        self._waiting = 0
        self._ending = trio.Event()
        self._interrupter = ReadInterrupter()
        self._busy_poll: BusyPoll | None = None
        self._io_thread: IoThread | None = None
        self.answers = 0
        """How many calls that were waited for have returned. The number only grows."""

    def stop(self) -> None:
        """Finish the requests under way, and take no more."""
        self._ending.set()
        pyfuse3.terminate()

    @property
    def is_ending(self) -> bool:
        """Whether the session only finishes the requests under way."""
        return self._ending.is_set()

    def install(self) -> None:
        """Make pyfuse3 wait by ``BusyPoll``. Call it before pyfuse3.init.

        In releases before 3.4.1, pyfuse3.init creates the lock of pyfuse3's loop.
        """
        if not hasattr(pyfuse3, "_session_loop"):  # private; in every release so far
            return
        self._busy_poll = BusyPoll(
            lambda: self._waiting == 0,
            self._ending.is_set,
            self._interrupter,
            no_cpu_idle=self._no_cpu_idle,
        )
        self._busy_poll.install()

    async def serve(self) -> None:
        """Serve until the file system is unmounted or ``stop`` is called."""
        if self._busy_poll is None:
            await pyfuse3.main()
            return
        self._interrupter.install()
        unwanted = UnwantedReplies(self._busy_poll.has_ended)
        LOG.addFilter(unwanted)
        try:
            self._io_thread = IoThread()
            async with trio.open_nursery() as self._nursery:
                self._start_task(self._nursery)
            self._io_thread.close()
        finally:
            LOG.removeFilter(unwanted)
            self._interrupter.remove()

    def _start_task(self, nursery: trio.Nursery) -> None:
        self._tasks += 1
        nursery.start_soon(self._loop, nursery)

    async def _loop(self, nursery: trio.Nursery) -> None:
        try:
            await pyfuse3._session_loop(nursery, NO_IDLE_TASK, NO_FURTHER_TASK)  # type: ignore[attr-defined]
        finally:
            self.answers += 1
            self._tasks -= 1
            if self._tasks == self._waiting:  # the session has ended: no task takes requests
                self._ending.set()
                if self._busy_poll is not None:
                    self._busy_poll.release()

    async def run(self, blocking: Blocking[R]) -> R:
        """Make the blocking call of a request, inline or on a thread; return the reply.

        Raises the error of any step.
        """
        with blocking:
            if blocking.runs_inline:
                result = blocking.run()
            else:
                result = await self.run_in_thread(
                    blocking.run, quick=blocking.likely_quick, queue=blocking.queue
                )
        reply = blocking.finish(result)
        delay = blocking.delay(reply)
        if delay:
            await self.pause(delay)
        return reply

    async def run_in_thread(
        self, call: Callable[..., R], *args: Any, quick: bool = False, queue: Hashable = None
    ) -> R:
        """Run a call on a thread while other requests are served; return what it returns.

        If the call is expected to be ``quick``, other requests wait a moment for it; with a
        ``queue`` it waits for others with the same, and takes no thread that others wait for.
        Raises what the call raises.
        """
        io_thread = self._io_thread
        if queue is not None or io_thread is None or not io_thread.is_idle:
            limiter = self._limiter
            if queue is not None:
                limiter = self._queues.setdefault(queue, trio.CapacityLimiter(1))
            with self._others_served():
                return await trio.to_thread.run_sync(_call_on_worker, call, args, limiter=limiter)
        io_thread.submit(call, args)
        if self._waiting or not self._is_done_soon(io_thread, quick):
            with self._others_served(), trio.CancelScope(shield=True):
                await trio.lowlevel.wait_readable(io_thread.fd)
        return io_thread.result()  # type: ignore[no-any-return]

    def _is_done_soon(self, io_thread: IoThread, quick: bool) -> bool:
        if quick or self._busy_poll is None:
            return io_thread.is_done(INLINE_WAIT)
        return self._busy_poll.comes_first(io_thread.fd, INLINE_WAIT)

    async def pause(self, seconds: float) -> None:
        """Wait while other requests are served, at most until ``stop`` is called."""
        with self._others_served(), trio.move_on_after(seconds):
            await self._ending.wait()

    @contextmanager
    def _others_served(self) -> Iterator[None]:
        self._waiting += 1
        self._interrupter.start()
        if self._nursery is not None and self._waiting == self._tasks:
            self._start_task(self._nursery)
        try:
            yield
        finally:
            self.answers += 1
            self._waiting -= 1
            self._interrupter.stop()


def _call_on_worker(call: Callable[..., R], args: tuple[Any, ...]) -> R:
    leave_to_main_thread()
    return call(*args)
