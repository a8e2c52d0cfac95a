"""Whether a kind of call has been quick of late, and may be done without a thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

QUICK = 500e-6
"""Seconds; a change of thread takes a tenth of that, and so long may everybody else wait."""
TRUST = 4
"""Quick calls in a row before the next one is expected to be quick."""


class Pace:
    """How long calls of one kind take."""

    def __init__(self) -> None:
        self._in_a_row = 0
        self._under_way = 0

    @property
    def is_quick(self) -> bool:
        """Whether the next one can be expected to be quick: it would wait for one that is not."""
        return self._in_a_row >= TRUST and not self._under_way

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Take in how long one takes."""
        self._under_way += 1
        since = perf_counter()
        try:
            yield
        finally:
            self._under_way -= 1
            took = perf_counter() - since
            self._in_a_row = self._in_a_row + 1 if took < QUICK else 0
