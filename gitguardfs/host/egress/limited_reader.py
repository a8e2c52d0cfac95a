"""Limits how much of what a client sends is kept in memory.

mitmproxy reads from a client at all times. It keeps what it has read without a limit: the header of
a request or a chunk until its end, and all that cannot be sent on yet. The latter is so while it
looks up a host, connects to it, agrees on TLS with it or waits for its response.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

MAX_KEPT = 256 * 1024
"""Bytes that are read from a client while its request cannot be sent on. The rest waits in the
sockets. Some reading must go on: it shows when the client hangs up."""
MAX_WHOLE = 2 * 1024 * 1024
"""Bytes that are read of a request's header, or of the body of a blocked request. Such a body has
1 MiB at most, and more with TLS. Both are answered when they are complete."""


class Reader(Protocol):
    """Where the bytes of a connection come from, such as an asyncio.StreamReader."""

    async def read(self, size: int) -> bytes:
        """Return at most ``size`` bytes; none at the end."""


class LimitedReader:
    """A reader that stops after MAX_WHOLE bytes, or after those that ``permit`` allowed last."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._left = MAX_WHOLE
        self._may_read = asyncio.Event()
        self._may_read.set()

    def permit(self, size: int) -> None:
        """Let ``size`` more bytes be read, and then none until the next call."""
        self._left = size
        self._may_read.set()

    async def read(self, size: int) -> bytes:
        """Return at most ``size`` bytes, none at the end, when reading is permitted."""
        await self._may_read.wait()
        data = await self._reader.read(size)
        self._left -= len(data)
        if self._left <= 0:
            self._may_read.clear()
        return data
