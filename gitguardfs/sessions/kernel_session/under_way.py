"""The requests that are under way: with helpers, held back by a rate, or waiting for a lock.

The serving thread alone uses this, but for ``_return``. While something is under way, that thread
waits for it and for requests by poll(2), and the connection's descriptor is non-blocking: a
request that poll(2) has seen may be withdrawn.
"""

from __future__ import annotations

import errno
import heapq
import mmap
import os
import select
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from math import inf
from time import monotonic
from typing import Any, NamedTuple

from gitguardfs.base.errors import os_error
from gitguardfs.base.protocol import Caller
from gitguardfs.base.signals import leave_to_main_thread
from gitguardfs.fs.blocking import Blocking
from gitguardfs.sessions.kernel_session.connection import Connection
from gitguardfs.sessions.kernel_session.replies import Answer, Packer

HELPERS = 32
"""Threads for calls that wait, at most. More would not make a disk faster."""
TRY_EVERY = 0.05
"""Seconds after which a lock is tried again that a program on the host may have dropped."""
MOST_TRIES = 32
"""Locks that are tried at a time, 10 µs each: other requests wait meanwhile."""
LONGEST_WAIT = 3600.0
"""Seconds for one poll(2), which takes a number of milliseconds below 2**31."""


class Waiting(NamedTuple):
    """A request whose call a helper makes."""

    unique: int
    request: str
    caller: Caller | None
    pack: Packer
    blocking: Blocking[Any]
    buffer: mmap.mmap | None
    """The buffer that the call uses; None if it uses none."""
    is_noted: bool
    """Whether it is to be noted that the request is done."""


Returned = tuple[Waiting, Future[Any]]


def _run(call: Future[Any], run: Callable[[], Any]) -> None:
    if not call.set_running_or_notify_cancel():
        return  # its request was answered
    try:
        call.set_result(run())
    except BaseException as error:
        call.set_exception(error)


