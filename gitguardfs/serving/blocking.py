"""Calls that may wait for a disk or a server: where to make them, and what is left to do then."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, perf_counter
from typing import Any, Generic, TypeVar

from gitguardfs.bindfs.rate_limit import RateLimit
from gitguardfs.protocol import RequestError
from gitguardfs.serving.boundary import Boundary

QUICK = 500e-6
"""Seconds; a change of thread takes a tenth of that, and so long may everybody else wait."""
QUICK_IN_A_ROW = 4
"""Quick calls before the next one is expected to be quick."""
INLINE_LIMIT = 128 * 1024
"""Bytes up to which a transfer may be done without a thread, and a write to a local file always
is: it goes to memory, and a change of thread costs more than the copying."""

R = TypeVar("R")


class LatencyTracker:
    """Tracks how long calls of one kind take."""

    def __init__(self) -> None:
        self._in_a_row = 0
        self._under_way = 0

    @property
    def is_quick(self) -> bool:
        """Whether the next one can be expected to be quick: it would wait for one that is not."""
        return self._in_a_row >= QUICK_IN_A_ROW and not self._under_way

    def begin(self) -> None:
        """Count one as under way. On the session's thread only, as ``end``."""
        self._under_way += 1

    def end(self) -> None:
        """Count one as done, or given up."""
        self._under_way -= 1

    def timed(self, call: Callable[..., R], *args: Any) -> R:
        """Make a call, on whatever thread, and note how long it takes."""
        since = perf_counter()
        try:
            return call(*args)
        finally:
            took = perf_counter() - since
            self._in_a_row = self._in_a_row + 1 if took < QUICK else 0


class Blocking(Generic[R]):
    """A request of which a call is left that may wait.

    The session makes it in a with statement of this object, inline if ``runs_inline`` and
    otherwise wherever it does not keep others waiting, and then asks ``finish`` for the reply,
    which it holds back for ``delay`` seconds.
    """

    __slots__ = (
        "_args", "_boundary", "_cleanup", "_finish", "_latency", "_operation", "_rate", "call",
        "likely_quick", "runs_inline",
    )  # fmt: skip

    def __init__(
        self,
        boundary: Boundary,
        operation: str,
        latency: LatencyTracker,
        call: Callable[..., R],
        *args: Any,
        is_small: bool,
        is_local: bool,
        finish: Callable[[R], None] | None = None,
        cleanup: Callable[[], None] | None = None,
        rate: RateLimit | None = None,
    ) -> None:
        """``finish`` is given what ``call`` returned, ``cleanup`` is called in any case.

        ``call`` gets descriptors and bytes only. ``is_local`` says that it waits for no server.
        """
        self._boundary = boundary
        self._operation = operation
        self._latency = latency
        self.call = call
        self._args = args
        self._finish = finish
        self._cleanup = cleanup
        self._rate = rate
        self.likely_quick = is_small and latency.is_quick
        """Whether others may wait a moment for it."""
        self.runs_inline = self.likely_quick and is_local
        """Whether the session's own thread may make the call."""

    def __enter__(self) -> None:
        """Count the call as under way. On the session's thread only."""
        self._latency.begin()

    def __exit__(self, *_: object) -> None:
        """Clean up after the call."""
        self._latency.end()
        if self._cleanup is not None:
            self._cleanup()

    def run(self) -> R:
        """Make the call, on any thread. Raises RequestError."""
        try:
            return self._latency.timed(self.call, *self._args)
        except Exception as error:
            number = self._boundary.errno_of(error, self._operation)
        raise RequestError(number)

    def finish(self, result: R) -> R:
        """Note what the call has done, and return the reply. On the session's thread only.

        Raises RequestError.
        """
        if self._finish is None:
            return result
        try:
            self._finish(result)
            return result
        except Exception as error:
            number = self._boundary.errno_of(error, self._operation)
        raise RequestError(number)

    def delay(self, reply: R) -> float:
        """Return the seconds for which a rate limit holds the reply back. Raises RequestError."""
        if self._rate is None:
            return 0.0
        try:
            size = reply if isinstance(reply, int) else len(reply)  # type: ignore[arg-type]
            return self._rate.delay(size, monotonic())
        except Exception as error:
            number = self._boundary.errno_of(error, self._operation)
        raise RequestError(number)


def done(boundary: Boundary, operation: str, reply: R, rate: RateLimit) -> Blocking[R]:
    """Return what holds a reply back that is there already."""
    blocking = Blocking(
        boundary,
        operation,
        LatencyTracker(),
        lambda: reply,
        is_small=True,
        is_local=True,
        rate=rate,
    )
    blocking.runs_inline = True
    return blocking
