"""Calls that may wait for a disk or a server: on which thread to make them, what to do after."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from time import monotonic, perf_counter
from typing import Any, Generic, TypeVar

from gitguardfs.options.rate_limit import RateLimit

QUICK = 500e-6
"""Seconds that a quick call takes at most. Other requests may wait for so long; handing a call
to a thread costs a tenth of that."""
QUICK_IN_A_ROW = 4
"""Quick calls before the next one is expected to be quick."""
INLINE_LIMIT = 128 * 1024
"""Bytes up to which a transfer may be done without a thread. A write of that size to a local file
always is: it goes to memory, and handing it to a thread would cost more than the copying."""

R = TypeVar("R")


class LatencyTracker:
    """Tracks how long calls of one kind take."""

    def __init__(self) -> None:
        self._in_a_row = 0
        self.under_way = 0
        """Calls that have begun and not ended. Changed on the session's thread only."""

    @property
    def is_quick(self) -> bool:
        """Whether the next call is expected to be quick: the last were, and none is under way."""
        return self._in_a_row >= QUICK_IN_A_ROW and not self.under_way

    def timed(self, call: Callable[..., R], *args: Any) -> R:
        """Make a call and note how long it takes; on any thread. Raises what the call raises."""
        since = perf_counter()
        try:
            return call(*args)
        finally:
            took = perf_counter() - since
            self._in_a_row = self._in_a_row + 1 if took < QUICK else 0


class Blocking(Generic[R]):
    """A checked request whose last call on the source may wait for a disk or a server.

    The session enters this object by a with statement and calls ``run`` there: inline if
    ``runs_inline``, and otherwise where other requests do not wait for it. Then it calls
    ``finish`` for the reply, and sends that after ``delay`` seconds. An error of any step is one of
    the request: the session asks ``View.errno_of`` for its errno.
    """

    __slots__ = (
        "_args", "_cleanup", "_finish", "_latency", "_rate", "call", "likely_quick", "queue",
        "runs_inline",
    )  # fmt: skip

    def __init__(
        self,
        latency: LatencyTracker,
        call: Callable[..., R],
        *args: Any,
        is_small: bool,
        is_local: bool,
        finish: Callable[[R], None] | None = None,
        cleanup: Callable[[], None] | None = None,
        rate: RateLimit | None = None,
        queue: Hashable = None,
    ) -> None:
        """Prepare ``call(*args)``; the arguments are descriptors, bytes and numbers only.

        ``finish`` is given the result of ``call``; ``cleanup`` is called in any case. ``is_local``
        says that the call waits for no server.
        """
        self._latency = latency
        self.call = call
        self._args = args
        self._finish = finish
        self._cleanup = cleanup
        self._rate = rate
        self.queue = queue
        """For a call that may take minutes: those with the same value wait for each other, and take
        no thread meanwhile that other calls need."""
        self.likely_quick = is_small and latency.is_quick
        """Whether other requests may wait for the call, since it is expected to be quick."""
        self.runs_inline = self.likely_quick and is_local
        """Whether the session's own thread may make the call."""

    def __enter__(self) -> None:
        """Count the call as under way. On the session's thread only."""
        self._latency.under_way += 1

    def __exit__(self, *_: object) -> None:
        """Clean up after the call."""
        self._latency.under_way -= 1
        if self._cleanup is not None:
            self._cleanup()

    def run(self) -> R:
        """Make the call, on any thread. Raises its error."""
        return self._latency.timed(self.call, *self._args)

    def finish(self, result: R) -> R:
        """Note the call in the tables; return the reply. On the session's thread only."""
        if self._finish is not None:
            self._finish(result)
        return result

    def delay(self, reply: R) -> float:
        """Return the seconds for which a rate limit holds the reply back."""
        if self._rate is None:
            return 0.0
        size = reply if isinstance(reply, int) else len(reply)  # type: ignore[arg-type]
        return self._rate.delay(size, monotonic())


def done(reply: R, rate: RateLimit) -> Blocking[R]:
    """Return a Blocking for a reply that is known already and that ``rate`` may hold back."""
    blocking = Blocking(LatencyTracker(), lambda: reply, is_small=True, is_local=True, rate=rate)
    blocking.runs_inline = True
    return blocking
