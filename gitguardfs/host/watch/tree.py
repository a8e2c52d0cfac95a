"""One watched directory: places inotify(7) watches below it, and turns events into lines.

Symlinks are never followed: each directory is opened by its name in the one above it, and watched
by that descriptor. Names that the guard keeps from the guest, and those that the guest has itself,
have no watch and no line.

Reading a tree takes long, so ``step`` reads a part of it each time. A directory that appears is
watched first, then read, then told, with ``again``: entries may have come and gone before its
watch. Moves are told at once, all else when it is settled, so that each path is one of its time.
"""

from __future__ import annotations

import errno
import math
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from stat import S_ISREG
from typing import NamedTuple

from inotify_simple import INotify, flags, parse_events

from gitguardfs.base import walk
from gitguardfs.base.errors import Exit, UserError, shown, warn
from gitguardfs.host.watch import file_systems
from gitguardfs.host.watch.nodes import Node, Nodes
from gitguardfs.host.watch.settling import SETTLED, Change, Event, Settling
from gitguardfs.names.dotgit import is_dotgit
from gitguardfs.names.local_names import ALWAYS, LocalNames

MASK = (
    flags.CREATE | flags.DELETE | flags.MODIFY | flags.CLOSE_WRITE | flags.ATTRIB
    | flags.MOVED_FROM | flags.MOVED_TO | flags.DELETE_SELF | flags.MOVE_SELF
    | flags.DONT_FOLLOW | flags.ONLYDIR | flags.EXCL_UNLINK
)  # fmt: skip
READ = 1 << 16
"""Bytes of events that are read at a time, some 1,500: lines and beats go out between."""
LONG = 1.0
"""Seconds after which a directory that came counts as not watched as long as it is read."""
LONG_READING = "a new directory is being read"
LINKED = 0.5
"""Seconds between looks at all, at least, for files that got further names."""
STEP = 0.02
"""Seconds that one step may read directories."""
LIMIT = "limit of inotify watches"
RAISE = """not all of {path} is watched: the user's limit of inotify watches is reached \
(sudo sysctl fs.inotify.max_user_watches=1048576, then start gitguard watch again)"""
_VANISHED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_OF_LISTINGS = flags.CREATE | flags.DELETE | flags.MOVED_FROM | flags.MOVED_TO
_EVENTS = {
    flags.CREATE: Event.APPEARED, flags.DELETE: Event.WENT, flags.MODIFY: Event.WRITTEN,
    flags.CLOSE_WRITE: Event.WRITTEN, flags.ATTRIB: Event.ATTRIBUTES,
}  # fmt: skip

Key = tuple[Node, str]
Tell = Callable[[dict[str, object]], None]


class _Leaving(NamedTuple):
    """A name that was moved, as long as nobody knows where to."""

    key: Key
    change: Change | None
    node: Node | None
    due: float


class _Scan(walk.TreeScan):
    """A walk that places a watch on each directory before it reads the directory."""

    def __init__(self, tree: Tree, top: int, path: str, parent: Node | None, name: str) -> None:
        super().__init__(top, path, tree.unread)
        self._tree, self._parent, self._name = tree, parent, name
        self.node: Node | None = None

    def is_new(self, path: str, fd: int) -> bool:
        """Place a watch; return whether this directory is in the tree at this path. OSError."""
        if self.node is None:
            self.node = self._tree.place(fd, self._parent, self._name)
            return self.node is not None
        above, _, name = path[len(self.path.rstrip("/")) + 1 :].rpartition("/")
        parent: Node | None = self.node
        for part in above.split("/") if above else ():
            parent = None if parent is None else Nodes.child(parent, part)
        return parent is not None and self._tree.place(fd, parent, name) is not None


