"""Whether a kind of call has been quick of late, so that everybody may wait for the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, TypeVar

QUICK = 500e-6
"""Seconds; a change of thread takes a tenth of that, and so long may everybody else wait."""
TRUST = 4
"""Quick calls in a row before the next one is expected to be quick."""

R = TypeVar("R")


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
    def under_way(self) -> Iterator[None]:
        """While one is under way. On the event loop's thread only."""
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1

    def timed(self, call: Callable[..., R], *args: Any) -> R:
        """Do one, on whatever thread, and note how long it takes."""
        since = perf_counter()
        try:
            return call(*args)
        finally:
            took = perf_counter() - since
            self._in_a_row = self._in_a_row + 1 if took < QUICK else 0
