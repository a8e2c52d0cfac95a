"""Checks directories that are moved or removed, with all that lies below them.

git on the host uses paths: while it makes a repository, it continues in whatever directory has the
path. So neither a forming directory nor one above it is moved, exchanged or replaced. An empty
directory that git may just have made is not removed.

``tree_walk`` limits how many directories are checked. A larger tree is never exchanged. After it
is moved, nothing may get its old name for as long as git would need (``left_places``). Names in it
that git may restore are then looked up where the tree is (``removed_names``).

A directory also brings names along. What git may restore at its new place must not make a
repository together with them, as if each name were added there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from stat import S_IFDIR, S_IFLNK, S_ISDIR

from gitguardfs.fs.access import NodeRef
from gitguardfs.fs.arrival import Arrival
from gitguardfs.fs.forming import Forming
from gitguardfs.fs.left_places import LeftPlaces
from gitguardfs.fs.removed_names import TOO_MANY, Removal, RemovedNames
from gitguardfs.fs.renaming import Renaming
from gitguardfs.fs.revalidation import UNREADABLE
from gitguardfs.fs.source import Source
from gitguardfs.fs.tree_walk import Directory, TreeWalk
from gitguardfs.guard.rules import Refused
from gitguardfs.protocol import Later

TOO_LARGE = "exchange of a directory that is too large to be checked"
TOO_LARGE_HERE = "too large to be checked, moved to where git may restore parts of a repository"

MAX_ARRIVING = 8192
"""Directories of an arriving tree that are checked where git may restore something below its new
name: most trees of packages have fewer, and listing so many takes some tenths of a second."""


class MovedTrees:
    """Checks before and after directories are moved, and before they are removed."""

    def __init__(
        self,
        source: Source,
        forming: Forming,
        removed: RemovedNames,
        refused: Callable[[str, NodeRef], Refused],
    ) -> None:
        """Take ``refused``, which returns the Refused for a rule and a place."""
        self._source = source
        self._forming = forming
        self._removed = removed
        self._refused = refused
        self._left = LeftPlaces()

    def before_adding(self, ref: NodeRef, file_type: int) -> None:
        """Raise Later if an object of type ``file_type`` (S_IFMT) must not get the name yet."""
        if file_type in (S_IFDIR, S_IFLNK):
            self._left.wait_for(ref)

    def before_rename(self, renaming: Renaming) -> None:
        """Check a rename, and record the moved names that git may restore.

        They are recorded before the call, since even one that reports an error may have moved the
        entry, and before the arriving trees are checked: of two that are exchanged, each comes to
        where the other was. Raises Later, Refused, OSError.
        """
        removals = self._before_leaving(renaming)
        if not self._removed.has_room_for(removals):
            raise self._refused(TOO_MANY, renaming.old)
        self._removed.note_removed(removals)
        for (old, st), (new, _) in zip(renaming.leaving(), renaming.arriving(), strict=True):
            if S_ISDIR(st.st_mode):
                self._before_arrival(old, new)

    def _before_leaving(self, renaming: Renaming) -> list[Removal]:
        found: list[Removal] = []
        new, target = renaming.new, renaming.target
        if target is not None and not renaming.exchange:
            fd = self._source.open_node(new.fd, new.name)
            try:
                self.before_removal(target, fd)
            finally:
                os.close(fd)
            found += self._removed.losing(new.parent, new.fd, new.name, target.st_mode)
        for ref, st in renaming.leaving():
            found += self._removed.losing(ref.parent, ref.fd, ref.name, st.st_mode)
            if S_ISDIR(st.st_mode):
                found += self._before_move(ref, st, renaming)
        return found

    def _before_move(self, ref: NodeRef, st: os.stat_result, renaming: Renaming) -> list[Removal]:
        self._left.wait_for_below(st)
        found: list[Removal] = []
        walk = TreeWalk(self._source)
        for directory in self._below(ref, walk):
            self._forming.wait_for_listed(directory.fd, directory.file_types)
            found += self._removed.losing_in(ref.parent, ref.name, directory)
        if not walk.is_whole:
            if renaming.exchange:
                raise self._refused(TOO_LARGE, ref)
            new = renaming.new
            if not self._removed.note_large_move(ref.parent, ref.name, new.parent, new.name):
                raise self._refused(TOO_MANY, ref)
            self._left.note(ref)
        return found

    def _before_arrival(self, old: NodeRef, new: NodeRef) -> None:
        arrival = Arrival(self._removed, old, new)
        if not arrival.concerns(()):
            return
        walk = TreeWalk(self._source, MAX_ARRIVING, arrival.concerns)
        for directory in self._below(old, walk):
            if arrival.completes(directory):
                raise self._refused("fake repository", new)
        if not walk.is_whole:
            raise self._refused(TOO_LARGE_HERE, new)

    def after_rename(self, renaming: Renaming) -> None:
        """Check the moved trees again. Raises Later, Refused or OSError; the caller then undoes it.

        A rename that replaced an entry cannot be undone. Then this returns, and for FORMING_FOR
        nothing may get the old name.
        """
        try:
            self._check_again(renaming)
        except (Later, OSError):
            if renaming.can_be_undone:
                raise
            self._left.note(renaming.old)

    def _check_again(self, renaming: Renaming) -> None:
        for ref, st in renaming.arriving():
            if not S_ISDIR(st.st_mode):
                continue
            for directory in self._below(ref, TreeWalk(self._source)):
                if not directory.path:  # this mount changed it, by the rename
                    self._forming.note_change(directory.fd)
                self._forming.wait_for_listed(directory.fd, directory.file_types)

    def before_removal(self, st: os.stat_result, fd: int) -> None:
        """Raise Later if an entry must not be removed yet; OSError if the source fails."""
        if S_ISDIR(st.st_mode):
            self._left.wait_for_below(st)
            self._forming.wait_for_removal(fd)

    def _below(self, ref: NodeRef, walk: TreeWalk) -> Iterator[Directory]:
        fd = self._source.open_node(ref.fd, ref.name)
        try:
            if S_ISDIR(self._source.stat(fd).st_mode):
                yield from walk.directories(fd)
        except PermissionError:
            raise self._refused(UNREADABLE, ref) from None
        finally:
            os.close(fd)
