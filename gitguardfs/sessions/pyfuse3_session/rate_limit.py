"""Limits on bytes a second (bindfs's ``--read-rate`` and ``--write-rate``)."""

from __future__ import annotations

import trio

from gitguardfs.serving.boundary import Guarded
from gitguardfs.sessions.pyfuse3_session.answers import ReadData
from gitguardfs.sessions.pyfuse3_session.handler import handler
from gitguardfs.sessions.pyfuse3_session.handlers import Operations


class Rate:
    """One limit for everybody: each transfer waits until those before it have had their time."""

    def __init__(self, rate: float) -> None:
        """``rate`` is in bytes a second."""
        self._rate = rate
        self._free_at = 0.0

    def wait_for(self, size: int, now: float) -> float:
        """Seconds to wait before ``size`` bytes are through, at the time ``now`` (seconds)."""
        self._free_at = max(self._free_at, now) + size / self._rate
        return self._free_at - now


class LimitedOperations(Operations):
    """A mount whose reads and writes are held back."""

    _reads: Rate | None = None
    _writes: Rate | None = None

    def limit(self, read_rate: float | None, write_rate: float | None) -> None:
        """Set the limits, in bytes a second; None for none."""
        self._reads = None if read_rate is None else Rate(read_rate)
        self._writes = None if write_rate is None else Rate(write_rate)

    @handler(Guarded.HANDLE)
    async def read(self, fh: int, off: int, size: int) -> ReadData:  # type: ignore[override]
        """Read, and answer when the bytes may have come."""
        data = await super().read(fh, off, size)
        await self._hold(self._reads, len(data))
        return data

    @handler(Guarded.HANDLE)
    async def write(self, fh: int, off: int, buf: bytes) -> int:
        """Write, and answer when the bytes may have gone."""
        done = await super().write(fh, off, buf)
        await self._hold(self._writes, done)
        return done

    async def _hold(self, rate: Rate | None, size: int) -> None:
        if rate is not None:
            await self.requests.pause(rate.wait_for(size, trio.current_time()))
