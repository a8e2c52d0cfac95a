"""Connects to the first address of a host that answers, with no long wait for a dead one.

This is RFC 8305 (Happy Eyeballs): the families take turns, and an address that is silent for a
moment does not keep the next one waiting. One that was dead is tried last for a while.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

DELAY = 0.3
"""Seconds of silence after which the next address is tried as well."""
DEAD_FOR = 600.0
"""Seconds for which an address that was dead is tried after the others."""
MAX_DEAD = 1000
"""Addresses that are remembered, the latest."""

_dead: dict[tuple[str, int], float] = {}
"""Dead addresses, and the times when they were found dead."""


def ordered(answers: Iterable[Any]) -> list[Any]:
    """Return addresses, as getaddrinfo() returns them, in the order in which to try them."""
    numbers = Counter[int]()

    def place(answer: Any) -> tuple[bool, int]:
        numbers[answer[0]] += 1
        found_dead = _dead.get(answer[4][:2], float("-inf"))
        return time.monotonic() - found_dead < DEAD_FOR, numbers[answer[0]]

    return sorted(answers, key=place)


def note(answer: Any, *, is_dead: bool) -> None:
    """Remember whether an address is dead."""
    _dead.pop(answer[4][:2], None)
    if is_dead:
        _dead[answer[4][:2]] = time.monotonic()
        if len(_dead) > MAX_DEAD:
            del _dead[next(iter(_dead))]


async def first(loop: asyncio.AbstractEventLoop, answers: Iterable[Any]) -> socket.socket:
    """Return a socket that is connected to one of the addresses. Raises OSError."""
    left = ordered(answers)
    under_way: dict[asyncio.Task[socket.socket], Any] = {}
    why = OSError("it has no address")
    try:
        while left or under_way:
            if left:
                answer = left.pop(0)
                under_way[asyncio.create_task(_connected(loop, answer))] = answer
            done, _ = await asyncio.wait(
                under_way, timeout=DELAY if left else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                answer = under_way.pop(task)
                failure = task.exception()
                note(answer, is_dead=failure is not None)
                if failure is None:
                    for other in under_way.values():
                        note(other, is_dead=True)
                    return task.result()
                if not isinstance(failure, OSError):
                    raise failure
                why = failure
        raise why
    finally:
        for task in under_way:
            task.cancel()
            task.add_done_callback(_close)


async def _connected(loop: asyncio.AbstractEventLoop, answer: Any) -> socket.socket:
    family, kind, protocol, _, address = answer
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        await loop.sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


def _close(late: asyncio.Task[socket.socket]) -> None:
    """Close a connection that came too late."""
    if not late.cancelled() and late.exception() is None:
        late.result().close()