class Tree:
    """The watches on one directory and all below it, and its lines."""

    def __init__(self, tag: str, path: str, without: tuple[str, ...], tell: Tell) -> None:
        """Watch ``path``, a directory's path without symlinks; ``tell`` gets each line. OSError."""
        self.tag, self.path = tag, path
        self.why = "the directory is being read"
        """The reason why not all is watched; empty if all is."""
        self.last_change: float | None = None
        """The time of the last line about a change (Unix time)."""
        self._tell, self._local = tell, LocalNames(without)
        self._top = walk.open_directory(path)
        self._inotify = INotify(nonblocking=True)
        self._nodes = Nodes()
        self._settling: Settling[Key] = Settling()
        self._leaving: dict[int, _Leaving] = {}
        self._last_move: tuple[Key, Key] | None = None
        self._scans: deque[Iterator[None]] = deque([self._read_all()])
        self._reading_all = True
        self._met: set[int] = set()
        """Watches that the present reading of the whole tree has met."""
        self._lasting = ""
        """A reason that no reading takes away."""
        self._linked: float | None = None
        """When to have files with further names looked at (time.monotonic)."""
        self._has_warned = False
        """Whether the user has been told of the limit."""

    def fileno(self) -> int:
        """Return the descriptor that is readable when there are events."""
        return int(self._inotify.fileno())

    def close(self) -> None:
        """End all watches."""
        self._inotify.close()
        os.close(self._top)

    @property
    def watched(self) -> int:
        """The number of directories that are watched."""
        return len(self._nodes)

    def state(self) -> dict[str, object]:
        """Return the line that says whether all is watched."""
        line: dict[str, object] = {"in": self.tag, "whole": not self.why}
        return line | {"why": self.why} if self.why else line

    def again(self) -> dict[str, object]:
        """Return the line by which the reader looks again at everything."""
        return {"in": self.tag, "again": ""}

    # Time

    def wait(self, now: float) -> float | None:
        """Return how many seconds ``step`` may wait if there are no events; None for ever."""
        if self._scans:
            return 0.0
        times = [each.due for each in self._leaving.values()]
        times += [due for due in (self._settling.next_due, self._linked) if due is not None]
        return max(0.0, min(times) - now) if times else None

    def step(self) -> None:
        """Read events and a part of the tree; tell what is settled.

        Raises UserError if the directory itself has gone.
        """
        with suppress(BlockingIOError):
            # In the order of inotify_simple.Event: wd, mask, cookie, name.
            for event in parse_events(os.read(self.fileno(), READ)):
                self._handle(*event)
        end = time.monotonic() + STEP
        while self._scans and time.monotonic() < end:
            if next(self._scans[0], self) is self:
                self._scans.popleft()
        now = time.monotonic()
        for cookie in [c for c, each in self._leaving.items() if each.due <= now]:
            self._left(self._leaving.pop(cookie))
        for (node, name), change in self._settling.settled(now):
            for key in change.lines():
                self._say(key, node, name)
                if key == "made" and self._has_further_names(node, name):
                    self._linked = self._linked or now + LINKED
        if self._linked is not None and self._linked <= now:
            self._linked = None
            self._report({"again": ""})

    # Lines

    def _say(self, key: str, node: Node, name: str) -> None:
        if (path := self._nodes.path(node, name)) is not None:
            self._report({key: path})

    def _report(self, line: dict[str, object]) -> None:
        self.last_change = time.time()
        self._tell({"in": self.tag, **line})

    def _has_further_names(self, node: Node, name: str) -> bool:
        """Return whether a file has a name that may have been looked at while it was the only one.

        No event says that: the reader is told to look at all again.
        """
        with suppress(OSError):
            path = self._nodes.path(node, name)
            st = None if path is None else os.lstat(path, dir_fd=self._top)
            return st is not None and S_ISREG(st.st_mode) and st.st_nlink > 1
        return False

    def _not_whole(self, why: str) -> None:
        if self.why != why:
            self.why = why
            self._tell(self.state())

    def _lacks(self, why: str) -> None:
        """Say for good that not all is watched."""
        self._lasting = self._lasting or shown(why)
        self._not_whole(self._lasting)

    # Events

    def _is_hidden(self, name: str) -> bool:
        raw = os.fsencode(name)
        return is_dotgit(raw) or self._local.marker(raw) is ALWAYS

    def _handle(self, wd: int, mask: int, cookie: int, name: str) -> None:
        if mask & flags.Q_OVERFLOW:
            self._overflowed()
            return
        node = self._nodes.get(wd)
        if node is None:
            return
        if node is self._nodes.root and mask & (
            flags.DELETE_SELF | flags.MOVE_SELF | flags.UNMOUNT | flags.IGNORED
        ):
            self._not_whole("the directory was deleted or moved")
            what = f"{shown(self.path)} was deleted or moved away: it is watched no more"
            raise UserError(what, code=Exit.SYSTEM)
        if mask & flags.UNMOUNT:  # what lay below is there again
            self._overflowed()
        elif mask & flags.IGNORED:
            self._nodes.forget(node)
        elif name and not self._is_hidden(name):
            self._note((node, name), mask, cookie)
        elif name:  # out of sight
            if mask & flags.MOVED_TO and cookie in self._leaving:
                self._left(self._leaving.pop(cookie))
            path = self._nodes.path(node)
            if mask & _OF_LISTINGS and path is not None:
                self._report({"listing": path})
        elif mask & flags.ATTRIB and node is self._nodes.root and not name:
            self._settling.note((node, ""), Event.ATTRIBUTES, time.monotonic())

    def _note(self, key: Key, mask: int, cookie: int) -> None:
        now, is_directory = time.monotonic(), bool(mask & flags.ISDIR)
        if mask & flags.MOVED_FROM:
            change = self._settling.take(key)
            node = Nodes.child(*key) if is_directory else None
            self._leaving[cookie] = _Leaving(key, change, node, now + SETTLED)
        elif mask & flags.MOVED_TO:
            leaving = self._leaving.pop(cookie, None)
            if leaving is not None:
                self._moved(leaving, key, is_directory, now)
            elif is_directory:
                self._scans.append(self._read_new(*key))
            else:
                self._settling.note(key, Event.MOVED_IN, now)
        elif is_directory and mask & flags.CREATE:
            self._scans.append(self._read_new(*key))
        else:
            for flag, event in _EVENTS.items():
                if mask & flag:
                    self._settling.note(key, event, now)
            if is_directory and mask & flags.ATTRIB and Nodes.child(*key) is None:
                self._scans.append(self._read_new(*key))  # perhaps it was not readable

    def _moved(self, leaving: _Leaving, to: Key, is_directory: bool, now: float) -> None:
        old, new = self._nodes.path(*leaving.key), self._nodes.path(*to)
        if old is None or new is None:
            self._left(leaving)
            return
        if leaving.node is not None:
            self._nodes.attach(leaving.node, *to)
        self._settling.take(to)
        self._report({"moved": [old, new]})
        change = leaving.change
        if change is not None and change.is_there and (change.was_there or change.is_read):
            change.is_new = not change.was_there
            change.was_there = True
            self._settling.put(to, change, now)
        if is_directory and (leaving.node is None or self._scans):
            self._scans.append(self._read_new(*to))
        if self._last_move == (to, leaving.key):  # perhaps both were exchanged by one call
            self._settling.note(leaving.key, Event.MOVED_IN, now)
            if is_directory:
                self._scans += [self._read_new(*to), self._read_new(*leaving.key)]
        self._last_move = (leaving.key, to)

    def _left(self, leaving: _Leaving) -> None:
        """Tell that a name is gone, which was moved out of the tree or out of sight."""
        is_brief = leaving.change is not None and leaving.change.was_there is False
        self._say("brief" if is_brief else "gone", *leaving.key)
        if leaving.node is not None and Nodes.child(*leaving.key) is leaving.node:
            self._drop(leaving.node)

    def _drop(self, node: Node) -> None:
        for each in Nodes.below(node):
            with suppress(OSError):  # it has ended by itself
                self._inotify.rm_watch(each.wd)
        for each in list(Nodes.below(node)):
            self._nodes.forget(each)
        node.parent = None

    def _overflowed(self) -> None:
        """Read the whole tree again: the kernel had no room for further events."""
        self._settling.clear()
        self._leaving.clear()
        self._not_whole(self._lasting or "too many changes at once: the tree is being read again")
        self._report({"again": ""})
        self._scans.clear()
        self._scans.append(self._read_all())
        self._reading_all = True

    # Reading

    def _read_all(self) -> Iterator[None]:
        self._met.clear()
        self._lasting = ""
        if (why := file_systems.not_watchable(self.path)) is not None:
            self._lacks(why)
        yield from self._read(None, "")
        self._scans.append(self._end_reading())

    def _end_reading(self) -> Iterator[None]:
        """Forget directories that the reading has not met, after the others that it has caused."""
        if len(self._scans) > 1:
            self._scans.append(self._end_reading())
            return
        for node in self._nodes:
            if node.wd not in self._met and node.parent is not None:
                self._drop(node)
        self._met.clear()
        self._reading_all = False
        self._tell(self.again())
        self.why = self._lasting
        self._tell(self.state())
        yield

    def _read_new(self, parent: Node, name: str) -> Iterator[None]:
        if (yield from self._read(parent, name, time.monotonic() + LONG)):
            change = self._settling.note((parent, name), Event.MOVED_IN, time.monotonic())
            change.is_read = True
        if self.why == LONG_READING and len(self._scans) == 1:  # the last of them
            self._report({"again": ""})
            self.why = self._lasting
            self._tell(self.state())

    def _read(
        self, parent: Node | None, name: str, limit: float = math.inf
    ) -> Generator[None, None, bool]:
        """Watch and read all below a name; return False if it is no directory by now.

        After the time ``limit`` not all counts as watched.
        """
        path = "" if parent is None else self._nodes.path(parent, name)
        if path is None:
            return False
        try:
            fd = walk.open_directory(path, self._top)
        except OSError as error:
            self.unread(path, error)
            return error.errno not in _VANISHED
        try:
            for directory in _Scan(self, fd, path, parent, name).directories():
                directory.enter = [each for each in directory.enter if not self._is_hidden(each)]
                if not self.why and time.monotonic() > limit:
                    self._not_whole(LONG_READING)
                yield
        finally:
            os.close(fd)
        return True

    def unread(self, path: str, error: OSError) -> None:
        """Note that a directory could not be read; one that has gone is none."""
        if error.errno == errno.ENOSPC:
            if not self._has_warned:
                self._has_warned = True
                warn(RAISE.format(path=self.path))
            self._lacks(LIMIT)
        elif error.errno not in _VANISHED:
            self._lacks(f"{path.strip('/') or '.'}: {error.strerror}")

    def place(self, fd: int, parent: Node | None, name: str) -> Node | None:
        """Watch an open directory; return it, or None if it is watched under another name.

        Raises OSError.
        """
        wd = self._inotify.add_watch(f"/proc/self/fd/{fd}/.", MASK)
        node = self._nodes.get(wd)
        if node is None:
            node = self._nodes.add(wd, parent, name)
        elif node.parent is not parent or node.name != name:
            if self._is_at_its_path(node, fd) or parent is None:
                path = self._nodes.path(parent, name) if parent is not None else ""
                self._lacks(f"{path}: a second way to a directory (a bind mount)")
                return None
            self._nodes.attach(node, parent, name)
        if self._reading_all:
            self._met.add(wd)
        return node

    def _is_at_its_path(self, node: Node, fd: int) -> bool:
        path = self._nodes.path(node)
        with suppress(OSError):
            if path is not None:
                other = walk.open_directory(path, self._top)
                try:
                    return os.path.samestat(os.fstat(other), os.fstat(fd))
                finally:
                    os.close(other)
        return False
