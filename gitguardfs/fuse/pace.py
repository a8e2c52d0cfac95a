"""Whether a kind of call has been quick of late, and may be done without a thread."""

from __future__ import annotations

QUICK = 500e-6
"""Seconds; a change of thread takes a tenth of that, and so long may everybody else wait."""
TRUST = 4
"""Quick calls in a row before the next one is expected to be quick."""


class Pace:
    """How long calls of one kind take."""

    def __init__(self) -> None:
        self._in_a_row = 0

    @property
    def is_quick(self) -> bool:
        """Whether the next one can be expected to be quick."""
        return self._in_a_row >= TRUST

    def note(self, seconds: float) -> None:
        """Take in how long one took."""
        self._in_a_row = self._in_a_row + 1 if seconds < QUICK else 0
