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
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from stat import S_IFDIR, S_IFMT, S_IFREG
from time import monotonic

from gitguardfs.fs.attributes import change_key
from gitguardfs.fs.nodes import NEVER, Directory, Node
from gitguardfs.linux import syscalls
from gitguardfs.live import helper, lines
from gitguardfs.live.helper_process import HelperProcess
from gitguardfs.live.kept import FreeNames
from gitguardfs.live.known_names import KnownNames
from gitguardfs.live.lines import Line, Path
from gitguardfs.live.notifying import Notifying
from gitguardfs.live.own_changes import OwnChanges
from gitguardfs.live.repeating import Repeating, Step, addition, removal
from gitguardfs.names.rules import Refused
from gitguardfs.sessions.base import Session
from gitguardfs.view.view import View

log = logging.getLogger(__name__)

KEPT = 3600.0
"""Seconds for which the kernel caches while all changes are told."""
SILENCE = 1.5
"""Seconds without a line after which changes count as told no more. The host sends a line each
second. Nothing is to be stale after two, and 200,000 names take some tenths to be forgotten."""
STEADY = 0.5
"""Seconds between two beats, at least, of a stream that is not behind."""
TICK = 0.2
AT_ONCE = 4096
"""Bytes that are read at a time: other requests wait until their lines are served."""
BEHIND, CAUGHT_UP = 1000, 100
"""Steps that wait, from which on no lines are read, and below which they are read again."""
NODES_AT_ONCE = 64
"""Known nodes that are compared at a time."""
CACHED_FOR = 1.1
"""Seconds after which a line on a source with a cache of its own (virtiofs) is served again: what
is found by a name may be a second old."""


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
        old. ``kept`` is the path of a file for the next daemon (``FreeNames``). Raises OSError.
        """
        self._session = session
        self._view = view
        self._tree = tree = view.share
        self._connection = connection
        self._source_caches = source_caches
        self._kept = kept
        self._names = KnownNames(tree.nodes)
        self._own = view.own_changes = OwnChanges(tree)
        self._notifying = Notifying(session)
        self._repeating = Repeating(
            tree, session, self._names, self._own, start, self._notifying.forget, self.safely
        )
        view.announced = self._repeating.serve
        self._text = b""
        self._is_whole = False
        self._free: FreeNames | None = None
        """The names that are free, while the kernel caches for long."""
        self._heard = self._beat = monotonic()
        self._later: deque[tuple[float, Line]] = deque()
        self._looking: Iterator[Node] | None = None
        self._more = os.eventfd(1, os.EFD_CLOEXEC)
        """A descriptor that can always be read: what reads it is called again and again."""
        self._is_paused = False
        connection.setblocking(False)
        self._add_reader(connection.fileno(), self._read)
        self._ticks = syscalls.ticks(TICK)
        self._add_reader(self._ticks, self._tick)
        self.is_open = True

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
            for text in whole:
                self._serve(lines.parse(text))
        except ValueError as error:
            log.warning("the host's changes are not taken in any more: %s", error)
            return self.close()
        if len(self._repeating) > BEHIND:
            self._keep(False)
            self._is_paused = True
            self._session.remove_reader(self._connection.fileno())

    def _tick(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._ticks, 8)
        now = monotonic()
        self._repeating.check_time()
        if self._is_paused and len(self._repeating) < CAUGHT_UP:
            self._is_paused, self._heard = False, now
            self._add_reader(self._connection.fileno(), self._read)
        if now - self._heard > SILENCE:
            self._keep(False)
        while self._later and self._later[0][0] <= now:
            self._serve_name(self._later.popleft()[1])
        if self._looking is not None and len(self._repeating) < CAUGHT_UP:
            self._add_reader(self._more, self._look_on)

    def _serve(self, line: Line) -> None:
        now = monotonic()
        self._heard = now
        if line.kind == lines.BEAT:
            is_steady, self._beat = now - self._beat > STEADY, now
            is_busy = self._looking is not None or len(self._repeating)
            self._keep(self._is_whole and is_steady and not is_busy)
        elif line.kind == lines.WHOLE:
            self._is_whole = line.is_true
            if not line.is_true:
                self._keep(False)
                log.info("the host does not tell of all changes: %s", line.why or "no reason given")
        elif line.kind == lines.AGAIN:
            self._look_again(line.path)
        elif line.kind != lines.BEGINS:
            self._serve_name(line)
            if self._source_caches:
                self._later.append((now + CACHED_FOR, line))

    def _keep(self, keeps: bool) -> None:
        """Have the kernel cache for long from now on, or no more."""
        least = self._tree.least_timeout
        if keeps and self._free is None and least and self._session.keeps_long:
            self._free = FreeNames(self._kept)
            self._tree.keep(KEPT, self._free.note)
        elif not keeps and self._free is not None:
            self._tree.keep(least, None)
            places = self._names.places() + self._free.take()
            self._notifying.forget(places, list(self._tree.nodes.by_id), self._free.remove)
            self._free = None

    # One name

    def _serve_name(self, line: Line) -> None:
        with suppress(OSError, Refused):  # what it is about is gone, or guarded
            self._view.apart(partial(self._compare, line))

    def _compare(self, line: Line) -> None:
        parent = self._parent(line.path)
        if line.kind == lines.MOVED:
            target = self._parent(line.new_path)
            if parent is not None and target is not None:
                self._moved((parent, line.path[-1]), (target, line.new_path[-1]))
            elif parent is not None:
                self._differs(lines.GONE, parent, line.path[-1])
            elif target is not None:
                self._differs(lines.MADE, target, line.new_path[-1])
        elif parent is not None:
            self._differs(line.kind, parent, line.path[-1])

    def _parent(self, path: Path) -> Directory | None:
        """Return the directory of a path if the kernel knows it, and no rule is about the path."""
        if not all(map(self._view.is_free_name, path)):
            return None
        parent = self._names.directory(path[:-1])
        return None if parent is None else self._tree.check.directory(parent.id)

    def _stat(self, parent: Directory, name: bytes) -> os.stat_result | None:
        fd = self._tree.descriptors.of(parent)
        if self._source_caches:
            with suppress(OSError):
                syscalls.refresh(fd, name)
        st = self._tree.source.find_at(fd, name)
        return st if st is not None and st.st_nlink else None

    def _touch_listing(self, parent: Directory) -> None:
        """Have the listing of a directory, and its times, asked for again."""
        parent.listed_at = NEVER
        self._invalidate(parent)

    def _invalidate(self, node: Node) -> None:
        with suppress(OSError):
            self._session.invalidate(node.id)

    def _differs(self, kind: str, parent: Directory, name: bytes) -> None:
        """Compare a name with what the kernel knows, and repeat the difference."""
        st = self._stat(parent, name)
        known, place = self._names.at(parent, name), (parent.id, name)
        if st is None:
            self._touch_listing(parent)
            if known is not None or not self._own.has_removed(place):
                self._repeating.add(removal(parent, name, known))
            return
        is_same = known is not None and known.matches(st)
        if known is not None and not is_same:
            self._touch_listing(parent)
            self._repeating.add(removal(parent, name, known))
            self._repeating.add(addition(parent, name, st, forgets=False))
        elif kind == lines.MADE and not self._own.has_made(place):
            self._touch_listing(parent)
            self._repeating.add(addition(parent, name, st, forgets=is_same))
        else:
            self._changed(kind, parent, name, st, known)

    def _changed(
        self, kind: str, parent: Directory, name: bytes, st: os.stat_result, node: Node | None
    ) -> None:
        """Repeat a change of an object's content or attributes, unless the guest has made it."""
        if node is not None and self._own.has_written(node, st):
            return self._invalidate(node)
        if S_IFMT(st.st_mode) == S_IFREG:
            call = helper.SET_TIMES if kind == lines.ATTRIBUTES else helper.TOUCH
            self._repeating.add(Step(call, parent, name, node, st))
        elif S_IFMT(st.st_mode) == S_IFDIR and kind == lines.ATTRIBUTES:
            self._repeating.add(Step(helper.SET_TIMES, parent, name, node, st))
        elif node is not None:
            self._invalidate(node)

    def _moved(self, old: tuple[Directory, bytes], new: tuple[Directory, bytes]) -> None:
        old_place, new_place = (old[0].id, old[1]), (new[0].id, new[1])
        st = self._stat(*new)
        if self._own.has_removed(old_place) and self._own.has_made(new_place):
            return
        if st is None or self._stat(*old) is not None:  # more has happened since
            self._differs(lines.GONE, *old)
            self._differs(lines.MADE, *new)
            return
        for parent in (old[0], new[0]):
            self._touch_listing(parent)
        moving, replaced = self._names.at(*old), self._names.at(*new)
        if moving is None or not moving.matches(st):
            if moving is not None:
                self._repeating.add(removal(*old, moving))
            self._repeating.add(addition(*old, st, forgets=False)._replace(at=new))
            moving = None
        knows_new = replaced is not None and replaced.matches(st)
        self._repeating.add(
            Step(
                helper.RENAME, *old, moving, st, new[0], new[1], None if knows_new else replaced,
                forgets=knows_new,
            )
        )  # fmt: skip

    # Many names

    def _look_again(self, path: Path) -> None:
        """Compare all that the kernel knows below a directory, a few nodes at a time."""
        top = self._names.directory(path)
        if top is None:
            return
        if self._looking is None:
            self._add_reader(self._more, self._look_on)
        elif path:
            top = self._tree.nodes.root
        self._looking = self._names.below(top)
        if self._free is not None:
            self._notifying.forget(self._free.take(), [], None)
        self._touch_listing(top)

    def _look_on(self) -> None:
        """Compare some nodes. To be called again and again until all are compared."""
        if self._looking is None or len(self._repeating) > BEHIND:
            return self._session.remove_reader(self._more)
        found = list(islice(self._looking, NODES_AT_ONCE))
        for node in found:
            with suppress(OSError, Refused):
                self._view.apart(partial(self._look_at, node))
        if len(found) < NODES_AT_ONCE:
            self._looking = None
            self._session.remove_reader(self._more)

    def _look_at(self, node: Node) -> None:
        parent = node.parent
        if parent is None or not self._view.is_free_name(node.name):
            return
        self._tree.check.directory(parent.id)
        st = self._stat(parent, node.name)
        if isinstance(node, Directory):
            self._touch_listing(node)
        if st is None or not node.matches(st):
            self._differs(lines.GONE, parent, node.name)
        elif node.file_type == S_IFREG and node.reported not in (0, change_key(st)):
            self._changed(lines.CHANGED, parent, node.name, st, node)
