"""Leaving in time although the source's server does not answer any more.

The main thread makes most calls on the source itself, and the kernel waits for a server without
letting signals through: then no handler runs, nothing is unmounted, and every access to the view
hangs. A thread that never touches the source watches the end for that.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from threading import Event, Thread

from gitguardfs.daemon import signals

SILENCE = 10.0
"""Seconds without an answer from the source after which requests under way are given up."""
LIMIT = 60.0
"""Seconds for which requests under way are drained at most; systemd kills after 90."""
LOOK = 0.5
"""Seconds between two looks. A signal that waits for the main thread is seen at a look."""


class Drain:
    """Watches one daemon's end, and gives up for it.

    It ends, with nothing done, when the body of its with statement does.
    """

    def __init__(self, answers: Callable[[], int], give_up: Callable[[], None]) -> None:
        """Remember what to watch.

        ``answers`` returns how many requests the source has answered so far. ``give_up`` is called
        on the thread, once; it must not touch the source, and is not expected to return.
        """
        self._answers = answers
        self._give_up = give_up
        self._begun = Event()
        self._done = Event()
        self._thread = Thread(target=self._watch, name="drain", daemon=True)

    def __enter__(self) -> Drain:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._begun.set()
        self._thread.join()

    def begin(self) -> None:
        """Count from now: the end has begun."""
        self._begun.set()

    def _watch(self) -> None:
        signals.leave_to_main_thread()
        # What the main thread has not taken is pending for the process, and blocked here.
        while not self._begun.wait(LOOK) and signal.sigpending().isdisjoint(signals.ENDING):
            pass
        begun = answered = time.monotonic()
        answers = self._answers()
        while not self._done.wait(LOOK):
            now = time.monotonic()
            if (count := self._answers()) != answers:
                answers, answered = count, now
            if now - answered > SILENCE or now - begun > LIMIT:
                self._give_up()
                return


def close_device(path: str) -> None:
    """Close every descriptor of a FUSE device: the kernel then answers whoever waits for it."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") == path:
                os.close(int(name))
        except OSError:  # the listing's own descriptor
            continue
