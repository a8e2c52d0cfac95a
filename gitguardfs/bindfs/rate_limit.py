"""Limits on bytes a second (bindfs's ``--read-rate`` and ``--write-rate``)."""

from __future__ import annotations


class RateLimit:
    """One limit for everybody: each transfer waits until those before it have had their time."""

    def __init__(self, rate: float) -> None:
        """``rate`` is in bytes a second."""
        self._rate = rate
        self._free_at = 0.0

    def delay(self, size: int, now: float) -> float:
        """Return the seconds to wait before ``size`` bytes are through, at ``now`` (seconds)."""
        self._free_at = max(self._free_at, now) + size / self._rate
        return self._free_at - now
