"""Makes the kernel look names and attributes up again, by a process of its own (``notifier``)."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from time import monotonic
from typing import NamedTuple

from gitguardfs.base.protocol import NodeId
from gitguardfs.linux import syscalls
from gitguardfs.live.known_names import Place
from gitguardfs.live.notifier import ROOM, NotifierProcess
from gitguardfs.sessions.base import Session

log = logging.getLogger(__name__)

LIMIT = 0.5
"""Seconds without progress, after which a program of the guest holds the directory up."""
TICK = 0.2
MOST_STUCK = 3
"""Stuck processes at most; beyond that, nothing is written until one ends."""


class _Item(NamedTuple):
    """One notification."""

    directory: int
    """The directory whose lock the kernel takes; 0 for none."""
    data: bytes


class Notifying:
    """What the kernel is still to be told, in order."""

    def __init__(self, session: Session, safely: Callable[[Callable[[], None]], None]) -> None:
        """Start the process. ``safely`` makes a call that may fail. Raises OSError."""
        self._session = session
        self._safely = safely
        self._works: deque[tuple[Iterator[_Item], Callable[[], None] | None]] = deque()
        self._first: list[_Item] = []
        """Notifications that come before those of ``_works``."""
        self._sent: list[_Item] = []
        self._progress, self._moved = -1, 0.0
        """How far the process was last seen to be, and since when."""
        self._stuck: list[NotifierProcess] = []
        self._held: set[int] = set()
        """Directories that programs of the guest hold."""
        self._left_out: set[_Item] = set()
        """Notifications for later: on those directories, or while too many processes are stuck."""
        self._when_told: list[Callable[[], None]] = []
        self._is_working = self._is_ending = False
        self._ticks = syscalls.ticks(TICK)
        self._process: NotifierProcess | None = None
        self._is_ready = False
        """Whether the process takes notifications; its start takes long in an emulated guest."""
        try:
            self._start()
        except BaseException:
            os.close(self._ticks)
            raise

    @property
    def is_held_up(self) -> bool:
        """Whether programs of the guest keep names from being forgotten."""
        self._stuck = [process for process in self._stuck if not process.has_ended()]
        return bool(self._stuck)

    def forget(
        self,
        places: Collection[Place],
        nodes: Collection[int],
        then: Callable[[], None] | None,
    ) -> None:
        """Make the kernel forget names, and the attributes of nodes; ``then`` is called after it.

        A session without a device has its names forgotten by themselves, within a second.
        """
        if self._ticks < 0:
            return  # it has ended
        items: Iterator[_Item] = iter(())
        if self._session.device >= 0:
            items = chain(
                (_Item(0, self._session.invalidating(node)) for node in nodes),
                (_Item(parent, self._session.expiring(parent, name)) for parent, name in places),
            )
        else:
            for node in nodes:
                with suppress(OSError):
                    self._session.invalidate(NodeId(node))
        self._works.append((items, then))
        self._work()

    def when_all_is_told(self, call: Callable[[], None]) -> None:
        """Have a call made when all so far is told, also what a program holds up now."""
        self._when_told.append(call)
        self._work()

    def end(self) -> None:
        """End when the kernel has been told all."""
        self._is_ending = True
        self._work()

    def _work(self) -> None:
        """Send the next notifications, or make the next call."""
        if self._is_working:
            return
        self._is_working = True
        try:
            while not self._sent and (self._first or self._works):
                if self._start() is not None and not self._is_ready:
                    return
                is_first = bool(self._first)
                self._send()
                if self._works and not (self._sent or is_first):
                    _, then = self._works.popleft()
                    if then is not None:
                        self._safely(then)
        finally:
            self._is_working = False
        if self._sent or self._first or self._works or self._left_out or self._ticks < 0:
            return
        while self._when_told:
            self._safely(self._when_told.pop(0))
        if self._is_ending:
            self._let_go()
            self._session.remove_reader(self._ticks)
            os.close(self._ticks)
            self._ticks = -1

    def _send(self) -> None:
        source = self._works[0][0] if self._works else iter(())
        if self._first:
            source, self._first = iter(self._first), []
        size, batch = 0, list[_Item]()
        for item in source:
            if self._process is None or item.directory in self._held:
                self._left_out.add(item)
                continue
            size += len(item.data) + 8
            batch.append(item)
            if size > ROOM // 2:
                break
        if batch and self._process is not None:
            self._process.write([item.data for item in batch])
            self._sent, self._progress, self._moved = batch, -1, monotonic()
        if self._sent or self._left_out:
            self._session.add_reader(self._ticks, partial(self._safely, self._check))

    def _take_answer(self) -> None:
        if self._process is None:
            return
        try:
            has_written = self._process.take_answer()
        except BlockingIOError:
            return
        except OSError:
            has_written = False
        self._is_ready = has_written
        if not self._sent:
            if not has_written:
                self._let_go()
            return self._work()
        left = [] if has_written else self._sent
        if not has_written:  # killed
            self._let_go()
        self._next(left)

    def _check(self) -> None:
        """Go on without a directory that a program holds."""
        with suppress(BlockingIOError):
            os.read(self._ticks, 8)
        before = len(self._stuck)
        if self._left_out and (not self.is_held_up or len(self._stuck) < before):
            if not self._stuck:
                self._held.clear()
            items, self._left_out = self._left_out, set()
            self._works.append((iter(items), None))
            self._work()
        if not self._sent or self._process is None:
            return
        now, progress = monotonic(), self._process.progress
        if progress != self._progress:
            self._progress, self._moved = progress, now
        elif now - self._moved > LIMIT:
            stuck, left = self._sent[progress], self._sent[progress + 1 :]
            self._stuck.append(self._process)
            self._held.add(stuck.directory)
            self._left_out.add(stuck)  # it may be killed before it writes
            self._let_go()
            if len(self._stuck) >= MOST_STUCK:
                log.warning("programs hold directories: changes of the host there are seen late")
            self._next(left)

    def _next(self, left: list[_Item]) -> None:
        self._sent = []
        if self._ticks >= 0 and not self._left_out:
            self._session.remove_reader(self._ticks)
        self._first = left
        self._work()

    def _start(self) -> NotifierProcess | None:
        """Return the process; None without a device, and if too many are stuck."""
        is_possible = self._session.device >= 0 and len(self._stuck) < MOST_STUCK
        if self._process is None and is_possible:
            self._process, self._is_ready = NotifierProcess(self._session.device), False
            take = partial(self._safely, self._take_answer)
            self._session.add_reader(self._process.fileno(), take)
        return self._process

    def _let_go(self) -> None:
        if self._process is not None:
            self._session.remove_reader(self._process.fileno())
            self._process.end()
            self._process = None