class UnderWay:
    """The requests of one connection that are not answered yet, beside the one being served."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._helpers: dict[Hashable, ThreadPoolExecutor] = {}
        """By queue: None is for calls that wait for no other."""
        self._in_queue: Counter[Hashable] = Counter()
        """How many calls of each queue are with its helper."""
        self.with_helpers = 0
        """How many calls are with helpers."""
        self._returned: deque[Returned] = deque()
        self._held_back: list[tuple[float, int, Answer]] = []
        """Answers that a rate limit holds back: the time they are due, unique, the answer."""
        self._tries: dict[int, dict[int, Callable[[], bool]]] = {}
        """By node and unique: tries to serve a request that waits, and returns whether it was
        answered. The next one to try is the first."""
        self._changed: set[int] = set()
        """The nodes whose requests are to be tried at once."""
        self._next_try = 0.0
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)
        self._readers: dict[int, Callable[[], None]] = {}
        """By descriptor: calls to be made when that can be read."""
        self._readable: list[int] = []

    def __bool__(self) -> bool:
        """Return whether anything is under way, or has a reader."""
        return bool(self.with_helpers or self._held_back or self._tries or self._readers)

    def add_reader(self, fd: int, call: Callable[[], None]) -> None:
        """Have a call made each time when a descriptor can be read."""
        self._begin()
        self._readers[fd] = call
        self._poll.register(fd, select.POLLIN)

    def remove_reader(self, fd: int) -> None:
        """Undo ``add_reader``, if it was called for the descriptor."""
        if self._readers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def drop_readers(self) -> None:
        """Undo each ``add_reader``."""
        for fd in list(self._readers):
            self.remove_reader(fd)

    def call_readers(self) -> None:
        """Make the calls of those descriptors that ``wait`` has found readable."""
        for fd in self._readable:
            if (call := self._readers.get(fd)) is not None:
                call()

    def submit(self, blocking: Blocking[Any]) -> Future[Any]:
        """Give a call to a helper. Raises OSError(EAGAIN) if there is none, and none can start."""
        queue = blocking.queue
        if queue not in self._helpers:
            most = HELPERS if queue is None else 1
            self._helpers[queue] = ThreadPoolExecutor(most, initializer=leave_to_main_thread)
        call: Future[Any] = Future()
        self._in_queue[queue] += queue is not None
        try:
            self._helpers[queue].submit(_run, call, blocking.run)
        except RuntimeError:  # the executor keeps the call all the same, for a helper that it has
            if call.cancel():
                self._leave(queue)
                blocking.__exit__()
                raise os_error(errno.EAGAIN) from None
        return call

    def add(self, waiting: Waiting, call: Future[Any]) -> None:
        """Note that a request waits for its call, which a helper makes."""
        self._begin()
        self.with_helpers += 1
        call.add_done_callback(lambda call: self._return(waiting, call))

    def hold_back(self, unique: int, answer: Answer, delay: float) -> None:
        """Keep an answer for ``delay`` seconds."""
        self._begin()
        heapq.heappush(self._held_back, (monotonic() + delay, unique, answer))

    def try_later(self, unique: int, node: int, attempt: Callable[[], bool]) -> None:
        """Try to serve a request again, until ``attempt`` returns that it was answered."""
        self._begin()
        self._tries.setdefault(node, {})[unique] = attempt

    def give_up(self, unique: int) -> bool:
        """Try a request no more; return whether it was waiting."""
        for node, tries in self._tries.items():
            if tries.pop(unique, None) is not None:
                if not tries:
                    del self._tries[node]
                return True
        return False

    def try_now(self, node: int) -> None:
        """Try a node's requests at the next ``try_again``: what they wait for has changed."""
        if node in self._tries:
            self._changed.add(node)

    def try_again(self) -> None:
        """Try requests that wait, if it is time: ``MOST_TRIES``, those not tried longest first.

        Where one was answered, the others are tried after the next request.
        """
        nodes = dict.fromkeys(self._changed)
        if self._tries and self._next_try <= monotonic():
            nodes |= dict.fromkeys(self._tries)
            self._next_try = monotonic() + TRY_EVERY
        left = MOST_TRIES
        for node in nodes:
            if not left:
                return
            self._changed.discard(node)
            tries = self._tries.pop(node, {})
            for unique in tuple(islice(tries, left)):
                left -= 1
                attempt = tries.pop(unique)
                if attempt():
                    self._changed.add(node)
                else:
                    tries[unique] = attempt
            if tries:
                self._tries[node] = tries

    def give_up_all(self) -> list[int]:
        """Try none of the requests any more; return them."""
        given_up = [unique for tries in self._tries.values() for unique in tries]
        self._tries.clear()
        return given_up

    def _begin(self) -> None:
        if not self:
            os.set_blocking(self._connection.fd, False)

    def _leave(self, queue: Hashable) -> None:
        """Note that a call of a queue has ended; the helper of the last one ends as well."""
        if queue is not None:
            self._in_queue[queue] -= 1
            if not self._in_queue[queue]:
                del self._in_queue[queue]
                self._helpers.pop(queue).shutdown(wait=False)

    def _return(self, waiting: Waiting, call: Future[Any]) -> None:
        """Give a call back to the serving thread; on a helper's thread."""
        self._returned.append((waiting, call))
        self.wake()

    def wake(self) -> None:
        """Make the serving thread return from ``wait``."""
        os.eventfd_write(self._wake, 1)

    def wait(self, fd: int, is_ending: bool = False) -> None:
        """Wait until ``fd`` has a request, a call returns, or a reader, answer or try is due.

        When the session is ending, all are due.
        """
        if fd >= 0:
            self._poll.register(fd, select.POLLIN)
        at = [self._held_back[0][0]] if self._held_back else []
        at += [0.0 if self._changed else self._next_try] if self._tries else []
        due = 0 if is_ending else min(at, default=inf) - monotonic()
        ready = self._poll.poll(max(0.0, min(due, LONGEST_WAIT)) * 1000 + 1 if at else None)
        self._readable = [fd for fd, _ in ready if fd in self._readers] if self._readers else []
        if fd >= 0:
            self._poll.unregister(fd)

    def returned(self) -> Iterator[Returned]:
        """Yield the requests whose calls have returned."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        while self._returned:
            waiting, call = self._returned.popleft()
            self.with_helpers -= 1
            self._leave(waiting.blocking.queue)
            yield waiting, call

    def due(self, is_ending: bool) -> Iterator[tuple[int, Answer]]:
        """Yield the answers that are due, each with its unique."""
        while self._held_back and (is_ending or self._held_back[0][0] <= monotonic()):
            _, unique, answer = heapq.heappop(self._held_back)
            yield unique, answer

    def shut_down(self) -> None:
        """Let the helpers end."""
        for helpers in self._helpers.values():
            helpers.shutdown(wait=False)

    def close(self) -> None:
        """Close the descriptor."""
        wake, self._wake = self._wake, -1
        if wake >= 0:
            os.close(wake)
