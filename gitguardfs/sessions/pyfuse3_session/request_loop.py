"""The requests of one mount as pyfuse3 takes them, and the calls that they wait for.

pyfuse3.main starts another task whenever none waits for requests.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pyfuse3
import trio

from gitguardfs.base.signals import leave_to_main_thread
from gitguardfs.fs.blocking import Blocking
from gitguardfs.sessions.pyfuse3_session.internals import LOG, RequestWait, UnwantedReplies
from gitguardfs.sessions.pyfuse3_session.io_thread import IoThread
from gitguardfs.sessions.pyfuse3_session.read_interrupter import ReadInterrupter

WORKERS = 32
"""Threads for calls that wait, at most. More would not make a disk faster."""
ANY_NUMBER = 2**31 - 1
"""Tasks at most: each request that waits has one, and another has to take the next request."""

R = TypeVar("R")


class RequestLoop:
    """The requests of one mount; used on the event loop's thread only."""

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(WORKERS)
        self._queues: dict[Hashable, trio.CapacityLimiter] = {}
        self._waiting = 0
        self._ending = trio.Event()
        self._interrupter = ReadInterrupter()
        self._request_wait = RequestWait(lambda: not self._waiting, self._ending.set)
        self._io_thread: IoThread | None = None
        self.answers = 0
        """How many calls that were waited for have returned. The number only grows."""

    def stop(self) -> None:
        """Finish the requests under way, and take no more."""
        self._ending.set()
        pyfuse3.terminate()

    def install(self) -> None:
        """Make pyfuse3 wait by ``RequestWait``. Call it before pyfuse3.init."""
        self._request_wait.install()

    async def serve(self) -> None:
        """Serve until the file system is unmounted or ``stop`` is called."""
        self._interrupter.install()
        unwanted = UnwantedReplies(self._request_wait.has_ended)
        LOG.addFilter(unwanted)
        try:
            self._io_thread = IoThread()
            await pyfuse3.main(max_tasks=ANY_NUMBER)
            self._io_thread.close()
        finally:
            LOG.removeFilter(unwanted)
            self._interrupter.remove()

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
        if self._waiting or not self._request_wait.comes_first(io_thread.fd, alone=quick):
            with self._others_served(), trio.CancelScope(shield=True):
                await trio.lowlevel.wait_readable(io_thread.fd)
        return io_thread.result()  # type: ignore[no-any-return]

    async def pause(self, seconds: float) -> None:
        """Wait while other requests are served, at most until ``stop`` is called."""
        with self._others_served(), trio.move_on_after(seconds):
            await self._ending.wait()

    @contextmanager
    def _others_served(self) -> Iterator[None]:
        self._waiting += 1
        self._interrupter.start()
        try:
            yield
        finally:
            self.answers += 1
            self._waiting -= 1
            self._interrupter.stop()


def _call_on_worker(call: Callable[..., R], args: tuple[Any, ...]) -> R:
    leave_to_main_thread()
    return call(*args)
