"""A thread that writes what others hand over, so that they never wait for a disk or a journal."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from gitguardfs.daemon.signals import leave_to_main_thread

T = TypeVar("T")


class Spool(Generic[T]):
    """Items on their way to one writer."""

    def __init__(self, name: str, write: Callable[[T], None], length: int) -> None:
        """Start the thread ``name``; ``length`` items may wait. ``write`` reports its errors."""
        self._write = write
        self._queue: queue.Queue[T | None] = queue.Queue(length)
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def put(self, item: T) -> bool:
        """Hand over an item; returns False if too many wait already."""
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            return False
        return True

    def close(self, room: float, patience: float) -> None:
        """Have all that waits written, and end the thread.

        Gives up after ``room`` seconds of waiting for a free place, or ``patience`` seconds of
        waiting for the writer: the thread then ends with the process.
        """
        with suppress(queue.Full):
            self._queue.put(None, timeout=room)
            self._thread.join(patience)

    def _work(self) -> None:
        leave_to_main_thread()
        while (item := self._queue.get()) is not None:
            with suppress(Exception):  # the next one may go
                self._write(item)
