"""The node table: finds, adds, restricts and drops nodes.

The table changes only on the event loop's thread, never across an await.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import count, takewhile
from stat import S_IFDIR, S_IFMT, S_ISDIR
from typing import cast

from gitguardfs.base.protocol import NodeId
from gitguardfs.fs.nodes import (
    GUARDED,
    LOCAL_TREE,
    PLAIN_VARIANT,
    ROOT_ID,
    SHARE_NUMBERS,
    TREE_BITS,
    UNJUDGED,
    Directory,
    LinkedSubtree,
    Node,
    Numbers,
    ObjectKey,
    ancestors,
    stale,
)
from gitguardfs.names.rules import ALLOW, Verdict


class NodeTable:
    """All nodes that the kernel knows."""

    def __init__(self, root: os.stat_result, numbers: Numbers = SHARE_NUMBERS) -> None:
        self.offset, self._first_own = numbers
        self.root = Directory(ROOT_ID, root, ALLOW, "")
        self.root.lookup_count = 1
        self._home = root.st_dev
        self.by_id: dict[int, Node] = {ROOT_ID: self.root}
        # Nodes whose number is not their inode number: another device or variant, or a reused one.
        self._by_key: dict[tuple[int, int, int], Node] = {}
        # Nodes in linked subtrees, and retired ones: ``restrict_known`` has to find them as well.
        self._other_nodes: dict[ObjectKey, list[Node]] = {}
        self._own_ids = cast("Iterator[NodeId]", count(self._first_own))
        self.close_descriptor: Callable[[Node], None] = lambda _: None
        """Closes the descriptor of a node; set by the owner of the descriptors."""
        self.judge: Callable[[Node], None] = lambda _: None
        """Looks an UNJUDGED node up again; set by the resolver. Raises OSError, ESTALE if it is no
        longer there."""
        self.note: Callable[[Node], None] | None = None
        """Notes a node that got another place, or lost its object, or is gone."""
        self.restrictions = 0
        """How often an object has become guarded; compared with ``Node.restrictions``."""

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.by_id.values())

    def get(self, node_id: NodeId) -> Node:
        """Return the node with this number, with a verdict at least as strict as those above it.

        Raises OSError(ESTALE) if the table has no such node.
        """
        node = self.by_id.get(node_id)
        if node is None:
            raise stale()
        if node.restrictions != self.restrictions:
            self._restrict(node)
        return node

    def find(self, st: os.stat_result, variant: int = PLAIN_VARIANT) -> Node | None:
        """Return the node of the object of ``st`` in a variant; None if there is none."""
        if variant == PLAIN_VARIANT and st.st_dev == self._home:
            node = self.by_id.get(st.st_ino + self.offset)
            if (
                node is not None and node.is_hashed
                and node.ino + self.offset == node.id < self._first_own
                and node.file_type == S_IFMT(st.st_mode) and node.dev == st.st_dev
            ):  # fmt: skip
                return node
        node = self._by_key.get((st.st_dev, st.st_ino, variant))
        return node if node is not None and node.matches(st) else None

    def find_below(self, parent: Directory, st: os.stat_result) -> Node | None:
        """Return the unguarded node of an entry of ``parent``; None if there is none."""
        if parent.subtree is None or not S_ISDIR(st.st_mode):
            return self.find(st)
        return self.find(st, parent.subtree.variant)

    def get_or_add(
        self,
        parent: Directory,
        name: bytes,
        st: os.stat_result,
        verdict: Verdict,
        rule: str,
        btime_ns: int = 0,
        subtree: LinkedSubtree | None = None,
        *,
        is_same: Callable[[Directory, bytes, Node, os.stat_result], bool],
    ) -> Node:
        """Return the node of the object found at ``name``; add one if there is none.

        Counts no lookup. ``subtree`` is the linked subtree that begins at this object, if one does.
        ``is_same`` is asked about a known file with this inode number, last seen under another name
        or under several. It returns whether that node still stands for the object.
        """
        file_type = S_IFMT(st.st_mode)
        subtree = (subtree or parent.subtree) if file_type == S_IFDIR else None
        variant = PLAIN_VARIANT if subtree is None else subtree.variant
        if verdict is not ALLOW:
            variant = GUARDED
            self.restrict_known(st, verdict, rule)
        node = self.by_id.get(st.st_ino + self.offset) if variant == PLAIN_VARIANT else None
        if node is None or not (
            node.is_hashed and node.ino + self.offset == node.id < self._first_own
            and node.dev == st.st_dev and node.file_type == file_type
        ):  # fmt: skip
            node = self.find(st, variant)
        if node is not None:
            is_reused = btime_ns and node.btime_ns and btime_ns != node.btime_ns
            # A directory has one name in the kernel, which forgets the old one by itself.
            if not is_reused and file_type != S_IFDIR:
                is_elsewhere = node.parent is not parent or node.name != name
                if is_elsewhere or (node.has_other_names and not node.is_found(st)):
                    is_reused = not is_same(parent, name, node, st)
                if is_elsewhere and st.st_nlink > 1:
                    node.has_other_names = True
            if is_reused:
                self.retire(node)
                node = None
        if node is None:
            node = self.add(st, variant, verdict, rule)
            node.btime_ns = btime_ns
            if isinstance(node, Directory) and variant != GUARDED:
                node.subtree = subtree
        if node.parent is not parent or node.name != name:
            self.move(node, parent, name)
        if isinstance(node, Directory):
            node.classified_at = parent.classified_at
        node.verdict, node.rule = verdict, rule
        node.restrictions = self.restrictions
        return node

    def move(self, node: Node, parent: Directory, name: bytes) -> None:
        """Note that a node is now ``name`` in ``parent``."""
        former, node.parent, node.name = node.parent, parent, name
        if former is not parent:
            self.close_unknown(former)
        if self.note is not None:
            self.note(node)

    def close_unknown(self, directory: Directory | None) -> None:
        """Close the descriptors of a directory and those above it, below the first known one."""
        if directory is not None:
            for step in takewhile(lambda step: not step.is_known, ancestors(directory)):
                self.close_descriptor(step)

    def unknown(self, st: os.stat_result) -> Directory:
        """Return a node, outside of the table, for a directory that the kernel does not know."""
        node = Directory(next(self._own_ids), st, ALLOW, "")
        node.is_hashed = False
        return node

    def add(self, st: os.stat_result, variant: int, verdict: Verdict, rule: str) -> Node:
        """Add a node of an object, without a name, that ``find`` did not find."""
        number = NodeId(st.st_ino + self.offset)
        natural = variant == PLAIN_VARIANT and st.st_dev == self._home
        natural &= st.st_ino > ROOT_ID and number < self._first_own
        natural &= (number >> TREE_BITS == LOCAL_TREE) == bool(self.offset)
        # The inode number of a node of another type was reused: the old node keeps its number.
        reused = self._by_key.get((st.st_dev, st.st_ino, variant))
        if reused is not None:
            self.unhash(reused)
        if natural and (reused := self.by_id.get(number)) is not None:
            self.unhash(reused)
        kind = Directory if S_ISDIR(st.st_mode) else Node
        if natural and number not in self.by_id:
            node = kind(number, st, verdict, rule)
        else:
            node = kind(next(self._own_ids), st, verdict, rule)
            self._by_key[st.st_dev, st.st_ino, variant] = node
        node.variant = variant
        if variant > GUARDED:
            self._other_nodes.setdefault((st.st_dev, st.st_ino), []).append(node)
        if st.st_dev == self._home:
            node.dev = self._home  # one int object for all of them
        self.by_id[node.id] = node
        return node

    def next_own_id(self) -> NodeId:
        """Return a number of our own that no node has had."""
        return next(self._own_ids)

    def continue_at(self, number: NodeId) -> None:
        """Give numbers of our own from ``number`` on: a former daemon has given those below."""
        self._own_ids = cast("Iterator[NodeId]", count(number))

    def restore(self, node: Node) -> None:
        """Add a node that a former daemon had in its table."""
        self.by_id[node.id] = node
        if node.is_hashed and node.id >= self._first_own:
            self._by_key[node.dev, node.ino, node.variant] = node

    def restrict_known(self, st: os.stat_result, verdict: Verdict, rule: str) -> None:
        """Restrict the nodes of an object that a host's rename has guarded, and all below it.

        A file with further links is left alone: under another name it may be unguarded.
        """
        if not (S_ISDIR(st.st_mode) or st.st_nlink == 1):
            return
        others = self._other_nodes.get((st.st_dev, st.st_ino), ())
        for node in (self.find(st), self.find(st, GUARDED), *others):
            if node is not None and node is not self.root and node.verdict < verdict:
                self.restrict_below(node, verdict, rule)
                self.retire(node)

    def restrict_below(self, node: Node, verdict: Verdict, rule: str) -> None:
        """Restrict a node, and all nodes below it, to ``verdict`` or a stricter one.

        Nodes below take the verdict over at their next ``get``: a table can have a million nodes.
        """
        self.unhash(node)
        if node.verdict < verdict:
            node.verdict, node.rule = verdict, rule
        self.restrictions += 1

    def classify_root(self, verdict: Verdict, rule: str) -> None:
        """Set the root's verdict: it has become a repository, or is no longer one."""
        self.root.verdict, self.root.rule = verdict, rule
        self.restrictions += 1

    def _restrict(self, node: Node) -> None:
        """Take over the verdicts of restricted directories above; these can form a ring."""
        way: dict[Node, None] = {}
        step: Node | None = node
        while step is not None and step not in way and step.restrictions != self.restrictions:
            way[step] = None
            step = step.parent
        is_ring = step is not None and step in way
        # In a ring, the second round brings the last directory's verdict to the first.
        for step in [*reversed(way)] * (2 if is_ring else 1):
            if step.restrictions == UNJUDGED:
                self.judge(step)
            above = step.parent
            if above is not None and above.verdict > step.verdict:
                step.verdict, step.rule = above.verdict, above.rule
            step.restrictions = self.restrictions

    def unhash(self, node: Node) -> None:
        """Make (device, inode) free for another node; the kernel may still use this one."""
        node.is_hashed = False
        if self.note is not None:
            self.note(node)
        if self._by_key.get((node.dev, node.ino, node.variant)) is node:
            del self._by_key[node.dev, node.ino, node.variant]

    def retire(self, node: Node) -> None:
        """Unhash a node, but let ``restrict_known`` find it: an open file may still lead to it."""
        self.unhash(node)
        self._other_nodes.setdefault((node.dev, node.ino), []).append(node)

    def forget(self, node_id: NodeId, times: int) -> Node | None:
        """Undo ``times`` lookups. Return the node if that dropped it from the table."""
        node = self.by_id.get(node_id)
        if node is None or node is self.root:
            return None
        node.lookup_count -= times
        if node.is_known:
            return None
        self.drop(node)
        return node

    def drop(self, node: Node) -> None:
        """Remove a node that the kernel does not know from the table."""
        self.by_id.pop(node.id, None)
        self.unhash(node)
        others = [n for n in self._other_nodes.pop((node.dev, node.ino), ()) if n is not node]
        if others:
            self._other_nodes[node.dev, node.ino] = others
