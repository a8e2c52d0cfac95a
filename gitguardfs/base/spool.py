"""Writes queued items on a thread, so that their producers never wait for a disk or journal."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from gitguardfs.base.signals import leave_to_main_thread

T = TypeVar("T")


class Spool(Generic[T]):
    """A bounded queue with one writer thread."""

    def __init__(self, name: str, write: Callable[[T], None], length: int) -> None:
        """Start the thread ``name``. At most ``length`` items wait.

        ``write`` is called with each item. It must report its own errors.
        """
        self._write = write
        self._queue: queue.Queue[T | None] = queue.Queue(length)
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def put(self, item: T) -> bool:
        """Queue an item. Returns False if the queue is full."""
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            return False
        return True

    def close(self, queue_limit: float, write_limit: float) -> None:
        """Write all queued items, and end the thread.

        Waits at most ``queue_limit`` seconds for a free place in the queue, then at most
        ``write_limit`` seconds for the writer. After that the thread ends with the process.
        """
        with suppress(queue.Full):
            self._queue.put(None, timeout=queue_limit)
            self._thread.join(write_limit)

    def _work(self) -> None:
        leave_to_main_thread()
        while (item := self._queue.get()) is not None:
            with suppress(Exception):  # the next item may succeed
                self._write(item)
