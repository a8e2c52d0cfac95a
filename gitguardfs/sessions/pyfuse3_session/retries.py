"""Makes requests again that raised Later, because git on the host is at work."""

from __future__ import annotations

import errno
import logging
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TypeVar

from gitguardfs.protocol import Later, RequestError
from gitguardfs.sessions.pyfuse3_session.request_loop import RequestLoop

log = logging.getLogger(__name__)

R = TypeVar("R")

MAX_WAITING = 256
"""Requests that wait at a time, at most: each is made again several times a second."""

LOG_PERIOD = 10.0
"""Seconds in which requests that failed for the same reason are logged once."""


class Retries:
    """The waiting requests of one mount."""

    def __init__(self, request_loop: RequestLoop) -> None:
        self._request_loop = request_loop
        self._waiting = 0
        self._logged_at: dict[str, float] = {}

    async def retry(self, name: str, later: Later, call: Callable[[], Awaitable[R]]) -> R:
        """Make ``call`` again, while others are served, until it no longer raises Later.

        Raises RequestError(EBUSY) at the earliest deadline that a Later had, when the mount ends,
        or if ``MAX_WAITING`` requests wait already. Raises whatever else ``call`` raises.
        """
        if self._waiting >= MAX_WAITING:
            raise self._logged_busy(name, later.why)
        self._waiting += 1
        try:
            return await self._retry(name, later, call)
        finally:
            self._waiting -= 1

    async def _retry(self, name: str, later: Later, call: Callable[[], Awaitable[R]]) -> R:
        deadline = later.deadline
        while True:
            deadline = min(deadline, later.deadline)
            pause = min(later.ask_again_at, deadline) - monotonic()
            await self._request_loop.pause(max(pause, 0))
            if self._request_loop.is_ending:
                raise _busy()
            last = monotonic() >= deadline
            try:
                return await call()
            except Later as again:
                later = again
            if last:
                raise self._logged_busy(name, later.why)

    def _logged_busy(self, name: str, why: str) -> RequestError:
        now = monotonic()
        if now >= self._logged_at.get(why, float("-inf")) + LOG_PERIOD:
            self._logged_at[why] = now
            log.warning("%s failed; answered EBUSY: %s", name, why)
        return _busy()


def _busy() -> RequestError:
    return RequestError(errno.EBUSY)
