"""A thread that ends the daemon in time if the source's server stops answering.

The main thread makes most calls on the source, and such a call waits for the server without being
interrupted by signals. Then no signal handler runs, nothing is unmounted, and every access to the
view hangs. So a thread that never touches the source watches the end of the daemon.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread

from gitguardfs.base import signals

SILENCE = 10.0
"""Seconds without an answer from the source after which requests under way are aborted."""
LIMIT = 60.0
"""Seconds for which requests under way are drained at most; systemd sends SIGKILL after 90."""
CHECK_PERIOD = 0.5
"""Seconds between two checks. Each also sees signals that the main thread has not taken yet."""


class Drain:
    """Watches the end of a daemon and calls ``give_up`` if it takes too long.

    Leaving the with statement ends the thread.
    """

    def __init__(
        self,
        answers: Callable[[], int],
        give_up: Callable[[], None],
        mounts_changed: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare the thread; the with statement starts it. Raises OSError.

        ``answers`` returns how many requests the source has answered so far. ``give_up`` is called
        at most once, on the thread. It must not touch the source, and need not return. Nor may
        ``mounts_changed``, which is called there when the mounts of this namespace have changed.
        """
        self._answers = answers
        self._give_up = give_up
        self._mounts_changed = mounts_changed
        self._mounts = open("/proc/self/mountinfo", "rb")  # noqa: SIM115
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.has_begun = False
        """Whether the daemon has begun to end."""
        self._done = Event()
        self._thread = Thread(target=self._watch, name="drain", daemon=True)

    def __enter__(self) -> Drain:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self.begin()
        self._thread.join()
        self._mounts.close()
        os.close(self._wake)

    def begin(self) -> None:
        """Start the clock: the daemon has begun to end."""
        self.has_begun = True
        os.eventfd_write(self._wake, 1)

    def _watch(self) -> None:
        signals.leave_to_main_thread()
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(self._mounts, select.POLLPRI)
        # A signal that the main thread has not taken is pending, since this thread blocks it.
        while not self.has_begun and signal.sigpending().isdisjoint(signals.ENDING):
            if poll.poll(CHECK_PERIOD * 1000) and not self.has_begun:
                with suppress(OSError):
                    self._mounts_changed()
        begun = answered = time.monotonic()
        answers = self._answers()
        while not self._done.wait(CHECK_PERIOD):
            now = time.monotonic()
            if (count := self._answers()) != answers:
                answers, answered = count, now
            if now - answered > SILENCE or now - begun > LIMIT:
                self._give_up()
                return


def close_device(path: str) -> None:
    """Close every descriptor of a FUSE device: the kernel then fails all waiting requests."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") == path:
                os.close(int(name))
        except OSError:  # the listing's own descriptor
            continue
