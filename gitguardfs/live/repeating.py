"""Repeats the host's changes in the view by calls of the helper, so that its kernel fires events.

One call at a time is announced to the view, which answers the request that it leads to without
doing anything; a name is looked up as it was, or will be. Every other change that a process of the
helper's group asks for is refused: a request may come late, also to the next daemon.
"""

from __future__ import annotations

import errno
import logging
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from stat import S_IFDIR, S_IFMT, S_IFREG
from time import monotonic
from typing import Any

from gitguardfs.base.errors import os_error
from gitguardfs.base.protocol import Attributes, Caller, EntryReply, GuestGid, GuestUid, NodeId
from gitguardfs.fs.access import NodeRef
from gitguardfs.fs.attributes import change_key
from gitguardfs.fs.nodes import Directory, Node
from gitguardfs.fs.tree import Tree
from gitguardfs.live import helper
from gitguardfs.live.helper_process import HelperProcess
from gitguardfs.live.known_names import KnownNames, Place
from gitguardfs.live.own_changes import OwnChanges
from gitguardfs.live.steps import REQUESTS, Step, may_be_unasked, otherwise, path_of
from gitguardfs.sessions.base import Session
from gitguardfs.view.view import LOOKS, NOT_ANNOUNCED

log = logging.getLogger(__name__)

MOST_FAILURES = 3
"""Helpers that end by themselves, one after the other, before no more is started."""
MOST_STUCK = 3
"""Helpers that wait for programs of the guest at a time."""
START_LIMIT = 60.0
"""Seconds for the start of a helper, which takes long in an emulated guest."""
LIMIT = 1.0
"""Seconds for one call. It may wait for a directory in which a program of the guest is busy."""
ROOT = Caller(GuestUid(0), GuestGid(0))


