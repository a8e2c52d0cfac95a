"""A thread for the calls that a server may take any time for, though it is quick with most.

Giving a call to one of trio's threads, and taking in what it has done, are several turns of the
event loop. Here a descriptor becomes readable when a call is done, for which the event loop's
thread can wait a moment itself, and which trio can wait for after that.
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
        """Raises OSError or RuntimeError where there is no room for a descriptor or a thread."""
        self.is_idle = True
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Becomes readable when the call is done."""
        self._calls: SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...]] | None] = SimpleQueue()
        self._result: Any = None
        self._error: BaseException | None = None
        self._poll = poll_of(self.fd)
        # Whoever waits for a server that has stopped answering does not keep the process.
        self._thread = Thread(target=self._work, name="helper", daemon=True)
        self._thread.start()

    def give(self, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Have a call done; only while idle."""
        self.is_idle = False
        self._calls.put((call, args))

    def is_done(self, milliseconds: int) -> bool:
        """Whether the call is done within that time, which is waited for."""
        return bool(self._poll(milliseconds))

    def take(self) -> Any:
        """What the call returned or raised; only after ``fd`` has become readable."""
        os.eventfd_read(self.fd)
        self.is_idle = True
        result, error = self._result, self._error
        self._result = self._error = None
        if error is None:
            return result
        try:
            raise error
        finally:
            del error  # its traceback leads here

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
