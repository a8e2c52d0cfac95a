"""A timer signal that interrupts a read of /dev/fuse whose request was withdrawn.

The kernel withdraws a request when its caller is killed, also after poll(2) has reported it and
before we read it. The read then lasts until the next request comes. pyfuse3 reads with the GIL
held, so that no thread can deliver its result meanwhile.

So while a result is awaited, or processors are kept awake, a signal interrupts the read now and
then (EINTR, on which pyfuse3 tries again). No Python code could do that: it would need the GIL.
"""

from __future__ import annotations

import signal
from types import FrameType

SIGNAL = signal.SIGALRM
PERIOD = 0.1
"""Seconds between two signals: how late a result may be delivered in the worst case."""


class Tick:
    """The timer signal of this process; used on its main thread only."""

    def __init__(self) -> None:
        self._users = 0
        self._ticks = False

    def install(self) -> None:
        """Catch the signal from now on."""
        signal.signal(SIGNAL, self._tick)

    def remove(self) -> None:
        """Stop the timer, and ignore a signal that is still pending."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(SIGNAL, signal.SIG_IGN)
        self._ticks = False

    def start(self) -> None:
        """Count one more user of the signal, and start the timer if it is off."""
        self._users += 1
        if not self._ticks and signal.getsignal(SIGNAL) == self._tick:
            self._ticks = True
            signal.setitimer(signal.ITIMER_REAL, PERIOD, PERIOD)

    def stop(self) -> None:
        """Count one user less. The timer stops at its next signal, so that a ``start`` before that
        costs no system call."""
        self._users -= 1

    def _tick(self, _number: int, _frame: FrameType | None) -> None:
        if not self._users:
            self._ticks = False
            signal.setitimer(signal.ITIMER_REAL, 0)
