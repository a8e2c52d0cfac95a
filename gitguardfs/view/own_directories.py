"""Decides in which tree a name is: the share, or the guest's own directories (``--local``).

The guest's own directories are a tree like the share, with its own source, timeouts and nodes. All
that lies below one of them goes there by its number. The requests here are those on a name in a
directory of the share that may be one of the guest's own, and those that may concern both trees.

A move from one tree to the other is EXDEV: programs copy then.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from stat import S_IFDIR, S_ISDIR
from typing import NamedTuple

from gitguardfs.base.constants import LOCAL_OWN
from gitguardfs.base.errors import os_error
from gitguardfs.base.protocol import RENAME_EXCHANGE, Caller, EntryReply, NodeId
from gitguardfs.fs.access import NodeRef, Renaming
from gitguardfs.fs.nodes import LOCAL_NUMBERS, LOCAL_TREE, TREE_BITS, Directory, Node, is_local
from gitguardfs.fs.tree import Tree
from gitguardfs.names.local_names import LocalNames
from gitguardfs.names.rules import ALLOW
from gitguardfs.view.stand_ins import StandIns

log = logging.getLogger(__name__)

Name = tuple[NodeId, bytes]
"""The node number of a directory, and a name in it."""


class Decision(NamedTuple):
    """The tree that a name in a directory of the share leads to."""

    path: list[bytes]
    """The directory that the name is in."""
    is_own: bool
    """Whether a directory of that name is the guest's, or would be if it were made."""
    stand_in: Directory | None = None
    """The guest's directory in which its own directory of that name is; None if there is none."""


SHARE = Decision([], False)
"""The decision for a name that leads to the share, if anywhere. Its path was not looked up."""


class _Entry(NamedTuple):
    """A name in one of the trees."""

    is_local: bool
    parent: NodeId
    name: bytes
    is_directory: bool


