"""The requests that only look, in their usual cases: each in one method, without layers.

Such a method answers what is certain and leaves all else to the tree that it is derived from, which
makes every check anew. It repeats decisions of the guard, so what it answers must be what the tree
would answer: a test asks both.
"""

from __future__ import annotations

import os
from math import inf
from stat import S_IFREG

from gitguardfs.base.constants import SET_ID_BITS
from gitguardfs.base.protocol import Caller, EntryReply, NodeId, OpenReply
from gitguardfs.fs import revalidation
from gitguardfs.fs.access import NodeRef
from gitguardfs.fs.files import SOURCE_FLAGS
from gitguardfs.fs.handles import DirectoryHandle
from gitguardfs.fs.nodes import ROOT_ID, Directory, Node, ObjectKey
from gitguardfs.fs.parts import SourceTraits
from gitguardfs.fs.source import DOTGIT
from gitguardfs.fs.tree import Tree
from gitguardfs.names.repository import HEAD, is_hooks
from gitguardfs.names.rules import ALLOW
from gitguardfs.options.mount_options import MountOptions

TYPE = 0o170000
"""The bits of a mode that are the file type (S_IFMT)."""
WRITES = os.O_ACCMODE & ~os.O_RDONLY
DEPTH = 64
"""Directories above a name that are looked at; a deeper one is left to the tree."""


