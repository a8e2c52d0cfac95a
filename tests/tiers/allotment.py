"""How many tiers run at a time, and which processors they may use.

An emulated guest needs its processor's caches for itself. Where guests and mount tests share two
processors, the scheduler moves each of them about; with a processor each, the same work takes three
quarters of the processor time.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tests.tiers.catalogue import Tier

MOST_WORKERS = 8
"""Of one tier: its longest module bounds the gain, and tiers that run beside it have as many."""
WORKER_MEMORY = 1 << 30
"""Bytes that a machine has for each worker. It uses a quarter, with the programs of its tests."""


@dataclass(frozen=True)
class Lane:
    """Tiers that run one after the other."""

    number: int
    processors: frozenset[int]
    is_short: bool = False
    """Whether it is the lane of the short tiers."""

    @property
    def workers(self) -> int:
        """How many workers a tier has here whose tests are distributed."""
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return workers(len(self.processors), memory)


def workers(processors: int, memory: int) -> int:
    """Return the number of workers: two at least, since a test also waits for daemons."""
    return max(2, min(processors, memory // WORKER_MEMORY, MOST_WORKERS))


def lanes(chosen: Sequence[Tier], processors: Collection[int]) -> list[Lane]:
    """Return the lanes for the chosen tiers.

    Without a virtual machine, long tiers run one after the other: their tests are distributed to
    all processors. With one, as many run at a time as there are processors, each on its own; if
    there are more processors than tiers, the scheduler is left to distribute them. Tests in which
    processes compete use all processors nevertheless (tests/support/processors.py).
    """
    everywhere = frozenset(processors)
    long = [tier for tier in chosen if not tier.is_short]
    count = min(len(long), len(everywhere)) if any(tier.image for tier in long) else 1
    own = [frozenset({number}) for number in sorted(everywhere)]
    places = own if 1 < count == len(own) else [everywhere] * count
    found = [Lane(number, place) for number, place in enumerate(places)]
    return [*found, Lane(len(found), everywhere, is_short=True)]
