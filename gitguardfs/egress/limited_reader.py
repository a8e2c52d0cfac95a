"""Limits how much of what a client sends is kept in memory while it cannot be sent on.

mitmproxy reads from a client at all times, also while it looks up a host, connects to it, agrees on
TLS with it or waits for its response. It keeps what it has read in a queue without a limit.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

MAX_KEPT = 256 * 1024
"""Bytes that are read from a client while its request cannot be sent on. The rest waits in the
sockets. Some reading must go on: it shows when the client hangs up."""


class Reader(Protocol):
    """Where the bytes of a connection come from, such as an asyncio.StreamReader."""

    async def read(self, size: int) -> bytes:
        """Return at most ``size`` bytes; none at the end."""


class LimitedReader:
    """A reader that stops after MAX_KEPT bytes between ``hold`` and ``release``."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._kept = 0
        self._is_held = False
        self._may_read = asyncio.Event()
        self._may_read.set()

    def hold(self) -> None:
        """Let MAX_KEPT more bytes be read, and then none until ``release``."""
        self._kept = 0
        self._is_held = True
        self._may_read.set()

    def release(self) -> None:
        """Let everything be read again."""
        self._is_held = False
        self._may_read.set()

    async def read(self, size: int) -> bytes:
        """Return at most ``size`` bytes, none at the end, when reading is permitted."""
        await self._may_read.wait()
        data = await self._reader.read(size)
        self._kept += len(data)
        if self._is_held and self._kept >= MAX_KEPT:
            self._may_read.clear()
        return data
