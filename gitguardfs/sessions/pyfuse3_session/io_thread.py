"""A thread for calls that are mostly quick, but that a server may take any time for.

Giving a call to one of trio's threads, and taking its result, costs several passes of the event
loop. Here a descriptor becomes readable when a call is done. The event loop's thread can wait a
moment for that by itself, and by trio after that.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any

from gitguardfs.daemon.signals import leave_to_main_thread
from gitguardfs.sessions.pyfuse3_session.busy_poll import poll_of


class Helper:
    """One thread, which takes one call at a time; used by the event loop's thread only."""

    def __init__(self) -> None:
        """Start the thread. Raises OSError or RuntimeError if there is no descriptor or thread."""
        self.is_idle = True
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Becomes readable when the call is done."""
        self._calls: SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...]] | None] = SimpleQueue()
        self._result: Any = None
        self._error: BaseException | None = None
        self._poll = poll_of(self.fd)
        # daemon: a thread that waits for a dead server must not keep the process from ending.
        self._thread = Thread(target=self._work, name="helper", daemon=True)
        self._thread.start()

    def give(self, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Submit a call. The thread must be idle."""
        self.is_idle = False
        self._calls.put((call, args))

    def is_done(self, milliseconds: int) -> bool:
        """Wait for the call, at most for that time; return whether it is done."""
        return bool(self._poll(milliseconds))

    def take(self) -> Any:
        """Return or raise what the call did. Only after ``fd`` has become readable."""
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
        while (given := self._calls.get()) is not None:
            call, args = given
            try:
                self._result = call(*args)
            except BaseException as error:
                self._error = error
            del given, call, args
            os.eventfd_write(self.fd, 1)
