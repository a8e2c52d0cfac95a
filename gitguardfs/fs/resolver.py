"""Finds the node of a name, counts lookups, and updates the node table after changes of names.

Lookup counts are raised and lowered in this module only. A node that was added for a request stays
only if its lookup is counted. It is counted once the node's attributes can be shown.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from stat import S_ISDIR, S_ISLNK

from gitguardfs.fs.access import Access, NodeRef
from gitguardfs.fs.attributes import AttributeMapper
from gitguardfs.fs.descriptors import DescriptorCache
from gitguardfs.fs.host_rules import HostRules
from gitguardfs.fs.nodes import NEVER, LinkedSubtree, Node, NodeTable, ObjectKey
from gitguardfs.fs.renaming import Renaming
from gitguardfs.fs.source import Source
from gitguardfs.fs.symlinks import SymlinkResolver
from gitguardfs.guard.rules import ALLOW, HIDE, Refused, Verdict
from gitguardfs.protocol import Attributes, GuestUid, NodeId


class Resolver:
    """Finds and adds nodes. Each method names what it raises."""

    def __init__(
        self,
        nodes: NodeTable,
        descriptors: DescriptorCache,
        source: Source,
        access: Access,
        attributes: AttributeMapper,
        host: HostRules,
        path_based: bool,
        is_local: Callable[[int], bool],
        is_open: Callable[[os.stat_result], bool],
    ) -> None:
        """Keep what is needed.

        ``path_based``: the source's descriptors hold paths, not objects. ``is_local`` returns
        whether an open descriptor keeps an inode number of a device from being reused. ``is_open``
        returns whether the guest has a file with number and type of another one open.
        """
        self._nodes = nodes
        self._descriptors = descriptors
        self._source = source
        self._access = access
        self._attributes = attributes
        self._host = host
        self._path_based = path_based
        self._is_local = is_local
        self._is_open = is_open
        self.symlinks: SymlinkResolver | None = None
        """Set if this mount resolves symlinks."""

    def entry(
        self,
        ref: NodeRef,
        st: os.stat_result,
        uid: GuestUid,
        dotgit: ObjectKey | bool | None = True,
    ) -> tuple[Node, Attributes] | None:
        """Return the node of ``ref``, and its attributes for ``uid``; count a lookup of it.

        Returns None if the entry is hidden. ``dotgit`` is device and inode of the directory's
        ``.git``, if the caller has them. Raises Refused, Later, OSError.
        """
        if self._path_based and S_ISDIR(st.st_mode):
            ref, st = self._seen_again(ref, st)
        if self.symlinks is not None and S_ISLNK(st.st_mode):
            node, st = self._resolved(self.symlinks, ref, st, dotgit)
        else:
            try:
                node = self.find_or_add(ref, st, dotgit)
            except NotADirectoryError:
                if not self._path_based:
                    raise
                ref, st = self._seen_unheld(ref)  # something else is there now
                node = self.find_or_add(ref, st, dotgit)
        return None if node is None else (node, self._counted(node, st, uid))

    def _seen_again(self, ref: NodeRef, st: os.stat_result) -> tuple[NodeRef, os.stat_result]:
        """Return ``ref``, and attributes of the directory there that are not those of another.

        Over 9p, the descriptors of a directory and of all below it let its name show its number,
        also once the host has replaced it. So if the number is known from elsewhere, they are
        closed. Raises OSError.
        """
        node = self._nodes.find_below(ref.parent, st)
        if node is None or (node.parent is ref.parent and node.name == ref.name):
            return ref, st
        return self._seen_unheld(ref)

    def _seen_unheld(self, ref: NodeRef) -> tuple[NodeRef, os.stat_result]:
        """Return ``ref``, and attributes of what is there when the daemon holds nothing."""
        self._descriptors.close_cached()
        ref = self._access.reopened(ref)
        return ref, self._source.stat_at(ref.fd, ref.name)

    def new_entry(
        self, ref: NodeRef, st: os.stat_result, uid: GuestUid
    ) -> tuple[Node, Attributes] | None:
        """Return the node of an object that was just made, as ``entry`` does.

        Raises OSError.
        """
        node = self.find_or_add(ref, st)
        return None if node is None else (node, self._counted(node, st, uid))

    def _counted(self, node: Node, st: os.stat_result, uid: GuestUid) -> Attributes:
        """Return a node's attributes and count a lookup; remove the node if ``report`` fails."""
        try:
            shown = self._attributes.report(node, st, uid)
        except BaseException:
            self._drop_unknown(node)
            raise
        node.lookup_count += 1
        return shown

    def undo_lookup(self, node: Node) -> None:
        """Undo the lookup of an entry that did not fit into a reply."""
        node.lookup_count -= 1
        node.reported = 0
        self._drop_unknown(node)

    def forget(self, node_id: NodeId, times: int) -> None:
        """Undo ``times`` lookups of a node, as the kernel's FORGET asks."""
        step = self._nodes.forget(node_id, times)
        way: set[Node] = set()
        # Directories above that were forgotten earlier may have been opened to reach this node.
        while step is not None and not step.is_known and step not in way:
            way.add(step)
            self._descriptors.close(step)
            step = step.parent

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
                    ref.parent, ref.name, st, Verdict.DENY, refused.rule, is_same=self._is_same
                )
                return denied, st
            if target is not None:
                return self.find_or_add(target.ref, target.st, subtree=target.subtree), target.st
            ref = self._access.reopened(ref)
        return self.find_or_add(ref, st, dotgit), st

    def find_or_add(
        self,
        ref: NodeRef,
        st: os.stat_result,
        dotgit: ObjectKey | bool | None = True,
        subtree: LinkedSubtree | None = None,
    ) -> Node | None:
        """Return the node of the object at ``ref``, or None if hidden; count no lookup.

        Raises OSError.
        """
        classified = self._access.classify(ref, st, dotgit)
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
            is_same=partial(self._is_same_at, ref) if self._path_based else self._is_same,
        )
        while self._nodes.left:
            self._descriptors.close(self._nodes.left.pop())
        if not classified.is_open:
            node.classified_at = NEVER
        if self._path_based:  # the old one may lead to another object by now
            self._descriptors.close(node)
        if classified.fd >= 0:
            self._descriptors.keep(node, classified.fd)
        return node

    def _is_same_at(self, ref: NodeRef, node: Node, st: os.stat_result) -> bool:
        """Return what ``_is_same`` does for the object of ``st`` at ``ref``, over 9p.

        A name at which a file was opened shows that file's number for as long as it is open,
        whatever the host has put there. Listings show the numbers of what is there.
        """
        if self._is_open(st) and self._source.number_listed(ref.fd, ref.name) != st.st_ino:
            return False
        return self._is_same(node, st)

    def _is_same(self, node: Node, st: os.stat_result) -> bool:
        """Return whether a node stands for the object of ``st``, which was found at another place.

        If not, the inode number was reused, or the host moved the object. The kernel may still
        remember the old name, which can be another file by now: with one node for both names, that
        file would be opened with this one's content.
        """
        is_held = node.fd >= 0 or bool(node.open_fds)
        if is_held and self._is_local(node.dev):  # this keeps the number from being reused
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
        """Return whether the object of ``st`` is at the place where ``node`` was last seen."""
        try:
            parent_fd = self._descriptors.parent_of(node)
            if self._path_based and self._is_open(st):
                return self._source.number_listed(parent_fd, node.name) == st.st_ino
            return self._source.is_at(parent_fd, node.name, st)
        except OSError:
            return False

    def _drop_unknown(self, node: Node) -> None:
        """Remove a node that the kernel does not know."""
        if node.lookup_count == 0 and not node.is_pinned:
            self._nodes.drop(node)
            self._descriptors.close(node)

    # Changes of names

    def release_number(self, ref: NodeRef, st: os.stat_result) -> None:
        """Unhash a stale node that has the inode number of an object just made at ``ref``.

        An open descriptor keeps a local file system from reusing the number, but not a server. The
        node is not stale if its object is still at its old name: then another guard has linked the
        object to ``ref``. A directory has one name. Over 9p, one that is held may seem to be at its
        old name, and can be that of ``ref`` itself.
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
        self._host.note_removed(st)
        node = self._node_of(ref, st, self._nodes.find_below(ref.parent, st))
        if node is None:
            os.close(fd)
            return
        last = node.is_directory or st.st_nlink <= 1
        if self._path_based and not last:  # only its other names lead to it
            os.close(fd)
            self._descriptors.close(node)
        else:
            self._descriptors.keep(node, fd)
        if last:
            self._nodes.unhash(node)
            self._descriptors.pin(node)
            if self.symlinks is not None:
                self.symlinks.unpin(node)
                self._drop_unknown(node)
        if st.st_nlink == 2:
            node.has_other_names = False  # the kernel forgets the removed one by itself
        if last or (node.parent is ref.parent and node.name == ref.name):
            node.parent = None
            node.unplaced_as = st.st_size, st.st_mtime_ns

    def note_renamed(self, renaming: Renaming, target_fd: int) -> None:
        """Note the new places after a rename.

        Takes over ``target_fd``, a descriptor of the replaced entry; -1 if there is none.
        """
        if target_fd >= 0 and renaming.target is not None:
            self.note_removed(renaming.new, renaming.target, target_fd)
        places = zip(renaming.leaving(), renaming.arriving(), strict=True)
        for (old, st), (new, _) in reversed([*places]):
            node = self._node_of(old, st, self._nodes.find_below(new.parent, st))
            if node is not None:
                node.parent, node.name = new.parent, new.name

    def _node_of(self, ref: NodeRef, st: os.stat_result, node: Node | None) -> Node | None:
        """Return ``node`` if it stands for the object ``st`` that was at ``ref`` until now.

        Returns None if not. The inode number is the same, but the host may have put another object
        there: the kernel sends no lookup of a name that it remembers.
        """
        if node is None or node.is_directory:
            return node
        is_there = node.parent is ref.parent and node.name == ref.name
        is_same = (is_there and node.is_found(st)) or self._is_same(node, st)
        return node if is_same else None

    def unhash_target(self, st: os.stat_result, subtree: LinkedSubtree) -> None:
        """Unhash the node of a resolved symlink's target, after the symlink was removed."""
        node = self._nodes.find(st, subtree.variant)
        if node is not None:
            self._nodes.unhash(node)
