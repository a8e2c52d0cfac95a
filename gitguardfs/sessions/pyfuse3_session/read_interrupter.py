"""A timer signal that interrupts a read of /dev/fuse whose request was withdrawn.

The kernel withdraws a request when its caller is killed, also after poll(2) has reported it and
before we read it. The read then lasts until the next request comes. pyfuse3 reads with the GIL
held, so that no thread can deliver its result meanwhile.

So a signal interrupts the read now and then, while a result is awaited. The read fails with EINTR,
and pyfuse3 tries again. No Python code could interrupt it: that would need the GIL.
"""

from __future__ import annotations

import signal
from types import FrameType

SIGNAL = signal.SIGALRM
PERIOD = 0.1
"""Seconds between two signals: how late a result may be delivered in the worst case."""


class ReadInterrupter:
    """The timer signal of this process; used on its main thread only."""

    def __init__(self) -> None:
        self._users = 0
        self._is_running = False

    def install(self) -> None:
        """Catch the signal from now on."""
        signal.signal(SIGNAL, self._on_signal)

    def remove(self) -> None:
        """Stop the timer, and ignore a signal that is still pending."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(SIGNAL, signal.SIG_IGN)
        self._is_running = False

    def start(self) -> None:
        """Count one more user of the signal, and start the timer if it is off."""
        self._users += 1
        if not self._is_running and signal.getsignal(SIGNAL) == self._on_signal:
            self._is_running = True
            signal.setitimer(signal.ITIMER_REAL, PERIOD, PERIOD)

    def stop(self) -> None:
        """Count one user less. The timer stops at its next signal if none is left.

        A ``start`` before that costs no system call.
        """
        self._users -= 1

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if not self._users:
            self._is_running = False
            signal.setitimer(signal.ITIMER_REAL, 0)
