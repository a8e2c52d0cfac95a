"""Requests that have to be made again later, because git on the host is at work."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TypeVar

from gitguardfs.fuse.requests import Requests
from gitguardfs.protocol import Later

log = logging.getLogger(__name__)

R = TypeVar("R")


async def ask_again(
    name: str, later: Later, call: Callable[[], Awaitable[R]], requests: Requests
) -> R:
    """Make ``call`` again, while others are served, until it no longer raises Later.

    Raises OSError(EBUSY) at the earliest deadline of those it raised, or when the mount ends, and
    whatever else ``call`` raises.
    """
    deadline = later.deadline
    while True:
        deadline = min(deadline, later.deadline)
        await requests.pause(max(min(later.ask_again_at, deadline) - monotonic(), 0))
        if requests.is_ending:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        last = monotonic() >= deadline
        try:
            return await call()
        except Later as again:
            later = again
        if last:
            log.warning("%s was given up: %s", name, later.why)
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
