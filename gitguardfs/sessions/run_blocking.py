"""Makes the blocking call of a request for a session that runs on an event loop."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol, TypeVar

from gitguardfs.fs.blocking import Blocking

R = TypeVar("R")


class Loop(Protocol):
    """What runs calls while other requests are served."""

    async def run_in_thread(self, call: Callable[[], R], *, quick: bool, queue: Hashable) -> R:
        """Run a call on a thread; return what it returns. Raises what it raises."""

    async def pause(self, seconds: float) -> None:
        """Wait."""


async def run_blocking(blocking: Blocking[R], loop: Loop) -> R:
    """Make the blocking call of a request, inline or on a thread; return the reply.

    Raises RequestError.
    """
    with blocking:
        if blocking.runs_inline:
            result = blocking.run()
        else:
            result = await loop.run_in_thread(
                blocking.run, quick=blocking.likely_quick, queue=blocking.queue
            )
    reply = blocking.finish(result)
    delay = blocking.delay(reply)
    if delay:
        await loop.pause(delay)
    return reply