class OwnDirectories:
    """The requests on names that may be in either tree. Each raises Refused, OSError."""

    def __init__(self, share: Tree, local: Tree, names: LocalNames) -> None:
        """Take the directories that ``names`` names from ``local``, and all others from ``share``.

        The nodes and handles of ``local`` have ``LOCAL_NUMBERS``.
        """
        self.local = local
        self.marker = names.marker
        """Returns the marker for a name; None if no such directory is the guest's."""
        self._share = share
        self._stand_ins = StandIns(local)

    # Decisions

    def _decide(self, ref: NodeRef) -> Decision:
        """Return where a name in a directory of the share leads.

        Anything but a directory of the share is shown as it is there.
        """
        if self._is_marked(ref):
            there = self._share.source.mode_at(ref.fd, ref.name)
            if there is None or S_ISDIR(there):
                return self._decide_on_directory(ref, there is not None)
        return SHARE

    def _is_marked(self, ref: NodeRef) -> bool:
        """Return whether a directory of that name may be the guest's; rules for names come first.

        Below a guarded directory none is.
        """
        is_guarded = ref.parent.verdict is not ALLOW or not self._share.check.allows(ref.name)
        return not is_guarded and self.marker(ref.name) is not None

    def _decide_on_directory(self, ref: NodeRef, is_there: bool) -> Decision:
        """Return where the name of a directory leads; ``is_there``: the share has that directory.

        A marker decides when a directory is made: the guest's own stay when the marker goes.
        """
        marker = self.marker(ref.name)
        assert marker is not None
        source = self._share.source
        path = self._share.check.names_to(ref.parent)
        stand_in = self._stand_ins.find(path)
        if stand_in is not None and self._stand_ins.has_own(stand_in, ref.name):
            return Decision(path, True, stand_in)

        def is_inside(name: bytes) -> bool:
            fd = source.open_node(ref.fd, ref.name)
            try:
                return source.find_at(fd, name) is not None
            finally:
                os.close(fd)

        is_own = marker.is_met(
            path[-1] if path else b"",
            is_there,
            is_beside=lambda name: source.find_at(ref.fd, name) is not None,
            is_inside=is_inside,
        )
        return Decision(path, is_own)

    def overlay(
        self, directory: Directory, dir_fd: int, names: list[bytes]
    ) -> dict[bytes, tuple[int, int] | None]:
        """Return the guest's own directories in a listing of the share; None hides the share's.

        A name whose lookup fails in the share stays as the listing has it.
        """
        stand_in = self._stand_in_of(directory) if directory.verdict is ALLOW else None
        own = {} if stand_in is None else self._stand_ins.own_in(stand_in)
        shown: dict[bytes, tuple[int, int] | None] = {}
        for name in {*filter(self.marker, names), *filter(self.marker, own)}:
            try:
                decision = self._decide(NodeRef(directory, dir_fd, name))
            except OSError:
                continue
            if decision.stand_in is not None:
                shown[name] = S_IFDIR, LOCAL_NUMBERS.offset + own.get(name, 0)
            elif decision.is_own:
                shown[name] = None
        return shown

    def _stand_in_of(self, directory: Node, *names: bytes) -> Node | None:
        """Return the stand-in of a directory of the share, or of one below it, as last seen.

        A directory that was removed, which a process may still be in, has none.
        """
        if self._stand_ins.is_empty and (names or directory is not self._share.nodes.root):
            return None
        try:
            path = self._share.check.names_to(directory)
        except OSError:
            return None
        return self._stand_ins.find([*path, *names])

    def _path(self, parent: Directory, *names: bytes) -> list[bytes]:
        """Return the present path of a name in the share, also if the host has just moved it."""
        self._share.check.check_now(parent)
        return [*self._share.check.names_to(parent), *names]

    def _changing(self, parent_id: NodeId, name: bytes) -> NodeRef:
        """Check that a name may be changed, and return it; note its directory's present path."""
        self._share.check.check_now(self._share.check.directory(parent_id))
        return self._share.check.name(parent_id, name, change=True)

    def forget(self, node_id: NodeId, times: int) -> None:
        """Undo ``times`` lookups of a node."""
        (self.local if is_local(node_id) else self._share).forget(node_id, times)
        self._stand_ins.note_forgotten()

    # Requests on a name in a directory of the share

    def lookup(self, caller: Caller, parent_id: NodeId, name: bytes) -> EntryReply:
        """Find an entry and count a lookup of its node."""
        ref = self._share.check.name(parent_id, name)
        _, is_own, stand_in = self._decide(ref)
        if stand_in is not None:
            return self._top(self.local.lookup(caller, stand_in.id, LOCAL_OWN + name))
        if is_own:
            return EntryReply(NodeId(0), None, self._share.least_timeout, 0.0)
        return self._share.lookup(caller, parent_id, name, ref)

    def _top(self, reply: EntryReply) -> EntryReply:
        """Return a reply for an entry of the share: the host may put something in its way."""
        return reply._replace(entry_timeout=self._share.least_timeout)

    def mkdir(self, caller: Caller, parent_id: NodeId, name: bytes, mode: int) -> EntryReply:
        """Make a directory."""
        path, is_own, _ = self._decide(self._changing(parent_id, name))
        if not is_own:
            return self._share.mkdir(caller, parent_id, name, mode)
        try:
            stand_in = self._stand_ins.make(path)
            return self._top(self.local.mkdir(caller, stand_in.id, LOCAL_OWN + name, mode))
        except BaseException:
            self._stand_ins.tidy(path)
            raise

    def link(self, caller: Caller, node_id: NodeId, parent_id: NodeId, name: bytes) -> EntryReply:
        """Give a file another name. Raises OSError(EXDEV) for a name in the other tree."""
        if is_local(node_id) != is_local(parent_id):
            raise os_error(errno.EXDEV)
        if is_local(parent_id):
            return self.local.link(caller, node_id, parent_id, name)
        if self.marker(name) is not None:
            self.check_free(parent_id, name)
        return self._share.link(caller, node_id, parent_id, name)

    def check_free(self, parent_id: NodeId, name: bytes) -> None:
        """Check that a name of the share is free for something other than a directory.

        Raises OSError(EEXIST) if a directory has it: one of the guest's own, or one of the share
        that is not shown.
        """
        ref = self._share.check.name(parent_id, name, change=True)
        _, is_own, stand_in = self._decide(ref)
        if is_own and (stand_in or self._share.source.find_at(ref.fd, name)):
            raise os_error(errno.EEXIST)

    def unlink(self, caller: Caller, parent_id: NodeId, name: bytes) -> None:
        """Remove an entry that is not a directory."""
        if self._found(parent_id, name).is_local:
            raise os_error(errno.EISDIR)
        self._share.unlink(caller, parent_id, name)

    def rmdir(self, caller: Caller, parent_id: NodeId, name: bytes) -> None:
        """Remove an empty directory."""
        is_empty = self._stand_ins.is_empty
        if is_local(parent_id):
            self.local.rmdir(caller, parent_id, name)
            return
        if self.marker(name) is not None:
            entry = self._found(parent_id, name)
            if entry.is_local:
                self.local.rmdir(caller, entry.parent, entry.name)
                self._tidy(parent_id)
                return
        if not is_empty:
            parent = self._share.check.directory(parent_id)
            if self._stand_in_of(parent, name) is not None and self._holds_own(
                self._path(parent, name)
            ):
                raise os_error(errno.ENOTEMPTY)
        self._share.rmdir(caller, parent_id, name)

    def _tidy(self, parent_id: NodeId) -> None:
        self._stand_ins.tidy(self._share.check.names_to(self._share.check.node(parent_id)))

    def _holds_own(self, path: list[bytes]) -> bool:
        """Return whether the guest has directories of its own in one of the share."""
        stand_in = self._stand_ins.find(path)
        return stand_in is not None and any(map(self.marker, self._stand_ins.own_in(stand_in)))

    # Renames

    def rename(
        self,
        caller: Caller,
        old_parent_id: NodeId,
        old_name: bytes,
        new_parent_id: NodeId,
        new_name: bytes,
        flags: int,
    ) -> None:
        """Move an entry, or exchange two. Raises OSError(EXDEV) from one tree to the other."""
        old, new = (old_parent_id, old_name), (new_parent_id, new_name)
        are_local = old_parent_id >> TREE_BITS, new_parent_id >> TREE_BITS
        is_empty = self._stand_ins.is_empty
        if LOCAL_TREE in are_local or self.marker(old_name) or self.marker(new_name):
            if are_local == (LOCAL_TREE, LOCAL_TREE):
                self.local.rename(caller, *old, *new, flags)
                return
            if self._rename_own(caller, old, new, flags):
                return
        if self._share.rename_file(old, new, flags):
            return
        renaming = self._share.check_rename(caller, old, new, flags)
        move = None
        if not is_empty and renaming.moves_directory:
            try:
                move = self._move_of_own(renaming)
            except BaseException:
                renaming.close()
                raise
        self._share.finish_rename(renaming)
        if move is not None:
            move()

    def _rename_own(self, caller: Caller, old: Name, new: Name, flags: int) -> bool:
        """Rename one of the guest's own directories; return False for an entry of the share."""
        moved = self._found(*old)
        target = self._destination(*new, moved)
        if flags & RENAME_EXCHANGE:
            self._destination(*old, self._found(*new))
        if moved.is_local:
            self.local.rename(caller, moved.parent, moved.name, target.parent, target.name, flags)
            if not is_local(old[0]):
                self._tidy(old[0])
        return moved.is_local

    def _found(self, parent_id: NodeId, name: bytes) -> _Entry:
        """Return the entry that a name leads to. Raises Refused, OSError(ENOENT)."""
        if is_local(parent_id):
            node = self.local.nodes.get(parent_id)
            st = self.local.source.find_at(self.local.descriptors.of(node), name)
            return _Entry(True, parent_id, name, st is not None and S_ISDIR(st.st_mode))
        ref = self._changing(parent_id, name)
        _, is_own, stand_in = self._decide(ref)
        if stand_in is not None:
            return _Entry(True, stand_in.id, LOCAL_OWN + name, True)
        mode = None if is_own else self._share.source.mode_at(ref.fd, name)
        if mode is None:
            raise os_error(errno.ENOENT)
        return _Entry(False, parent_id, name, S_ISDIR(mode))

    def _destination(self, parent_id: NodeId, name: bytes, moved: _Entry) -> _Entry:
        """Return where ``moved`` would be under a new name.

        Raises Refused; OSError: EXDEV if that is in the other tree, EISDIR if it is no directory
        and a directory has the name.
        """
        target = moved._replace(parent=parent_id, name=name, is_local=is_local(parent_id))
        if not target.is_local:
            ref = self._changing(parent_id, name)
            there = self._share.source.mode_at(ref.fd, name)
            is_directory = there is not None and S_ISDIR(there)
            decision = SHARE
            if self._is_marked(ref) and (there is None or is_directory or moved.is_directory):
                decision = self._decide_on_directory(ref, is_directory)
            if decision.is_own and moved.is_directory:
                if not moved.is_local or (there is not None and not is_directory):
                    raise os_error(errno.EXDEV)
                return _Entry(True, self._stand_ins.make(decision.path).id, LOCAL_OWN + name, True)
            if decision.stand_in is not None or (decision.is_own and is_directory):
                raise os_error(errno.EISDIR)
        if target.is_local is not moved.is_local:
            raise os_error(errno.EXDEV)
        return target

    def _move_of_own(self, renaming: Renaming) -> Callable[[], None] | None:
        """Return the call that moves the guest's own directories after a rename; None if none move.

        Raises OSError: ENOTEMPTY if the guest has some in a directory that is replaced, and
        ENAMETOOLONG.
        """
        ends = (renaming.old, renaming.new)
        if not any(self._stand_in_of(ref.parent, ref.name) for ref in ends):
            return None
        old, new = (self._path(ref.parent, ref.name) for ref in ends)
        moves = S_ISDIR(renaming.moved.st_mode)
        replaces = renaming.target is not None and S_ISDIR(renaming.target.st_mode)
        if replaces and not renaming.exchange and self._holds_own(new):
            raise os_error(errno.ENOTEMPTY)
        if moves and self._stand_ins.find(old) is not None:
            self._stand_ins.check_room(new)
        if renaming.exchange and replaces and self._stand_ins.find(new) is not None:
            self._stand_ins.check_room(old)

        def move() -> None:
            try:
                if moves:
                    self._stand_ins.move(old, new, renaming.exchange and replaces)
                elif renaming.exchange and replaces:
                    self._stand_ins.move(new, old, False)
            except OSError as error:
                log.error(
                    "the guest's own directories in %r stay at their former path (%s): see"
                    " gitguard local list",
                    b"/".join(old),
                    error.strerror,
                )

        return move
