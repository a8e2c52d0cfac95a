"""Applies the rules for changes made while git may be at work on the host.

The rules are in ``symlink_check``, ``host_git``, ``removed_names``, ``forming`` and
``moved_trees``. This module applies them before a change, after a change while it can be undone,
and once the change is final.
"""

from __future__ import annotations

import os
from contextlib import suppress
from stat import S_IFDIR, S_IFLNK, S_IFMT, S_ISDIR, S_ISLNK

from gitguardfs.fs.access import Access, NodeRef
from gitguardfs.fs.descriptors import DescriptorCache
from gitguardfs.fs.forming import Forming
from gitguardfs.fs.host_git import HostGit
from gitguardfs.fs.moved_trees import MovedTrees
from gitguardfs.fs.nodes import Node
from gitguardfs.fs.removed_names import TOO_MANY, RemovedNames
from gitguardfs.fs.renaming import Renaming
from gitguardfs.fs.source import Source
from gitguardfs.fs.symlink_check import SymlinkCheck
from gitguardfs.guard import repository, work_tree
from gitguardfs.guard.rules import RuleSet

EXCHANGED = "symlink exchanged with a directory"
STOPS_GIT = "special file that git opens"


class HostRules:
    """Checks and notes each change of a name.

    The checks raise Refused, Later, and OSError if the source fails.
    """

    def __init__(
        self,
        guard: RuleSet,
        access: Access,
        descriptors: DescriptorCache,
        source: Source,
        root: Node,
        forming: Forming,
        removed: RemovedNames,
    ) -> None:
        self._guard = guard
        self._access = access
        self._descriptors = descriptors
        self._source = source
        self._forming = forming
        self._removed = removed
        self._symlink_check = SymlinkCheck(
            guard, source, descriptors, root, access.verdict_of_long_name
        )
        self._host_git = HostGit(descriptors, source, root, access.path)
        self._trees = MovedTrees(source, forming, removed, access.refused)

    # A new name

    def before_adding(self, ref: NodeRef, file_type: int) -> None:
        """Check that an object of type ``file_type`` (S_IFMT) may get a new name.

        Raises Refused, Later.
        """
        if self._guard.guards_git and work_tree.stops_git(ref.name, file_type):
            raise self._access.refused(STOPS_GIT, ref)
        if self._guard.checks_fake_repositories:
            self._trees.before_adding(ref, file_type)

    def before_symlink(self, ref: NodeRef, text: bytes) -> None:
        """Check that a symlink with ``text`` may be made or get another name.

        Raises Refused, Later, OSError.
        """
        if self._guard.has_rules:
            self._access.revalidation.confirm(ref.parent)
            self._check_symlink(ref, text)
        if self._guard.guards_git:
            self._host_git.wait_for(ref.parent)

    def wait_for_git(self, file_type: int, *refs: NodeRef) -> None:
        """Wait for git on the host, before or after a symlink or directory is made or moved.

        Raises Refused, Later, OSError.
        """
        if self._guard.guards_git and file_type in (S_IFLNK, S_IFDIR):
            directories = [ref.parent for ref in refs]
            self._access.revalidation.confirm(*directories)
            self._host_git.wait_for(*directories)

    def note_made(self, ref: NodeRef, st: os.stat_result, is_new: bool) -> None:
        """Note that a name was made for good."""
        if not self._guard.checks_fake_repositories:
            return
        self._note_name(ref)
        if is_new:
            self._forming.note_clock(st)
            if S_ISDIR(st.st_mode):
                self._forming.note_made(st)
        self.note_change(ref)

    # Names that go or move

    def before_removal(self, ref: NodeRef, st: os.stat_result, fd: int) -> None:
        """Check that an entry, of which ``fd`` is a descriptor, may be removed.

        Raises Refused, Later, OSError.
        """
        if self._guard.checks_fake_repositories:
            self._trees.before_removal(st, fd)
            if not repository.parts(ref.name):
                return
            self._access.revalidation.confirm(ref.parent)
            found = self._removed.losing(ref.parent, ref.fd, ref.name, st.st_mode)
            if not self._removed.has_room_for(found):
                raise self._access.refused(TOO_MANY, ref)
            self._removed.note_removed(found)

    def note_gone(self, ref: NodeRef) -> None:
        """Note that a name was removed."""
        if self._guard.checks_fake_repositories and repository.parts(ref.name):
            with suppress(OSError):
                self._removed.made.note_gone(self._descriptors.of(ref.parent), ref.name)

    def note_removed(self, st: os.stat_result) -> None:
        """Note that an object has lost a name."""
        if S_ISDIR(st.st_mode):
            self._forming.note_removed(st)

    def before_rename(self, renaming: Renaming) -> None:
        """Check that a rename may be done. Raises Refused, Later, OSError."""
        if self._guard.has_rules:
            self._access.revalidation.confirm(renaming.old.parent, renaming.new.parent)
        renaming = self._reopened(renaming)
        for ref, st in renaming.arriving():
            self.before_adding(ref, S_IFMT(st.st_mode))
        if (
            renaming.exchange
            and self._guard.has_rules
            and renaming.file_types == {S_IFLNK, S_IFDIR}
        ):
            raise self._access.refused(EXCHANGED, renaming.old)
        texts = [self._text(ref, st) for ref, st in renaming.leaving()]
        for (ref, _), text in zip(renaming.arriving(), texts, strict=True):
            if text is not None:
                self._check_symlink(ref, text)
        renaming = self._reopened(renaming)
        if self._guard.checks_fake_repositories:
            self._trees.before_rename(renaming)
        self._wait_for_rename(renaming)

    def after_rename(self, renaming: Renaming) -> None:
        """Check again whether git is at work, now that the entries have moved.

        Raises Refused, Later, OSError; the caller then moves them back. A rename that replaced an
        entry cannot be undone; then no directory that git had checked has become a symlink.
        """
        if self._guard.checks_fake_repositories:
            self._trees.after_rename(self._reopened(renaming))
        if renaming.can_be_undone:
            self._wait_for_rename(renaming)

    def note_moved(self, renaming: Renaming) -> None:
        """Note that a rename was done for good."""
        if self._guard.checks_fake_repositories:
            for ref, _ in renaming.leaving():
                self.note_gone(ref)
            for ref, _ in renaming.arriving():
                self._note_name(ref)

    def note_change(self, *refs: NodeRef) -> None:
        """Note that this mount changed names in directories, or failed to, or undid a change."""
        if self._guard.checks_fake_repositories:
            with suppress(OSError):  # then the change counts as the host's
                for parent in {ref.parent for ref in refs}:
                    fd = self._descriptors.of(parent)
                    self._forming.note_change(fd, *(one.name for one in refs))

    def is_as_seen(self, node: Node, fd: int) -> bool:
        """Return whether an object is a directory that has not changed since it was checked.

        Call this before its attributes are changed, and ``note_attributes`` only if it was true.
        """
        if node.is_directory and self._guard.checks_fake_repositories:
            with suppress(OSError):  # then the change counts as the host's
                return self._forming.is_as_seen(fd)
        return False

    def note_attributes(self, fd: int) -> None:
        """Note that this mount changed the attributes of a directory."""
        with suppress(OSError):
            self._forming.note_attributes(fd)

    def _note_name(self, ref: NodeRef) -> None:
        if repository.parts(ref.name):
            with suppress(OSError):  # then the name counts as the host's
                fd = self._descriptors.of(ref.parent)
                self._removed.made.note_made(ref.parent, fd, ref.name)

    def _wait_for_rename(self, renaming: Renaming) -> None:
        for _, st in renaming.leaving():
            self.wait_for_git(S_IFMT(st.st_mode), renaming.old, renaming.new)

    def _reopened(self, renaming: Renaming) -> Renaming:
        """Return ``renaming`` with valid descriptors; checks may have closed the old ones."""
        old, new = self._access.reopened(renaming.old), self._access.reopened(renaming.new)
        return renaming._replace(old=old, new=new)

    def _text(self, ref: NodeRef, st: os.stat_result) -> bytes | None:
        """Return the text of a symlink; None if the entry is no symlink."""
        if not S_ISLNK(st.st_mode):
            return None
        return self._source.readlink_at(ref.fd, ref.name)

    def _check_symlink(self, ref: NodeRef, text: bytes) -> None:
        rule = self._symlink_check.why_refused(ref.parent, text)
        if rule:
            raise self._access.refused(rule, ref)