class Repeating:
    """The queue of calls, and the answers to the requests that they lead to."""

    def __init__(
        self,
        tree: Tree,
        session: Session,
        names: KnownNames,
        own: OwnChanges,
        start: Callable[[], HelperProcess],
        forget: Callable[[list[Place], list[NodeId], Callable[[], None] | None], None],
        look_below: Callable[[Directory], None],
        safely: Callable[[Callable[[], None]], None],
        idle: Callable[[], None],
    ) -> None:
        """``start`` starts a helper, and raises OSError. ``safely`` makes a call that may fail.
        ``idle`` is called when all steps are made.

        ``forget`` has the kernel look names and attributes up again, by the notifier's process; its
        last argument is then called between two requests. ``look_below`` compares what the kernel
        knows below a directory: what came of changes there, by its former path, was lost.
        """
        self._tree = tree
        self._session = session
        self._names = names
        self._own = own
        self._start = start
        self._forget = forget
        self.look_below = look_below
        self._safely = safely
        self._idle = idle
        self._queue: deque[Step] = deque()
        self._helper: HelperProcess | None = None
        self._step: Step | None = None
        """The step whose call is made now."""
        self._is_announced = False
        self._opens: int | None = None
        """The node that the helper may open and close after this call."""
        self._began = 0.0
        self._is_ready = False
        """Whether the helper takes calls."""
        self._stuck: list[tuple[HelperProcess, set[int]]] = []
        """Helpers that were killed and may still wait in the kernel, and where."""
        self._failures = 0
        """How many helpers in a row have ended by themselves."""

    @property
    def is_idle(self) -> bool:
        """Whether no step waits or is being made."""
        return self._step is None and not self._queue

    def add(self, step: Step) -> None:
        """Have a step made, after those that were added before."""
        self._queue.append(step)
        if self._step is None:
            self._next()

    def prepare(self) -> None:
        """Start the helper, unless it runs. Raises OSError."""
        if self._helper is None:
            self._helper, self._is_ready = self._start(), False
            take = partial(self._safely, self._take_answer)
            self._session.add_reader(self._helper.fileno(), take)

    def check_time(self) -> None:
        """Give up a call that takes too long. To be called now and then."""
        limit = LIMIT if self._is_ready else START_LIMIT
        if self._step is not None and monotonic() - self._began > limit:
            if self._helper is not None:
                self._stuck.append((self._helper, _directories(self._step)))
            self.end()
            self._finish(errno.ETIMEDOUT)
            self._next()

    def end(self) -> None:
        """End the helper. The next step starts another one."""
        if self._helper is not None:
            self._session.remove_reader(self._helper.fileno())
            self._helper.end()
            self._helper = None

    # One step after the other

    def _next(self) -> None:
        while self._step is None and self._queue:
            step = self._step = self._queue.popleft()
            self._began = monotonic()
            if step.forgets:
                place = step.parent.id, step.name
                if step.to is not None:
                    place = step.to.id, step.new_name
                return self._forget([place], [], partial(self._safely, partial(self._go_on, step)))
            self._make(step)
        if self.is_idle:
            self._idle()

    def _go_on(self, step: Step) -> None:
        if self._step is step:  # it has not taken too long
            self._make(step)
            self._next()

    def _make(self, step: Step) -> None:
        """Announce a step, and have the helper make its call."""
        more: tuple[int | bytes, ...] = ()
        if step.call == helper.MKNOD and step.st is not None:
            more = (S_IFMT(step.st.st_mode),)
        elif step.call == helper.RENAME and step.to is not None:
            more = path_of(step.to), step.new_name
        try:
            if self._helper is None and self._failures >= MOST_FAILURES:
                return self._finish(errno.ENOTSUP)
            if self._would_wait(step):
                return self._finish(errno.ETIMEDOUT)
            self.prepare()
            assert self._helper is not None
            if not self._is_ready:
                return None  # it is made when the helper says that it is
            self._is_announced, self._opens = True, None
            self._helper.call(step.call, path_of(step.parent), step.name, *more)
        except OSError as error:
            self._finish(error.errno or errno.EIO)

    def _would_wait(self, step: Step) -> bool:
        """Return whether a program holds a directory of a step's up, or too many in all."""
        self._stuck = [each for each in self._stuck if not each[0].has_ended()]
        held = {number for _, directories in self._stuck for number in directories}
        return len(self._stuck) >= MOST_STUCK or not held.isdisjoint(_directories(step))

    def _take_answer(self) -> None:
        if self._helper is None:
            return
        try:
            number = self._helper.answer()
        except BlockingIOError:
            return
        except OSError:
            number = None
        if number == 0 and not self._is_ready:
            self._is_ready, self._began = True, monotonic()
            if self._step is not None:
                self._go_on(self._step)
            return
        if number is None:
            self.end()
            self._failures += 1
            log.warning("the process that repeats the host's changes has ended")
        else:
            self._failures = 0
        step = self._step
        if step is not None and number == errno.ENOENT and may_be_unasked(step):
            self._queue.appendleft(step._replace(forgets=True))
            self._step, number = None, 0
        if self._step is not None:
            self._finish(errno.EPIPE if number is None else number)
        self._next()

    def _finish(self, number: int) -> None:
        step, self._step = self._step, None
        was_announced, self._is_announced, self._opens = self._is_announced, False, None
        if step is not None and (number or was_announced):  # the kernel has not taken it over
            places: list[Place] = [(step.parent.id, step.name)]
            places += [] if step.to is None else [(step.to.id, step.new_name)]
            nodes = [place[0] for place in places]
            nodes += [] if step.node is None else [step.node.id]
            self._forget(places, [NodeId(node) for node in nodes], None)
            if step.call == helper.RENAME:
                self._queue.extendleft(reversed(otherwise(step, number)))

    # The requests

    def serve(self, request: str, arguments: tuple[Any, ...]) -> Any:
        """Return the answer to a request of the helper's group, or NOT_ANNOUNCED.

        Raises OSError: ENOENT for a name that is to be made, EPERM for any change that is not
        announced.
        """
        step = self._step if self._is_announced else None
        if request == "open" and self._opens is not None and arguments[0] == self._opens:
            self._opens = None
            return self._tree.open(ROOT, NodeId(arguments[0]), os.O_RDONLY)
        if step is not None and request == "lookup":
            return self._found(step, arguments)
        if step is None or request != REQUESTS[step.call] or not self._matches(step, arguments):
            if request in LOOKS:
                return NOT_ANNOUNCED
            if request == "setattr":  # the kernel has found something else at the name
                self._forget([], [NodeId(arguments[0])], None)
            raise os_error(errno.EPERM)
        self._is_announced = False
        if request in ("unlink", "rmdir"):
            return self._removed(step)
        if request == "rename":
            return self._moved(step)
        return self._changed(step) if request == "setattr" else self._made(step)

    def _matches(self, step: Step, arguments: tuple[Any, ...]) -> bool:
        """Return whether a request is what a call leads to."""
        if REQUESTS[step.call] == "setattr":
            node = self._changing(step)
            return node is not None and arguments[0] == node.id
        if arguments[:2] != (step.parent.id, step.name):
            return False
        return step.to is None or arguments[2:4] == (step.to.id, step.new_name)

    def _changing(self, step: Step) -> Node | None:
        if step.node is not None and self._is_known(step.node):
            return step.node
        return self._names.at(step.parent, step.name)

    def _moving(self, step: Step) -> Node | None:
        if step.node is not None and self._is_known(step.node):
            return step.node
        return None if step.to is None else self._names.at(step.to, step.new_name)

    def _is_known(self, node: Node) -> bool:
        """Return whether the kernel still knows a node: its number may be another one's by now."""
        return self._tree.nodes.by_id.get(node.id) is node

    def _found(self, step: Step, arguments: tuple[Any, ...]) -> Any:
        """Return what the kernel is to find at a name."""
        place = arguments[:2]
        if step.to is not None and place == (step.to.id, step.new_name):
            if step.replaced is None:
                raise os_error(errno.ENOENT)
            return self._as_before(step.replaced)
        if place != (step.parent.id, step.name) or REQUESTS[step.call] == "setattr":
            return NOT_ANNOUNCED
        if step.call == helper.RENAME:
            return self._as_before(self._moving(step))
        if step.call in (helper.UNLINK, helper.RMDIR):
            return self._as_before(step.node, S_IFDIR if step.call == helper.RMDIR else S_IFREG)
        raise os_error(errno.ENOENT)

    def _as_before(self, node: Node | None, mode: int = S_IFREG) -> EntryReply:
        """Return the entry of an object that has lost the name.

        None is one that nobody knows, of the type ``mode``.
        """
        size = 0
        node_id = None
        if node is not None:
            mode, size = node.file_type, max(node.size, 0)
            if self._is_known(node):
                node.lookup_count += 1
                node_id = node.id
        if node_id is None:
            node_id = self._tree.nodes.next_own_id()
        shown = Attributes(node_id, mode | 0o600, 1, 0, 0, 0, size, 0, 4096, 0, 0, 0)
        return EntryReply(node_id, shown, 0.0, 0.0)

    def _removed(self, step: Step) -> None:
        self._lost(step.node)
        self._own.note_gone((step.parent.id, step.name))

    def _lost(self, node: Node | None) -> None:
        """Note that the kernel takes a node for deleted.

        Nothing is ever found in a directory that it has seen deleted: if the host has moved it, it
        gets another number where it is.
        """
        if node is not None:
            self._names.lost(node)
            if isinstance(node, Directory) and self._is_known(node):
                self._tree.nodes.retire(node)

    def _made(self, step: Step) -> EntryReply:
        """Return the entry of an object that the host has made."""
        assert step.st is not None
        parent, name = step.at or (step.parent, step.name)
        fd = self._tree.descriptors.of(parent)
        st = self._tree.source.stat_at(fd, name)
        if S_IFMT(st.st_mode) != S_IFMT(step.st.st_mode):
            raise os_error(errno.ESTALE)
        ref = NodeRef(parent, fd, name, self._tree.guard.is_plain(name))
        found = self._tree.resolver.entry(ref, st, ROOT.uid)
        if found is None:
            raise os_error(errno.EPERM)
        node, reply = found
        self._own.note_made((step.parent.id, step.name))
        self._note_known(node, st)
        if isinstance(node, Directory) and node.lookup_count > 1:
            self.look_below(node)
        return reply

    def _moved(self, step: Step) -> None:
        assert step.to is not None
        self._lost(step.replaced)
        node = self._moving(step)
        if node is not None and step.st is not None:
            self._tree.nodes.move(node, step.to, step.new_name)
            self._own.note_content(node.id, change_key(step.st))
            if isinstance(node, Directory):
                self.look_below(node)
        self._own.note_gone((step.parent.id, step.name))
        self._own.note_made((step.to.id, step.new_name))

    def _changed(self, step: Step) -> EntryReply:
        """Return the attributes of a file that the host has changed.

        The kernel drops the file's pages when it next sees another mtime, or another size. The
        reply to SETATTR does not count for that, so it has another mtime, which nobody gets to see.
        """
        node = self._changing(step)
        assert node is not None
        st = self._tree.source.stat(self._tree.descriptors.of(node))
        reply = self._tree.attributes.report(node, st, ROOT.uid)
        self._note_known(node, st)
        shown = reply.attributes
        assert shown is not None
        if node.file_type == S_IFREG:  # its content may have changed before the line came
            node.reported = 0
            reply = reply._replace(attributes=shown._replace(mtime_ns=shown.mtime_ns - 1))
        return reply._replace(attr_timeout=0.0)

    def _note_known(self, node: Node, st: os.stat_result) -> None:
        self._own.note_content(node.id, change_key(st))
        if node.file_type == S_IFREG:
            self._opens = node.id


def _directories(step: Step) -> set[int]:
    return {step.parent.id} if step.to is None else {step.parent.id, step.to.id}
