"""Getting out of a read for a request that is not there any more.

The kernel takes a request back when its caller is killed, also between saying that there is one
and our reading it. The read then lasts until the next request comes, and pyfuse3 reads with the
interpreter's lock held: no thread can deliver what it has done. So while there is something to
deliver, or to let go, a signal interrupts now and then whatever waits (EINTR, on which pyfuse3
tries again). No Python code could: it would need that lock.
"""

from __future__ import annotations

import signal
from types import FrameType

SIGNAL = signal.SIGALRM
PERIOD = 0.1
"""Seconds."""


class Tick:
    """The signal of this process; used on its main thread only."""

    def __init__(self) -> None:
        self._users = 0
        self._ticks = False

    def install(self) -> None:
        """Catch the signal from now on."""
        signal.signal(SIGNAL, self._tick)

    def remove(self) -> None:
        """Send no more of them; one that comes nevertheless does nothing."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(SIGNAL, signal.SIG_IGN)
        self._ticks = False

    def start(self) -> None:
        """One more has something to deliver."""
        self._users += 1
        if not self._ticks and signal.getsignal(SIGNAL) == self._tick:
            self._ticks = True
            signal.setitimer(signal.ITIMER_REAL, PERIOD, PERIOD)

    def stop(self) -> None:
        """One has delivered. The signal stops a little later, and costs nothing if it is
        needed again before that."""
        self._users -= 1

    def _tick(self, _number: int, _frame: FrameType | None) -> None:
        if not self._users:
            self._ticks = False
            signal.setitimer(signal.ITIMER_REAL, 0)
