"""Limits of reads and writes in bytes per second (bindfs's ``--read-rate``, ``--write-rate``)."""

from __future__ import annotations


class RateLimit:
    """One limit that all requests share: a transfer waits for those before it."""

    def __init__(self, rate: float) -> None:
        """Limit transfers to ``rate`` bytes per second."""
        self._rate = rate
        self._free_at = 0.0

    def delay(self, size: int, now: float) -> float:
        """Return how many seconds a transfer of ``size`` bytes waits from ``now`` (in seconds)."""
        self._free_at = max(self._free_at, now) + size / self._rate
        return self._free_at - now
