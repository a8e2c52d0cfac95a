"""The proxy's connections from clients: how many there may be, and how long one may be idle.

A connection is idle unless a request on it was allowed and its answer is not complete. So a user
of the host who opens connections and leaves them idle does not keep the guest out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

log = logging.getLogger("gitguardfs.egress")

MAX_CONNECTIONS = 128
"""At a time: in the VM each is also a process of the host's user, started by QEMU. Package managers
open some dozens."""
FIRST_REQUEST_LIMIT = 30.0
"""Seconds from the connection to the whole head of its first request, a CONNECT not counted."""
IDLE_LIMIT = 300.0
"""Seconds from an answer to the whole head of the next request; most clients and servers keep idle
connections for less."""


class Clients:
    """Which clients there are, and which of them are idle. For the event loop's thread."""

    def __init__(self, close: Callable[[str], None]) -> None:
        self._close = close
        self._all: set[str] = set()
        self._idle: dict[str, asyncio.TimerHandle] = {}
        """The longest idle first, each with the timer that closes it."""

    def add(self, client: str) -> bool:
        """Count a new client; if there are too many, close the longest idle one for it.

        Returns False, and counts nothing, if none is idle.
        """
        if len(self._all) >= MAX_CONNECTIONS:
            longest = next(iter(self._idle), None)
            if longest is None:
                return False
            self._end(longest, f"there are {MAX_CONNECTIONS}, and it is the longest idle")
        self._all.add(client)
        self._wait(client, FIRST_REQUEST_LIMIT)
        return True

    def remove(self, client: str) -> None:
        """Forget a client."""
        self._all.discard(client)
        self.set_busy(client)

    def set_busy(self, client: str) -> None:
        """Note that a client has a request under way, which is not interrupted."""
        if timer := self._idle.pop(client, None):
            timer.cancel()

    def set_idle(self, client: str) -> None:
        """Note that a client's request was answered."""
        self.set_busy(client)
        if client in self._all:
            self._wait(client, IDLE_LIMIT)

    def _wait(self, client: str, seconds: float) -> None:
        why = f"no request for {seconds:g} seconds"
        self._idle[client] = asyncio.get_running_loop().call_later(seconds, self._end, client, why)

    def _end(self, client: str, why: str) -> None:
        log.info("closed a connection: %s", why)
        self.remove(client)
        self._close(client)