class LeanLooks(Tree):
    """LOOKUP, GETATTR and OPEN in their usual cases. Errors: see ``Tree``."""

    def __init__(
        self, options: MountOptions, traits: SourceTraits, reports_names_only: bool = False
    ) -> None:
        super().__init__(options, traits, reports_names_only)
        self._by_id = self.nodes.by_id
        self._offset = self.nodes.offset
        self._is_plain = self.guard.is_plain
        self._read_only = options.read_only
        self._ttl = revalidation.VERDICT_TTL if self.guard.has_rules else inf
        """How long a directory's classification stays valid, in seconds."""
        self._not_there = EntryReply(NodeId(0), None, self.least_timeout, 0.0)

    def lookup(
        self, caller: Caller, parent_id: NodeId, name: bytes, ref: NodeRef | None = None
    ) -> EntryReply:
        """Find a plain name: a file or directory that is known by it, or nothing."""
        parent, replaced = self._by_id.get(parent_id), self.descriptors.replaced
        if (
            type(parent) is not Directory
            or parent.fd < 0
            or parent.verdict is not ALLOW
            or parent.restrictions != self.nodes.restrictions
            or revalidation.clock() - parent.classified_at >= self._ttl
            or (replaced and (parent_id, name) in replaced)
            or not self._is_plain(name)
        ):
            return super().lookup(caller, parent_id, name, ref)
        st = None
        try:
            st = self.source.stat_at(parent.fd, name)
        except FileNotFoundError:
            if self.cache_timeout and (parent.case_matters or self.is_exclusive):
                if self.note_absent is not None:
                    return self._not_there._replace(
                        entry_timeout=self.missing_timeout(parent_id, name)
                    )
                return self._not_there
        if st is None:
            return super().lookup(caller, parent_id, name, ref)
        node = self._known_at(parent, name, st)
        if node is None:
            return super().lookup(caller, parent_id, name, ref)
        if node.file_type == S_IFREG:
            if caller.pid in self.advice.lookups:
                self.advice.lookups[caller.pid] += 1
        elif type(node) is Directory and self._holds_no_git(parent, node, st):
            node.classified_at = parent.classified_at
        else:
            return super().lookup(caller, parent_id, name, ref)
        reply = self.attributes.report(node, st, caller.uid)
        node.lookup_count += 1
        return reply

    def _known_at(self, parent: Directory, name: bytes, st: os.stat_result) -> Node | None:
        """Return the node that is known by this name; None for a file that may have others."""
        node = self._by_id.get(st.st_ino + self._offset)
        if (
            node is None
            or node.parent is not parent
            or node.name != name
            or node.ino != st.st_ino
            or node.dev != st.st_dev
            or node.file_type != st.st_mode & TYPE
            or not node.is_hashed
            or node.verdict is not ALLOW
            or node.restrictions != self.nodes.restrictions
            or (node.file_type == S_IFREG and (st.st_nlink != 1 or node.has_other_names))
        ):
            return None
        return node

    def listed(
        self,
        handle: DirectoryHandle,
        dir_fd: int,
        name: bytes,
        st: os.stat_result,
        dotgit: ObjectKey | bool | None,
    ) -> tuple[Node, EntryReply] | None:
        """Return the node of a file in a listing and its reply, if it is known by this name."""
        node = None
        if st.st_mode & TYPE == S_IFREG:  # the listing has checked the directory
            node = self._known_at(handle.node, name, st)
        if node is None:
            return super().listed(handle, dir_fd, name, st, dotgit)
        reply = self.attributes.report(node, st, handle.uid)
        node.lookup_count += 1
        return node, reply

    def _holds_no_git(self, parent: Directory, node: Directory, st: os.stat_result) -> bool:
        """Return whether a directory is surely no second name of ``.git``, and has no HEAD."""
        try:
            if self.guard.guards_git:
                dotgit = self.source.find_at(parent.fd, DOTGIT)
                if dotgit is not None and os.path.samestat(dotgit, st):
                    return False
            if self.guard.checks_fake_repositories:
                return node.fd >= 0 and self.source.find_at(node.fd, HEAD) is None
            return True
        except OSError:
            return False

    def getattr(self, caller: Caller, node_id: NodeId) -> EntryReply:
        """Return the attributes of an object that is open, or known by one name."""
        node = self._by_id.get(node_id)
        if node is None or node_id == ROOT_ID or node.restrictions != self.nodes.restrictions:
            return super().getattr(caller, node_id)
        fd = node.open_fds[0] if node.fd < 0 and node.open_fds else node.fd
        st, parent = None, node.parent
        try:
            if fd >= 0:
                st = self.source.stat(fd)
            elif parent is not None and parent.fd >= 0 and not node.has_other_names:
                st = self.source.stat_at(parent.fd, node.name)
        except OSError:
            pass  # the tree finds out why
        if st is None or (
            fd < 0
            and (
                st.st_ino != node.ino
                or st.st_dev != node.dev
                or st.st_mode & TYPE != node.file_type
            )
        ):
            return super().getattr(caller, node_id)
        return self.attributes.report(node, st, caller.uid)

    def open(self, caller: Caller, node_id: NodeId, flags: int) -> OpenReply:
        """Open a file that is known by one plain name, without truncating it."""
        node = self._by_id.get(node_id)
        if (
            node is None
            or node.file_type != S_IFREG
            or node.verdict is not ALLOW
            or node.has_other_names
            or flags & os.O_TRUNC
        ):
            return super().open(caller, node_id, flags)
        parent, restrictions = node.parent, self.nodes.restrictions
        if (
            parent is None
            or parent.fd < 0
            or parent.restrictions != restrictions
            or node.restrictions != restrictions
            or revalidation.clock() - parent.classified_at >= self._ttl
            or (flags & WRITES and not self._may_change(parent, node.name))
        ):
            return super().open(caller, node_id, flags)
        parent.leased = self.descriptors.request
        try:
            fd = self.source.open_file_at(parent.fd, node.name, flags & SOURCE_FLAGS)
        except OSError:
            fd = -1
        if fd < 0:
            return super().open(caller, node_id, flags)
        try:
            st = self.source.stat(fd)
            if (
                st.st_ino == node.ino
                and st.st_dev == node.dev
                and st.st_mode & TYPE == S_IFREG
                and not (flags & WRITES and st.st_mode & SET_ID_BITS)
            ):
                return self.opened(node, fd, st, flags)
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        return super().open(caller, node_id, flags)

    def _may_change(self, parent: Directory, name: bytes) -> bool:
        """Return whether a name in a directory may be changed for certain, by the rules on names.

        So it is plain, and no directory of hooks is above it (rule G4).
        """
        if self._read_only or not self._is_plain(name):
            return False
        if not self.guard.checks_fake_repositories:
            return True
        root = self.nodes.root
        step: Directory | None = parent
        for _ in range(DEPTH):
            if step is None or step is root:
                return step is root
            if is_hooks(step.name):
                return False
            step = step.parent
        return False
