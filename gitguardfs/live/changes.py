"""Takes in what the host tells of its changes, and lets the kernel cache for long meanwhile.

A line is a hint: what the kernel knows is compared with what is there, and what differs is repeated
in the view (``repeating``). So a line that is false, late or told twice does nothing. Names that a
rule guards, and what is below them, are left alone: they are cached as shortly as ever.
"""

from __future__ import annotations

import logging
import os
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import monotonic

from gitguardfs.base.protocol import NodeId
from gitguardfs.fs.nodes import Directory
from gitguardfs.linux import syscalls
from gitguardfs.live import lines
from gitguardfs.live.comparing import Comparing
from gitguardfs.live.helper_process import HelperProcess
from gitguardfs.live.kept import AbsentNames
from gitguardfs.live.known_names import KnownNames, Place
from gitguardfs.live.lines import Line
from gitguardfs.live.notifying import Notifying
from gitguardfs.live.own_changes import OwnChanges
from gitguardfs.live.repeating import Repeating
from gitguardfs.sessions.base import Session
from gitguardfs.view.view import View

log = logging.getLogger(__name__)

KEPT = 3600.0
"""Seconds for which the kernel caches while all changes are told."""
SILENCE = 1.5
"""Seconds without a line after which changes count as told no more. The host sends one each half
second. Nothing is to be stale after two, and 200,000 names take some tenths to be forgotten."""
STEADY = 0.2
"""Seconds between two beats, at least, of a stream that is not behind."""
TICK = 0.2
AT_ONCE = 4096
"""Bytes that are read at a time: other requests wait until their lines are served."""
ENOUGH = 200
"""Lines that wait, from which on no more are read."""
AGE = 0.5
"""Seconds that lines may wait, in here or in the socket, while the kernel caches for long."""
LINES_AT_ONCE = 20
CACHED_FOR = 1.1
"""Seconds after which a line on a source with a cache of its own (virtiofs) is served again: what
is found by a name may be a second old."""
MOST_LATER = 1 << 14
"""Lines that wait for that, from which on all is compared instead."""


