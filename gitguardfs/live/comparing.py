"""Compares what the kernel knows with what is there; the difference is repeated in the view."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from stat import S_IFDIR, S_IFMT, S_IFREG

from gitguardfs.fs.attributes import change_key
from gitguardfs.fs.nodes import NEVER, Directory, Node
from gitguardfs.linux import syscalls
from gitguardfs.live import helper, lines
from gitguardfs.live.known_names import KnownNames, Place
from gitguardfs.live.lines import Line, Path
from gitguardfs.live.own_changes import OwnChanges
from gitguardfs.live.repeating import Repeating
from gitguardfs.live.steps import Step, addition, removal
from gitguardfs.names.rules import ALLOW, Refused
from gitguardfs.sessions.base import Session
from gitguardfs.view.view import View

MOST_TOPS = 16
"""Directories below which all is to be compared; if there are more, all below the root is."""
NODES_AT_ONCE = 16
"""Known nodes that are compared at a time."""


class Comparing:
    """Comparisons of names in one view. Names that a rule guards are left alone."""

    def __init__(
        self,
        session: Session,
        view: View,
        names: KnownNames,
        own: OwnChanges,
        repeating: Repeating,
        doubts: Callable[[Place], None],
        source_caches: bool,
    ) -> None:
        """``doubts`` has a name looked up again. ``source_caches`` says that names of the source
        may be a second old.
        """
        self._session = session
        self._view = view
        self._tree = view.share
        self._names = names
        self._own = own
        self._repeating = repeating
        self._doubts = doubts
        self._source_caches = source_caches
        self._tops: deque[Directory] = deque()
        """Directories below which all is to be compared, after the present one."""
        self._looking: Iterator[Node] | None = None

    @property
    def is_looking(self) -> bool:
        """Whether nodes are left that ``look_below`` has asked for."""
        return self._looking is not None or bool(self._tops)

    def compare(self, line: Line) -> None:
        """Compare the names of a line, and repeat the difference."""
        try:
            self._view.apart(partial(self._compare, line))
        except Refused:
            pass
        except OSError:  # a directory on the way is not where it was
            self._repeating.look_below(self._tree.nodes.root)

    def _compare(self, line: Line) -> None:
        if line.kind == lines.LISTING or not line.path:
            directory = self._names.directory(line.path)
            if directory is not None:
                self._touch_listing(directory)
            return
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
        found = self._names.directory(path[:-1])
        parent = None if found is None else self._tree.check.directory(found.id)
        if parent is None or parent.verdict is not ALLOW:
            return None
        if self._view.is_ordinary(path[-1]):
            return parent
        self._touch_listing(parent)
        return None

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
        if self._tree.attributes.drop_listing is not None:
            self._tree.attributes.drop_listing(parent.id)

    def _invalidate(self, node: Node) -> None:
        with suppress(OSError):
            self._session.invalidate(node.id)

    def _differs(self, kind: str, parent: Directory, name: bytes) -> None:
        """Compare a name with what the kernel knows, and repeat the difference."""
        st = self._stat(parent, name)
        known, place = self._names.at(parent, name), (parent.id, name)
        if st is None:
            self._touch_listing(parent)
            if known is not None or not (kind == lines.BRIEF or self._own.has_removed(place)):
                return self._repeating.add(removal(parent, name, known))
            return self._doubts(place)
        is_same = known is not None and known.matches(st)
        if is_same and isinstance(known, Directory) and kind in (lines.MADE, lines.GONE):
            self._repeating.look_below(known)  # another one may have got its number
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
        if node is None:
            self._doubts((parent.id, name))
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
        replaced = self._names.at(*new)
        knows_new = st is not None and replaced is not None and replaced.matches(st)
        if (
            self._own.has_removed(old_place)
            and self._own.has_made(new_place)
            and st is not None
            and replaced is not None
            and knows_new
            and (S_IFMT(st.st_mode) == S_IFDIR or self._own.has_written(replaced, st))
        ):
            self._doubts(old_place)
            return self._doubts(new_place)
        if st is None or self._stat(*old) is not None:  # more has happened since
            self._differs(lines.GONE, *old)
            self._differs(lines.MADE, *new)
            return
        for parent in (old[0], new[0]):
            self._touch_listing(parent)
        moving = self._names.at(*old)
        if moving is None or not moving.matches(st):
            if moving is not None:
                self._repeating.add(removal(*old, moving))
            self._repeating.add(addition(*old, st, forgets=False)._replace(at=new))
            moving = None
        self._repeating.add(
            Step(
                helper.RENAME, *old, moving, st, new[0], new[1], None if knows_new else replaced,
                forgets=knows_new,
            )
        )  # fmt: skip

    def look_below(self, top: Directory) -> None:
        """Compare all that the kernel knows below a directory, by further calls of ``look_on``."""
        if len(self._tops) >= MOST_TOPS:
            self._tops.clear()
            top = self._tree.nodes.root
        if top not in self._tops:
            self._tops.append(top)
        self._touch_listing(top)

    def look_on(self) -> None:
        """Compare some nodes."""
        if self._looking is None:
            self._looking = self._names.below(self._tops.popleft())
        found = list(islice(self._looking, NODES_AT_ONCE))
        for node in found:
            with suppress(OSError, Refused):
                self._view.apart(partial(self._look_at, node))
        if len(found) < NODES_AT_ONCE:
            self._looking = None

    def _look_at(self, node: Node) -> None:
        parent = node.parent
        if isinstance(node, Directory):
            self._touch_listing(node)
        if parent is None or not self._view.is_ordinary(node.name):
            return
        self._tree.check.directory(parent.id)
        st = self._stat(parent, node.name)
        if st is None or not node.matches(st):
            self._differs(lines.GONE, parent, node.name)
        elif node.file_type == S_IFREG and node.reported not in (0, change_key(st)):
            self._changed(lines.CHANGED, parent, node.name, st, node)
