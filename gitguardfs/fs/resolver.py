"""Finds the node of a name, counts lookups, and updates the node table after changes of names.

Lookup counts are raised and lowered in this module only. A node that was added for a request stays
only if its lookup is counted. It is counted once the node's attributes can be shown.
"""

from __future__ import annotations

import os
from contextlib import suppress
from stat import S_IFDIR, S_ISLNK

from gitguardfs.base.protocol import EntryReply, GuestUid, NodeId
from gitguardfs.fs.access import Access, NodeRef, Renaming
from gitguardfs.fs.attributes import AttributeMapper
from gitguardfs.fs.descriptors import DescriptorCache
from gitguardfs.fs.node_table import NodeTable
from gitguardfs.fs.nodes import (
    NEVER,
    PLAIN_VARIANT,
    Directory,
    LinkedSubtree,
    Node,
    ObjectKey,
    stale,
)
from gitguardfs.fs.source import Source
from gitguardfs.fs.symlinks import SymlinkResolver
from gitguardfs.names.rules import ALLOW, HIDE, Refused, Verdict


class Resolver:
    """Finds and adds nodes. Every method raises Refused, and OSError if the source fails."""

    def __init__(
        self,
        nodes: NodeTable,
        descriptors: DescriptorCache,
        source: Source,
        access: Access,
        attributes: AttributeMapper,
    ) -> None:
        self._nodes = nodes
        self._descriptors = descriptors
        self._source = source
        self._access = access
        self._attributes = attributes
        self.symlinks: SymlinkResolver | None = None
        """Set if this mount resolves symlinks."""
        nodes.judge = self.judge

    def entry(
        self,
        ref: NodeRef,
        st: os.stat_result,
        uid: GuestUid,
        dotgit: ObjectKey | bool | None = True,
        *,
        made: int = -1,
    ) -> tuple[Node, EntryReply] | None:
        """Return the node of ``ref``, and the reply for ``uid``; count a lookup of it.

        Returns None if the entry is hidden. ``dotgit`` is device and inode of the directory's
        ``.git``, if the caller has them. ``made`` is a descriptor of an object that was just made;
        such a symlink is not resolved.
        """
        if self.symlinks is not None and S_ISLNK(st.st_mode) and made < 0:
            node, st = self._resolved(self.symlinks, ref, st, dotgit)
        else:
            node = self.find_or_add(ref, st, dotgit, made=made)
        return None if node is None else (node, self._counted(node, st, uid))

    def _counted(self, node: Node, st: os.stat_result, uid: GuestUid) -> EntryReply:
        """Return the reply that reports a node, and count a lookup; otherwise drop a new node."""
        try:
            reply = self._attributes.report(node, st, uid)
        except BaseException:
            self.drop_unknown(node)
            raise
        node.lookup_count += 1
        return reply

    def add_nameless(self, st: os.stat_result, fd: int, uid: GuestUid) -> tuple[Node, EntryReply]:
        """Add the node of a new file that has no name, open as ``fd``; count a lookup of it.

        A descriptor of the node's own leads to the file until it has a name, or is forgotten.
        """
        held = self._source.open_file(fd, os.O_PATH)
        node = self._nodes.add(st, PLAIN_VARIANT, ALLOW, "")
        node.restrictions = self._nodes.restrictions
        self._descriptors.keep(node, held)
        self._descriptors.pin(node)
        return node, self._counted(node, st, uid)

    def undo_lookup(self, node: Node) -> None:
        """Undo the lookup of an entry that did not fit into a reply."""
        node.lookup_count -= 1
        node.reported = 0
        self.drop_unknown(node)

    def forget(self, node_id: NodeId, times: int) -> None:
        """Undo ``times`` lookups of a node, as the kernel's FORGET asks."""
        node = self._nodes.forget(node_id, times)
        if node is None:
            return
        if node.fd >= 0:
            self._descriptors.close(node)
        # Directories above that were forgotten earlier may have been opened to reach this node.
        if node.parent is not None and not node.parent.lookup_count:
            self._nodes.close_unknown(node.parent)

    def _resolved(
        self,
        symlinks: SymlinkResolver,
        ref: NodeRef,
        st: os.stat_result,
        dotgit: ObjectKey | bool | None,
    ) -> tuple[Node | None, os.stat_result]:
        """Return node and attributes of the target of a symlink; no node if it is hidden.

        A symlink whose target is refused is shown as a denied symlink.
        """
        if self._access.verdict_of(ref, st, dotgit)[0] is ALLOW:
            try:
                target = symlinks.target(ref)
            except Refused as refused:
                denied = self._nodes.get_or_add(
                    ref.parent, ref.name, st, Verdict.DENY, refused.rule,
                    is_same=self._is_same_at,
                )  # fmt: skip
                return denied, st
            if target is not None:
                return self.find_or_add(target.ref, target.st, subtree=target.subtree), target.st
        return self.find_or_add(ref, st, dotgit), st

    def find_or_add(
        self,
        ref: NodeRef,
        st: os.stat_result,
        dotgit: ObjectKey | bool | None = True,
        subtree: LinkedSubtree | None = None,
        made: int = -1,
    ) -> Node | None:
        """Return the node of the object at ``ref``, or None if hidden; count no lookup."""
        classified = self._access.classify(ref, st, dotgit, made)
        if classified.verdict is HIDE:
            if classified.fd >= 0:
                os.close(classified.fd)
            self._nodes.restrict_known(st, classified.verdict, classified.rule)
            return None
        node = self._nodes.get_or_add(
            ref.parent,
            ref.name,
            st,
            classified.verdict,
            classified.rule,
            classified.btime_ns,
            subtree,
            is_same=self._is_same_at,
        )
        if isinstance(node, Directory) and not classified.is_open:
            node.classified_at = NEVER
        if classified.fd >= 0:
            self._descriptors.keep(node, classified.fd)
        return node

    def _is_same_at(self, parent: Directory, name: bytes, node: Node, st: os.stat_result) -> bool:
        """Return whether ``node`` stands for the object of ``st``, found at ``name``."""
        return self._is_same(node, st)

    def _is_same(self, node: Node, st: os.stat_result) -> bool:
        """Return whether a node stands for the object of ``st``, found under another name.

        If not, the inode number was reused, or the host moved the object. The kernel may still
        remember the old name, which can be another file by now: one node for both names would open
        that file with this one's content.
        """
        is_held = node.fd >= 0 or bool(node.open_fds)
        if is_held and self._source.is_local(node.dev):  # this keeps the number from being reused
            if node.parent is not None and not self._is_where_it_was(node, st):
                node.has_other_names = True  # the former one is remembered
            return True
        if node.parent is None:  # removed through the view, but the object had another name
            is_unchanged = node.unplaced_as == (st.st_size, st.st_mtime_ns)
            return (is_unchanged and node.is_found(st)) or (is_held and self._has_a_name(node))
        return node.is_found(st) and self._is_where_it_was(node, st)

    def _has_a_name(self, node: Node) -> bool:
        """Return whether the object behind a node's descriptor still has a name."""
        try:
            return self._source.stat(self._descriptors.of(node)).st_nlink > 0
        except OSError:
            return False

    def _is_where_it_was(self, node: Node, st: os.stat_result) -> bool:
        """Return whether the object of ``st`` is under the name by which ``node`` was last seen."""
        try:
            return self._source.is_at(self._descriptors.parent_of(node), node.name, st)
        except OSError:
            return False

    def drop_unknown(self, node: Node) -> None:
        """Remove a node that the kernel does not know."""
        if node.lookup_count == 0 and not node.is_pinned:
            self._nodes.drop(node)
            self._descriptors.close(node)

    def judge(self, node: Node) -> None:
        """Look a former daemon's node up again, where it was last seen.

        Raises OSError(ESTALE) if another object is there, or if it was guarded and is not now, or
        the other way round.
        """
        parent, found = node.parent, None
        if parent is not None and node.is_hashed:
            fd = self._descriptors.of(parent)
            with suppress(FileNotFoundError, NotADirectoryError):
                st = self._source.stat_at(fd, node.name)
                found = self.find_or_add(NodeRef(parent, fd, node.name), st)
        if found is not node:
            if found is not None:
                self.drop_unknown(found)
            raise stale()

    # Changes of names

    def release_number(self, ref: NodeRef, st: os.stat_result) -> None:
        """Unhash a stale node that has the inode number of an object just made at ``ref``.

        An open descriptor keeps a local file system from reusing the number, but not a server. The
        node is not stale if its object is still at its old name: then another guard has linked the
        object to ``ref``. A directory has one name, so its node is always stale: over 9p a held
        directory may seem to be at its old name.
        """
        former = self._nodes.find_below(ref.parent, st)
        if former is None:
            return
        if former.is_directory or not self._is_where_it_was(former, st):
            self._nodes.unhash(former)

    def note_removed(self, ref: NodeRef, st: os.stat_result, fd: int) -> None:
        """Note that a name is gone; take over ``fd``, a descriptor of its object.

        If the kernel still uses an object without a name, only ``fd`` reaches it from now on.
        """
        node = self._node_of(ref, st, self._nodes.find_below(ref.parent, st))
        if node is None:
            os.close(fd)
            return
        last = node.file_type == S_IFDIR or st.st_nlink <= 1
        self._descriptors.keep_removed(node, fd, last)
        if last:
            self._nodes.unhash(node)
            self._descriptors.pin(node)
            if self.symlinks is not None:
                node.is_pinned = False  # nothing can be found behind it any more
                self.drop_unknown(node)
        if st.st_nlink == 2:
            node.has_other_names = False  # the kernel forgets the removed one by itself
        if last or (node.parent is ref.parent and node.name == ref.name):
            node.parent = None
            node.unplaced_as = st.st_size, st.st_mtime_ns
        if self._nodes.note is not None:
            self._nodes.note(node)

    def note_renamed(self, renaming: Renaming) -> None:
        """Note the new names after a rename. Takes over the descriptor of a replaced entry."""
        if renaming.target is not None and not renaming.exchange:
            self.note_removed(renaming.new, renaming.target, renaming.fds.pop())
        for old, new, st in reversed(renaming.moves()):
            node = self._node_of(old, st, self._nodes.find_below(new.parent, st))
            if node is not None:
                node.parent, node.name = new.parent, new.name
                if self._nodes.note is not None:
                    self._nodes.note(node)

    def _node_of(self, ref: NodeRef, st: os.stat_result, node: Node | None) -> Node | None:
        """Return ``node`` if it stands for the object ``st`` that was at ``ref`` until now.

        Returns None if not. The inode number is the same, but the host may have put another object
        there: the kernel sends no lookup of a name that it remembers.
        """
        if node is None or node.file_type == S_IFDIR:
            return node
        is_there = node.parent is ref.parent and node.name == ref.name
        is_same = (is_there and node.is_found(st)) or self._is_same(node, st)
        return node if is_same else None

    def unhash_target(self, st: os.stat_result, subtree: LinkedSubtree) -> None:
        """Unhash the node of a resolved symlink's target, after the symlink was removed."""
        node = self._nodes.find(st, subtree.variant)
        if node is not None:
            self._nodes.unhash(node)
