"""Limits for clients: how many there may be, how long one may be idle, how much of one is kept.

A connection is busy while an allowed request on it waits for the end of its response; otherwise it
is idle. Idle connections are closed to make room, so a user of the host who opens many connections
does not keep the guest out.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from asyncio.trsock import TransportSocket
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

log = logging.getLogger("gitguardfs.host.egress")

MAX_CONNECTIONS = 128
"""Connections at the same time. Package managers open some dozens. For each, QEMU starts a process
of the host's user."""
FIRST_REQUEST_LIMIT = 120.0
"""Seconds from the connection to the end of the first request's header. CONNECT does not count. An
emulated guest needs more than 30 s for twenty TLS handshakes at once."""
IDLE_LIMIT = 300.0
"""Seconds from a response to the end of the next request's header. Most clients and servers keep
idle connections for less."""

SETTLED = 1.0
"""Seconds for which a connection must have been idle to be closed for another: its last response
has been sent by then."""
MAX_WAITING = 24
"""Most connections that wait for another one to end or become idle. A VM's relay lets some more
through, so that the proxy can tell these clients the reason."""
WAIT_LIMIT = 120.0
"""Seconds for which a connection waits."""
TOO_MANY = (
    f"{MAX_CONNECTIONS} connections were in use for {WAIT_LIMIT:g} seconds, or {MAX_WAITING} more"
    " waited: use fewer at a time"
)

BUFFER = 64 * 1024
"""Bytes for each of the two buffers that the kernel has for a client. By itself it takes up to
6 MiB for each, which a client fills by taking nothing of a download."""
SERVER_WINDOW = 1024 * 1024
"""Bytes that a server may send ahead. They are read only when the client has taken what came."""
SERVER_UNSENT = 256 * 1024
"""Bytes that wait in the kernel until a server takes them."""
STALL_LIMIT = 300.0
"""Seconds for which a client may take none of the bytes sent to it."""


def limit_client(client: socket.socket | TransportSocket) -> None:
    """Limit the kernel's buffers for a client, and their time. Raises OSError."""
    for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        client.setsockopt(socket.SOL_SOCKET, buffer, BUFFER)
    if sys.platform == "linux":  # without it, a closed connection waits for its client for ever
        milliseconds = int(STALL_LIMIT * 1000)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


def limit_server(server: socket.socket) -> None:
    """Limit the kernel's buffers for a server, before connecting to it. Raises OSError."""
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, SERVER_UNSENT)
    if sys.platform == "linux":
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, SERVER_WINDOW)


class Clients:
    """The connected and the idle clients. Used by the event loop's thread only."""

    def __init__(self, close: Callable[[str], None]) -> None:
        self._close = close
        self._all: set[str] = set()
        self._idle: dict[str, tuple[float, asyncio.TimerHandle]] = {}
        """Idle clients, the longest idle first: since when, and the timer that closes each."""
        self._waiting = 0
        self._turn = asyncio.Lock()
        self._change = asyncio.Event()

    async def add(self, client: str) -> bool:
        """Count a new client. If there are too many, close the longest idle one, or wait for it.

        Returns False, and does not count the client, if there is no room for long.
        """
        if self._waiting >= MAX_WAITING:
            return False
        self._waiting += 1
        try:
            async with asyncio.timeout(WAIT_LIMIT), self._turn:
                while not self._has_room():
                    self._change.clear()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(SETTLED):
                            await self._change.wait()
        except TimeoutError:
            return False
        finally:
            self._waiting -= 1
        self._all.add(client)
        self._wait(client, FIRST_REQUEST_LIMIT)
        return True

    def _has_room(self) -> bool:
        """Return whether one more can be counted; close the longest idle one for it."""
        if len(self._all) < MAX_CONNECTIONS:
            return True
        longest, (since, _) = next(iter(self._idle.items()), ("", (float("inf"), None)))
        if asyncio.get_running_loop().time() - since < SETTLED:
            return False
        self._end(longest, f"there are {MAX_CONNECTIONS}, and it is the longest idle")
        return True

    def remove(self, client: str) -> None:
        """Forget a client."""
        self._all.discard(client)
        self.set_busy(client)
        self._change.set()

    def set_busy(self, client: str) -> None:
        """Note that a client is busy: it is not closed to make room."""
        if found := self._idle.pop(client, None):
            found[1].cancel()

    def set_idle(self, client: str) -> None:
        """Note that a client is idle, and start its timer."""
        self.set_busy(client)
        if client in self._all:
            self._wait(client, IDLE_LIMIT)

    def _wait(self, client: str, seconds: float) -> None:
        why = f"no request for {seconds:g} seconds"
        loop = asyncio.get_running_loop()
        self._idle[client] = (loop.time(), loop.call_later(seconds, self._end, client, why))

    def _end(self, client: str, why: str) -> None:
        log.info("closed a connection: %s", why)
        self.remove(client)
        self._close(client)


MAX_KEPT = 256 * 1024
"""Most bytes that are read from a client while its request cannot be sent on. The rest waits in the
sockets. The proxy reads at all then because only a read shows that the client has hung up."""
MAX_WHOLE = 2 * 1024 * 1024
"""Most bytes that are read of a request's header, or of a blocked request's body: 1 MiB of body and
TLS around it. The proxy answers once either is complete."""


class Reader(Protocol):
    """A source of a connection's bytes, such as an asyncio.StreamReader."""

    async def read(self, size: int) -> bytes:
        """Return at most ``size`` bytes; none at the end."""


class LimitedReader:
    """A reader that stops after MAX_WHOLE bytes, or after those that ``permit`` allowed last.

    mitmproxy reads from a client at all times, and keeps without a limit all that it cannot send on
    yet: the header of a request, and what follows while it looks up a host, connects or waits.
    """

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