class Changes:
    """The host's changes of one view's source, by one connection at a time."""

    def __init__(
        self,
        session: Session,
        view: View,
        start: Callable[[], HelperProcess],
        connection: socket.socket,
        source_caches: bool,
        kept: str,
    ) -> None:
        """Read lines from ``connection`` from now on. To be called on the serving thread.

        ``start`` starts a helper. ``source_caches`` says that names of the source may be a second
        old. ``kept`` is the path of a file for the next daemon (``AbsentNames``). Raises OSError.
        """
        self._session = session
        self._view = view
        self._tree = tree = view.share
        self._connection = connection
        self._source_caches = source_caches
        self._kept = kept
        # What may fail comes first.
        self._more = os.eventfd(1, os.EFD_CLOEXEC)
        """A descriptor that can always be read: what reads it is called again and again."""
        self._ticks = syscalls.ticks(TICK)
        self._notifying = Notifying(session, self.safely)
        self._doubtful: set[Place] = set()
        """Names that the kernel may have wrong."""
        self._names = KnownNames(tree.nodes, self._look_below, self._doubtful.add)
        self._own = view.own_changes = OwnChanges(tree)
        self._repeating = Repeating(
            tree, session, self._names, self._own, start, self._notifying.forget,
            self._look_below, self.safely, self._work_on,
        )  # fmt: skip
        self._comparing = Comparing(
            session, view, self._names, self._own, self._repeating, self._doubtful.add,
            source_caches,
        )  # fmt: skip
        view.announced = self._repeating.serve
        self._text = b""
        self._waiting: deque[tuple[float, Line]] = deque()
        """Lines that came, and when: one is served after the steps of those before it."""
        self._later: deque[tuple[float, Line]] = deque()
        """Lines to be served again, and when."""
        self._is_whole = False
        self._absent: AbsentNames | None = None
        """The absent names that the kernel caches for long; None while it caches for a second."""
        self._is_forgetting = False
        """Whether the kernel is being made to forget all that it has cached for long."""
        self._heard = self._beat = monotonic()
        self._behind: float | None = None
        """Since when there was always more to read."""
        connection.setblocking(False)
        self._add_reader(connection.fileno(), self._read)
        self._add_reader(self._ticks, self._tick)
        self.is_open = True
        self._repeating.prepare()

    def close(self) -> None:
        """End: what is cached is looked up again."""
        if not self.is_open:
            return
        self.is_open = False
        self._keep(False)
        self._view.own_changes = None
        self._view.announced = None
        for fd in (self._connection.fileno(), self._ticks, self._more):
            self._session.remove_reader(fd)
        self._repeating.end()
        self._notifying.end()
        self._names.close()
        self._connection.close()
        os.close(self._ticks)
        os.close(self._more)

    def _add_reader(self, fd: int, call: Callable[[], None]) -> None:
        self._session.add_reader(fd, partial(self.safely, call))

    def safely(self, call: Callable[[], None]) -> None:
        """Make a call; after a bug, be told of nothing more."""
        try:
            call()
        except Exception:
            with suppress(Exception):  # of a log; the view is served
                log.exception("the host's changes are not taken in any more")
            with suppress(Exception):
                self.close()

    # The stream

    def _read(self) -> None:
        try:
            data = self._connection.recv(AT_ONCE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            log.info("the host tells of its changes no more")
            return self.close()
        *whole, self._text = (self._text + data).split(b"\n")
        try:
            if len(self._text) > lines.LONGEST:
                raise ValueError("a line that is too long")
            self._waiting.extend((monotonic(), lines.parse(text)) for text in whole)
        except ValueError as error:
            log.warning("the host's changes are not taken in any more: %s", error)
            return self.close()
        self._heard = monotonic()
        self._behind = (self._behind or self._heard) if len(data) == AT_ONCE else None
        if len(self._waiting) > ENOUGH:
            self._session.remove_reader(self._connection.fileno())
        self._work()

    def _tick(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._ticks, 8)
        now = monotonic()
        self._repeating.check_time()
        while self._later and self._later[0][0] <= now:
            self._waiting.append(self._later.popleft())
        is_late = bool(self._waiting) and now - self._waiting[0][0] > AGE
        is_behind = self._behind is not None and now - self._behind > AGE
        if is_late or is_behind or now - self._heard > SILENCE:
            self._keep(False)
        self._resolve_doubts()
        self._work()

    def _work_on(self) -> None:
        """Work when other requests have been served, if there is work."""
        if self.is_open and (self._waiting or self._comparing.is_looking):
            self._add_reader(self._more, self._work)

    def _work(self) -> None:
        """Serve some of the lines that wait."""
        for _ in range(LINES_AT_ONCE):
            if not (self.is_open and self._repeating.is_idle):
                break
            if self._comparing.is_looking:
                self._comparing.look_on()
            elif self._waiting:
                self._serve(self._waiting.popleft()[1])
        if not self.is_open:
            return
        if len(self._waiting) < ENOUGH:
            self._add_reader(self._connection.fileno(), self._read)
        if self._repeating.is_idle and (self._waiting or self._comparing.is_looking):
            self._work_on()
        else:
            self._session.remove_reader(self._more)

    def _serve(self, line: Line) -> None:
        if line.kind == lines.BEAT:
            now = monotonic()
            is_steady, self._beat = now - self._beat > STEADY, now
            is_behind = self._behind is not None or bool(self._waiting)
            self._keep(self._is_whole and is_steady and not is_behind)
        elif line.kind == lines.WHOLE:
            self._is_whole = line.is_true
            if not line.is_true:
                self._keep(False)
                log.info("the host does not tell of all changes: %s", line.why or "no reason given")
        elif line.kind == lines.BEGINS:
            self._is_whole = False
            self._keep(False)
        elif line.kind == lines.AGAIN:
            top = self._names.directory(line.path)
            if top is not None:
                self._look_below(top)
        else:
            self._comparing.compare(line)
            if self._source_caches:
                self._later.append((monotonic() + CACHED_FOR, line))
                if len(self._later) > MOST_LATER:
                    self._later = deque([(monotonic() + CACHED_FOR, Line(lines.AGAIN))])

    def _look_below(self, top: Directory) -> None:
        """Compare all that the kernel knows below a directory, a few nodes at a time."""
        if self._absent is not None:
            self._notifying.forget(self._absent.take(), [], None)
        self._comparing.look_below(top)
        self._work_on()

    def _resolve_doubts(self) -> None:
        """Have names looked up again that may be wrong, if the kernel caches for long."""
        if self._doubtful and self._absent is not None:
            self._notifying.forget(list(self._doubtful), [], None)
        self._doubtful.clear()

    def _keep(self, keeps: bool) -> None:
        """Have the kernel cache for long from now on, or no more."""
        least = self._tree.least_timeout
        can = bool(least) and not self._is_forgetting
        can = can and not self._notifying.is_held_up
        can = can and self._tree.symlinks is None  # a resolved link's object has another name
        can = can and self._tells_case_apart()
        if keeps and self._absent is None and can and self._session.keep_listings():
            with suppress(OSError):  # tried again at the next beat
                self._absent = AbsentNames(self._kept)
                self._tree.keep(KEPT, partial(self._note_absent, self._absent))
        elif not keeps and self._absent is not None:
            self._tree.keep(least, None)
            places = [*self._names.places(), *self._absent.take(), *self._doubtful]
            self._notifying.forget(places, list(self._tree.nodes.by_id), None)
            self._notifying.when_all_is_told(partial(self._forgotten, self._absent))
            self._absent, self._is_forgetting = None, True

    def _tells_case_apart(self) -> bool:
        """Return whether a file has one name only: lines name it by one."""
        root = self._tree.nodes.root
        with suppress(OSError):
            return self._tree.case.matters(root, self._tree.descriptors.of(root))
        return False

    def _note_absent(self, absent: AbsentNames, parent: NodeId, name: bytes) -> bool:
        return self._view.is_ordinary(name) and absent.note(parent, name)

    def _forgotten(self, absent: AbsentNames) -> None:
        absent.remove()
        self._is_forgetting = False
