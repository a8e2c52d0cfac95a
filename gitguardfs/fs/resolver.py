"""A name becomes a node, and the tables follow what becomes of names.

Lookup counts are raised and lowered here alone. A node that was added for a request lives only if
its lookup is counted, which happens once its attributes can be shown.
"""

from __future__ import annotations

import os
from contextlib import suppress
from stat import S_ISLNK

from gitguardfs.fs.access import Access, NodeRef
from gitguardfs.fs.attributes import AttributeMapper
from gitguardfs.fs.descriptors import DescriptorCache
from gitguardfs.fs.host_rules import HostRules
from gitguardfs.fs.nodes import NEVER, LinkedSubtree, Node, NodeTable, ObjectKey
from gitguardfs.fs.renaming import Renaming
from gitguardfs.fs.source import Source
from gitguardfs.fs.symlinks import Links
from gitguardfs.guard.rules import Refused, Verdict
from gitguardfs.protocol import Attributes


class Resolver:
    """Finds and adds nodes. Its methods raise Refused, Later and OSError."""

    def __init__(
        self,
        nodes: NodeTable,
        descriptors: DescriptorCache,
        source: Source,
        access: Access,
        attributes: AttributeMapper,
        host: HostRules,
        path_based: bool,
    ) -> None:
        """``path_based`` says that descriptors of the source hold paths, not objects."""
        self._nodes = nodes
        self._descriptors = descriptors
        self._source = source
        self._access = access
        self._attributes = attributes
        self._host = host
        self._path_based = path_based
        self.links: Links | None = None
        """Set where symlinks are resolved."""

    def entry(
        self, place: NodeRef, st: os.stat_result, uid: int, dotgit: ObjectKey | bool | None = True
    ) -> tuple[Node, Attributes] | None:
        """Return the node that ``place`` leads to, as ``uid`` sees it; counts a lookup of it.

        Returns None if it is hidden. ``dotgit`` is the identity of the directory's ``.git``, if
        the caller has it.
        """
        node, st = self._look_at(place, st, dotgit)
        return None if node is None else (node, self._counted(node, st, uid))

    def new_entry(
        self, place: NodeRef, st: os.stat_result, uid: int
    ) -> tuple[Node, Attributes] | None:
        """Return the node of an object that was just made, as ``entry`` does."""
        node = self.find_or_add(place, st)
        return None if node is None else (node, self._counted(node, st, uid))

    def _counted(self, node: Node, st: os.stat_result, uid: int) -> Attributes:
        """Count a lookup of a node that can be shown; remove it again if it cannot."""
        try:
            shown = self._attributes.report(node, st, uid)
        except BaseException:
            self._drop_unknown(node)
            raise
        node.lookup_count += 1
        return shown

    def undo_lookup(self, node: Node) -> None:
        """Undo what was noted for an entry that did not fit into a reply."""
        node.lookup_count -= 1
        node.reported = 0
        self._drop_unknown(node)

    def forget(self, node_id: int, times: int) -> None:
        """Undo ``times`` lookups of a node, which the kernel forgets."""
        step = self._nodes.forget(node_id, times)
        way: set[Node] = set()
        # Directories above that were forgotten before may have been opened for its sake.
        while step is not None and not step.is_known and step not in way:
            way.add(step)
            self._descriptors.close(step)
            step = step.parent

    def _look_at(
        self, place: NodeRef, st: os.stat_result, dotgit: ObjectKey | bool | None
    ) -> tuple[Node | None, os.stat_result]:
        """Return the node of ``place``, None if it is hidden, and the attributes to report.

        Where symlinks are resolved that is what one leads to. One that leads where it must not
        is denied as a symlink.
        """
        if self.links is None or not S_ISLNK(st.st_mode):
            return self.find_or_add(place, st, dotgit), st
        if self._access.verdict_of(place, st, dotgit)[0] is Verdict.ALLOW:
            try:
                target = self.links.target(place)
            except Refused as refused:
                denied = self._nodes.get_or_add(
                    place.parent, place.name, st, Verdict.DENY, refused.rule
                )
                return denied, st
            if target is not None:
                return self.find_or_add(target.place, target.st, branch=target.branch), target.st
            place = self._access.reopened(place)
        return self.find_or_add(place, st, dotgit), st

    def find_or_add(
        self,
        place: NodeRef,
        st: os.stat_result,
        dotgit: ObjectKey | bool | None = True,
        branch: LinkedSubtree | None = None,
    ) -> Node | None:
        """Return the node of the object at ``place``, None if it is hidden. Counts no lookup."""
        classified = self._access.classify(place, st, dotgit)
        if classified.verdict is Verdict.HIDE:
            if classified.fd >= 0:
                os.close(classified.fd)
            self._nodes.restrict_known(st, classified.verdict, classified.rule)
            return None
        node = self._nodes.get_or_add(
            place.parent,
            place.name,
            st,
            classified.verdict,
            classified.rule,
            classified.btime_ns,
            branch,
        )
        while self._nodes.left:
            self._descriptors.close(self._nodes.left.pop())
        if not classified.is_open:
            node.classified_at = NEVER
        if self._path_based:  # what it had may lead to what the host has put in its old place
            self._descriptors.close(node)
        if classified.fd >= 0:
            self._descriptors.keep(node, classified.fd)
        return node

    def _drop_unknown(self, node: Node) -> None:
        """Remove a node that the kernel does not know."""
        if node.lookup_count == 0 and not node.is_pinned:
            self._nodes.drop(node)
            self._descriptors.close(node)

    # What becomes of names

    def release_number(self, place: NodeRef, st: os.stat_result) -> None:
        """Unhash a node that has the inode number of an object just made: it is stale.

        A descriptor keeps a local file system from giving it out again, but not a server. Unless
        it is still there, and another guard has moved it to ``place`` or linked it.
        """
        former = self._nodes.find_below(place.parent, st)
        if former is None:
            return
        with suppress(OSError):
            if self._source.is_at(self._descriptors.parent_of(former), former.name, st):
                return
        self._nodes.unhash(former)

    def note_removed(self, place: NodeRef, st: os.stat_result, fd: int) -> None:
        """Note that a name is gone; ``fd``, of the object, is now ours to keep or close.

        What the kernel still uses can only be reached by descriptor from now on.
        """
        self._host.note_removed(st)
        node = self._nodes.find_below(place.parent, st)
        if node is None:
            os.close(fd)
            return
        self._descriptors.keep(node, fd)
        last = node.is_directory or st.st_nlink <= 1
        if last:
            self._nodes.unhash(node)
            self._descriptors.pin(node)
            if self.links is not None:
                self.links.unpin(node)
                self._drop_unknown(node)
        if last or (node.parent is place.parent and node.name == place.name):
            node.parent = None

    def note_renamed(self, renaming: Renaming, target_fd: int) -> None:
        """Note where things are after a rename.

        ``target_fd``, of what was replaced, is now ours to keep or close; -1 if there is none.
        """
        if target_fd >= 0 and renaming.target is not None:
            self.note_removed(renaming.new, renaming.target, target_fd)
        for place, st in reversed([*renaming.arriving()]):
            node = self._nodes.find_below(place.parent, st)
            if node is not None:
                node.parent, node.name = place.parent, place.name

    def unhash_target(self, st: os.stat_result, branch: LinkedSubtree) -> None:
        """Unhash the node of a symlink's target: the symlink is gone, and the kernel knows that."""
        node = self._nodes.find(st, branch.variant)
        if node is not None:
            self._nodes.unhash(node)
