"""A thread for calls that are mostly quick, but may have to wait for a server.

Handing a call to one of trio's threads, and its result back, costs several passes of the event
loop. Here a descriptor becomes readable when a call is done. The event loop's thread waits for it a
moment by itself, and then by trio.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any

from gitguardfs.base.signals import leave_to_main_thread


class IoThread:
    """One thread, which takes one call at a time; used by the event loop's thread only."""

    def __init__(self) -> None:
        """Start the thread. Raises OSError or RuntimeError if there is no descriptor or thread."""
        self.is_idle = True
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Becomes readable when the call is done."""
        self._calls: SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...]] | None] = SimpleQueue()
        self._result: Any = None
        self._error: BaseException | None = None
        # daemon: a thread that waits for a dead server must not keep the process from ending.
        self._thread = Thread(target=self._work, name="io", daemon=True)
        self._thread.start()

    def submit(self, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Submit a call. The thread must be idle."""
        self.is_idle = False
        self._calls.put((call, args))

    def result(self) -> Any:
        """Return what the call returned, or raise what it raised. Only after ``fd`` is readable."""
        os.eventfd_read(self.fd)
        self.is_idle = True
        result, error = self._result, self._error
        self._result = self._error = None
        if error is None:
            return result
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame

    def close(self) -> None:
        """End the thread, which must be idle."""
        self._calls.put(None)
        self._thread.join()
        os.close(self.fd)

    def _work(self) -> None:
        leave_to_main_thread()
        while (submitted := self._calls.get()) is not None:
            call, args = submitted
            try:
                self._result = call(*args)
            except BaseException as error:
                self._error = error
            del submitted, call, args
            os.eventfd_write(self.fd, 1)
