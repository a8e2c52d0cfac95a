"""Questions to what may never answer, such as a keyring whose user is away, or a name server."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


def begun(question: Callable[[], T]) -> Future[T]:
    """Ask in a thread of its own, which does not keep the process from ending."""
    answer: Future[T] = Future()

    def ask() -> None:
        try:
            answer.set_result(question())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()
    return answer


_asked: dict[Hashable, asyncio.Future[Any]] = {}
"""The questions of ``asked_once`` without an answer: a client adds no thread by asking again."""


async def asked_once(question: Callable[..., T], *arguments: Hashable) -> T:
    """Ask in a thread, once for all who wait for the same answer. Raises what it raises."""
    key = (question, *arguments)
    if key not in _asked:
        answer = asyncio.wrap_future(begun(functools.partial(question, *arguments)))
        answer.add_done_callback(lambda _: _asked.pop(key))
        _asked[key] = answer
    # The question goes on when a client hangs up: others may wait for it.
    return await asyncio.shield(_asked[key])


class _Open(NamedTuple):
    """A question without an answer."""

    answer: Future[Any]
    waited_for: float
    """Until when its asker waits."""
    given_up: float
    """When the next one is asked without waiting for this."""


class PausedError(Exception):
    """The last answer was an error, of a user who closed the window: the next question waits."""


class OneByOne:
    """Asks one question at a time: it may be a window, in which a user is to type a password.

    While a question is overdue, others fail at once. After a time it is given up, and left behind.
    That time doubles with each one that is open, so that there are few. After an answer that is an
    error, others fail at once too, for a time that doubles until there is another answer.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[_Open] = []
        self._errors = 0
        self._paused_until = 0.0

    def ask(self, question: Callable[[], T], limit: float) -> T:
        """Return the answer. Raises TimeoutError after ``limit`` seconds, and what it raises.

        Raises PausedError without asking, for ``limit`` seconds after an error, or longer.
        """
        end = time.monotonic() + limit

        def noted() -> T:
            try:
                found = question()
            except Exception:
                self._errors += 1
                self._paused_until = time.monotonic() + limit * 2 ** (self._errors - 1)
                raise
            self._errors = 0
            return found

        while True:
            with self._lock:
                self._open = [one for one in self._open if not one.answer.done()]
                now = time.monotonic()
                if now < self._paused_until:
                    raise PausedError
                if not self._open or now >= self._open[-1].given_up:
                    answer = begun(noted)
                    given_up = end + limit * 2 ** len(self._open)
                    self._open.append(_Open(answer, end, given_up))
                    break
                before = self._open[-1]
            left = min(end, before.waited_for) - now
            if left <= 0:
                raise TimeoutError
            wait([before.answer], left)
        return answer.result(end - time.monotonic())
