"""Requests that raised Later, because git on the host is at work: they are made again."""

from __future__ import annotations

import errno
import logging
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TypeVar

from gitguardfs.errors import os_error
from gitguardfs.protocol import Later
from gitguardfs.sessions.pyfuse3_session.request_loop import Requests

log = logging.getLogger(__name__)

R = TypeVar("R")

MAX_WAITING = 256
"""Requests that wait at a time, at most. Each is made again several times a second."""

SAID_FOR = 10.0
"""Seconds in which a given-up request is logged only once for the same reason."""


class Waiting:
    """The waiting requests of one mount."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._count = 0
        self._said_at: dict[str, float] = {}

    async def ask_again(self, name: str, later: Later, call: Callable[[], Awaitable[R]]) -> R:
        """Make ``call`` again, while others are served, until it no longer raises Later.

        Raises OSError(EBUSY) at the earliest deadline that a Later had, when the mount ends, or if
        ``MAX_WAITING`` requests wait already. Raises what else ``call`` raises.
        """
        if self._count >= MAX_WAITING:
            raise self._given_up(name, later.why)
        self._count += 1
        try:
            return await self._ask_again(name, later, call)
        finally:
            self._count -= 1

    async def _ask_again(self, name: str, later: Later, call: Callable[[], Awaitable[R]]) -> R:
        deadline = later.deadline
        while True:
            deadline = min(deadline, later.deadline)
            pause = min(later.ask_again_at, deadline) - monotonic()
            await self._requests.pause(max(pause, 0))
            if self._requests.is_ending:
                raise _busy()
            last = monotonic() >= deadline
            try:
                return await call()
            except Later as again:
                later = again
            if last:
                raise self._given_up(name, later.why)

    def _given_up(self, name: str, why: str) -> OSError:
        now = monotonic()
        if now >= self._said_at.get(why, float("-inf")) + SAID_FOR:
            self._said_at[why] = now
            log.warning("%s was given up: %s", name, why)
        return _busy()


def _busy() -> OSError:
    return os_error(errno.EBUSY)
