"""Checks directories that are moved or removed, with all that lies below them.

git on the host uses paths: while it makes a repository, it continues in whatever directory has the
path. So neither a forming directory nor one above it is moved, exchanged or replaced. An empty
directory that git may just have made is not removed.

``tree_walk`` limits how many directories are checked. A larger tree is never exchanged. After it
is moved, nothing may get its old name for as long as git would need (``left_places``). Names in it
that git may restore are then looked up where the tree is (``removed_names``).

While git is at work in a bare repository, or in one that a ``gitdir:`` line leads to, it also uses
its path. If a symlink took that path, git would run the hooks where the symlink leads. So after a
tree with such a repository was moved away, no symlink takes the place of a directory that holds the
repository, or of one above it. The same holds for a tree that is too large to be searched. Such
trees are not exchanged either.

A directory also brings names along. These must not make a repository together with what git may
restore at the new place, as if each name were added there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from stat import S_IFDIR, S_IFLNK, S_ISDIR

from gitguardfs.fs.access import NodeRef
from gitguardfs.fs.arrival import Arrival
from gitguardfs.fs.forming import Forming
from gitguardfs.fs.left_places import LeftPlaces
from gitguardfs.fs.nodes import Path, path_of
from gitguardfs.fs.removed_names import TOO_MANY, Removal, RemovedNames
from gitguardfs.fs.renaming import Renaming
from gitguardfs.fs.revalidation import UNREADABLE
from gitguardfs.fs.source import Source
from gitguardfs.fs.tree_walk import Directory, TreeWalk
from gitguardfs.guard import repository
from gitguardfs.guard.dotgit import is_dotgit
from gitguardfs.guard.rules import Refused
from gitguardfs.protocol import Later

TOO_LARGE = "exchange of a directory that is too large to be checked"
EXCHANGED_REPOSITORY = "exchange of a directory that holds a repository further down"
IN_PLACE_OF_REPOSITORY = "symlink in the place of a directory that may hold a repository"
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
        """Check that an object of type ``file_type`` (S_IFMT) may get a name.

        Raises Later, Refused, OSError.
        """
        if file_type in (S_IFDIR, S_IFLNK):
            self._left.wait_for(ref)
        if file_type == S_IFLNK:
            self._before_symlink(ref, path_of(ref.parent, ref.name))

    def _before_symlink(self, ref: NodeRef, path: Path) -> None:
        """Check that a symlink may get a ``path``, at or below ``ref``. Raises Refused, OSError."""
        places = self._removed.moved_from(path)
        if places is None:
            raise self._refused(IN_PLACE_OF_REPOSITORY, ref)
        walk = TreeWalk(self._source, MAX_ARRIVING)
        for place in places:
            with self._removed.opened(place) as fd:
                holds = fd >= 0 and any(map(self._is_repository, self._walked(ref, walk, fd)))
            if holds or not walk.is_whole:
                raise self._refused(IN_PLACE_OF_REPOSITORY, ref)

    def _is_repository(self, directory: Directory) -> bool:
        """Return whether git would use a directory as a repository, and it is in no ``.git``."""
        return (
            any(map(repository.parts, directory.file_types))
            and not any(map(is_dotgit, directory.path))
            and self._source.holds_repository(directory.fd)
        )

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
        holds_repository = False
        walk = TreeWalk(self._source)
        for directory in self._below(ref, walk):
            self._forming.wait_for_listed(directory.fd, directory.file_types)
            holds_repository = holds_repository or self._is_repository(directory)
            found += self._removed.losing_in(ref.parent, ref.name, directory)
        if renaming.exchange and not walk.is_whole:
            raise self._refused(TOO_LARGE, ref)
        if renaming.exchange and holds_repository:
            raise self._refused(EXCHANGED_REPOSITORY, ref)
        if holds_repository or not walk.is_whole:
            new = renaming.new
            if not self._removed.note_move(ref.parent, ref.name, new.parent, new.name):
                raise self._refused(TOO_MANY, ref)
        if not walk.is_whole:
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
            for name, file_type in directory.file_types.items():
                if file_type == S_IFLNK:
                    self._before_symlink(new, path_of(new.parent, new.name, *directory.path, name))
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
                yield from self._walked(ref, walk, fd)
        finally:
            os.close(fd)

    def _walked(self, ref: NodeRef, walk: TreeWalk, fd: int) -> Iterator[Directory]:
        try:
            yield from walk.directories(fd)
        except PermissionError:
            raise self._refused(UNREADABLE, ref) from None
