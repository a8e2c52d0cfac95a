"""What must hold because git on the host may be at work on the same files.

The rules are in the modules beside this one: ``symlink_check``, ``host_git``, ``removed_names`` and
``forming``. Here is when they are asked: before a change, after it while it can be undone, and
when it stands.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from stat import S_IFDIR, S_IFLNK, S_IFMT, S_ISDIR, S_ISLNK

from gitguardfs.core.backing import Backing
from gitguardfs.core.descriptors import DescriptorCache
from gitguardfs.core.gate import Gate, Place
from gitguardfs.core.guard import Guard, Refused
from gitguardfs.core.inodes import Node
from gitguardfs.fs.forming import Forming
from gitguardfs.fs.host_git import HostGit
from gitguardfs.fs.removed_names import Removal, RemovedNames
from gitguardfs.fs.symlink_check import SymlinkCheck
from gitguardfs.guard import repository, work_tree

EXCHANGED = "symlink exchanged with a directory"
TOO_MANY = "too many removed parts of repositories"
STOPS_GIT = "special file that git opens"


class HostRules:
    """Asked by what changes names. Raises Refused, Later, and OSError if the source fails."""

    def __init__(
        self,
        guard: Guard,
        gate: Gate,
        descriptors: DescriptorCache,
        backing: Backing,
        root: Node,
        forming: Forming,
        removed: RemovedNames,
    ) -> None:
        self._guard = guard
        self._gate = gate
        self._descriptors = descriptors
        self._backing = backing
        self._forming = forming
        self._removed = removed
        self._symlinks = SymlinkCheck(guard, backing, descriptors, root)
        self._host_git = HostGit(descriptors, backing, root, gate.path)

    # A new name

    def before_adding(self, place: Place, kind: int) -> None:
        """An object of type ``kind`` (S_IFMT) is about to get a name."""
        if self._guard.on and work_tree.stops_git(place.name, kind):
            raise self._refused(STOPS_GIT, place)

    def before_symlink(self, place: Place, text: bytes) -> None:
        """A symlink with ``text`` is about to be made, or to be given a name."""
        self._check_symlink(place, text)
        self.wait_for_git(S_IFLNK, place)

    def wait_for_git(self, kind: int, *places: Place) -> None:
        """A symlink or directory is about to be made or moved at ``places``, or just was."""
        if self._guard.on and kind in (S_IFLNK, S_IFDIR):
            self._host_git.wait_for(*(place.parent for place in places))

    def note_made(self, place: Place, st: os.stat_result, is_new: bool) -> None:
        """Note that a name was made, and stands."""
        if not self._guard.forges:
            return
        self._note_name(place)
        if is_new:
            self._forming.note_clock(st)
            if S_ISDIR(st.st_mode):
                self._forming.note_made(st)
        self.note_change(place)

    # Names that go or move

    def before_removal(self, place: Place, st: os.stat_result) -> None:
        """An entry is about to be removed."""
        self._removed.note_removed(self._losing(place, st, moves=False))

    def before_rename(
        self,
        old: Place,
        new: Place,
        moved: os.stat_result,
        target: os.stat_result | None,
        exchange: bool,
    ) -> None:
        """``old`` is about to be moved to ``new``."""
        self.before_adding(new, S_IFMT(moved.st_mode))
        if exchange and target is not None:
            self.before_adding(old, S_IFMT(target.st_mode))
        self._wait_while_forming(old, moved)
        if target is not None:
            self._wait_while_forming(new, target)
        kinds = {S_IFMT(st.st_mode) for st in (moved, target) if st is not None}
        if exchange and self._guard.speaks and kinds == {S_IFLNK, S_IFDIR}:
            raise self._refused(EXCHANGED, old)
        texts = [(new, self._text(old, moved))]
        if exchange and target is not None:
            texts.append((old, self._text(new, target)))
        for place, text in texts:
            if text is not None:
                self._check_symlink(place, text)
        removals = self._losing(old, moved, moves=True)
        if target is not None:
            removals += self._losing(new, target, moves=exchange)
        self._wait_for_rename(old, new, moved, target, exchange)
        # Noted even if the call fails then: it may have been done all the same.
        self._removed.note_removed(removals)

    def after_rename(
        self,
        old: Place,
        new: Place,
        moved: os.stat_result,
        target: os.stat_result | None,
        exchange: bool,
    ) -> None:
        """Look again whether git is at work, now that they have moved and can be moved back.

        Where something was replaced they cannot; nothing that git had looked at is a symlink then.
        """
        if target is None or exchange:
            self._wait_for_rename(old, new, moved, target, exchange)

    def note_moved(self, *places: Place) -> None:
        """Note that something was moved to ``places``, and stands there."""
        if self._guard.forges:
            for place in places:
                self._note_name(place)
                self._note_moved_directory(place)

    def note_change(self, *places: Place) -> None:
        """Note that names in directories were changed by us; also if that failed or was undone."""
        if self._guard.forges:
            with suppress(OSError):  # then the change is taken for the host's
                for place in places:
                    fd = self._descriptors.of(place.parent)
                    self._forming.note_change(fd, *(one.name for one in places))

    def note_attributes(self, node: Node, fd: int) -> None:
        """Note that the attributes of an object were changed by us."""
        if node.is_directory and self._guard.forges:
            with suppress(OSError):
                self._forming.note_change(fd)

    def _note_name(self, place: Place) -> None:
        if repository.parts(place.name):
            with suppress(OSError):  # then the name is taken for the host's
                self._removed.note_made(self._descriptors.of(place.parent), place.name)

    def _note_moved_directory(self, place: Place) -> None:
        with suppress(OSError):
            fd = self._backing.open_node(self._descriptors.of(place.parent), place.name)
            try:
                if S_ISDIR(self._backing.stat(fd).st_mode):
                    self._forming.note_change(fd)
            finally:
                os.close(fd)

    def _wait_while_forming(self, place: Place, st: os.stat_result) -> None:
        """Raise Later if an entry is a forming directory: git goes on by its path."""
        if not (self._guard.forges and S_ISDIR(st.st_mode)):
            return
        fd = self._backing.open_node(place.fd, place.name)
        try:
            if S_ISDIR(self._backing.stat(fd).st_mode):
                self._forming.wait_for(fd)
        finally:
            os.close(fd)

    def _wait_for_rename(
        self,
        old: Place,
        new: Place,
        moved: os.stat_result,
        target: os.stat_result | None,
        exchange: bool,
    ) -> None:
        self.wait_for_git(S_IFMT(moved.st_mode), old, new)
        if exchange and target is not None:
            self.wait_for_git(S_IFMT(target.st_mode), old, new)

    def _text(self, place: Place, st: os.stat_result) -> bytes | None:
        """Return the text of an entry that is a symlink; None if it is none."""
        if not S_ISLNK(st.st_mode):
            return None
        return self._backing.readlink_at(place.fd, place.name)

    def _check_symlink(self, place: Place, text: bytes) -> None:
        rule = self._symlinks.why_refused(place.parent, text)
        if rule:
            raise self._refused(rule, place)

    def _losing(self, place: Place, st: os.stat_result, moves: bool) -> list[Removal]:
        if not self._guard.forges:
            return []
        removals = self._removed.losing(place.parent, place.fd, place.name, st.st_mode, moves=moves)
        if removals is None:
            raise self._refused(TOO_MANY, place)
        return removals

    def _refused(self, rule: str, place: Place) -> Refused:
        return Refused(rule, partial(self._gate.path, place.parent, place.name))
