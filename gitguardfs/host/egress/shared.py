"""Asks what may not answer for long, once for all requests that wait for the same answer."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from gitguardfs.base import questions

T = TypeVar("T")

_open: dict[Hashable, asyncio.Future[Any]] = {}
"""The questions without an answer. So a client cannot add threads by asking again."""


async def shared(question: Callable[..., T], *arguments: Hashable) -> T:
    """Return the answer of another thread. Raises what the question raises."""
    key = (question, *arguments)
    if key not in _open:
        answer = asyncio.wrap_future(questions.begun(functools.partial(question, *arguments)))
        answer.add_done_callback(lambda _: _open.pop(key))
        _open[key] = answer
    # The question goes on when a client hangs up: others may wait for it.
    return await asyncio.shield(_open[key])
