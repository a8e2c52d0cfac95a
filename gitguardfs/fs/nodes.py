"""The node table: number, path and lookup count of each object that the kernel knows.

The table changes only on the event loop's thread, never across an await.

A node is an object of the source in one of its variants: (device, inode, type, variant). The
variants are: plain; guarded; and one for each linked subtree, which shows a directory instead of a
symlink (``symlinks``). The kernel gives a directory one name only, so a directory with two names is
two nodes.

A node's number is the source's inode number, in some trees plus an offset, if that is unique, so
that ``ls -i`` and hard-link detection work; otherwise it is a number of our own (``Numbers``).
A node lives until the kernel has forgotten every lookup of it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from itertools import count, takewhile
from stat import S_IFDIR, S_IFLNK, S_IFMT, S_IFREG, S_ISDIR
from typing import NamedTuple, cast

from gitguardfs.base.errors import os_error
from gitguardfs.base.protocol import NodeId
from gitguardfs.names.rules import ALLOW, Verdict

ROOT_ID = NodeId(1)
PLAIN_VARIANT, GUARDED = 0, 1
"""Variants of a node; larger numbers are linked subtrees."""
ObjectKey = tuple[int, int]
"""Device and inode."""

NEVER = float("-inf")
"""Earlier than any time. As ``classified_at``: the directory is classified again at each use."""


FIRST_OWN_ID = 1 << 62
"""The first node number of our own; file systems do not use such large inode numbers."""
TREE_BITS = 52
"""Bits to shift a number of a node or handle right by, to get the number of its tree."""
LOCAL_TREE = 1


class Numbers(NamedTuple):
    """The numbers that the nodes of one tree get: those of two trees in a view never meet."""

    offset: int
    """Added to an inode number."""
    own: int
    """The first number of our own, for a node that cannot have its inode number."""


SHARE_NUMBERS = Numbers(0, FIRST_OWN_ID)
LOCAL_NUMBERS = Numbers(1 << TREE_BITS, (1 << TREE_BITS + 1) - (1 << TREE_BITS - 8))
"""Of the guest's own directories: from 2**52 to below 2**53, up to which JavaScript tells numbers
apart. Programs compare inode numbers to find hard links."""


def is_local(number: int) -> bool:
    """Return whether a number, of a node or of a handle, belongs to the guest's own directories."""
    return number >> TREE_BITS == LOCAL_TREE


def stale() -> OSError:
    """Return OSError(ESTALE): the object is gone or replaced, and the kernel looks it up again."""
    return os_error(errno.ESTALE)


_FILE_TYPES = {known: known for known in (S_IFREG, S_IFDIR, S_IFLNK)}


class LinkedSubtree:
    """A directory and all below it, shown instead of a symlink."""

    __slots__ = ("ancestors", "variant")

    def __init__(self, variant: int, ancestors: frozenset[ObjectKey]) -> None:
        self.variant = variant
        self.ancestors = ancestors
        """The directories on the path that led to the symlink, by device and inode."""


class Node:
    """One object of the source, in one of its variants."""

    __slots__ = (
        "btime_ns", "case_asked", "case_matters", "classified_at", "dev", "fd", "file_type",
        "has_other_names", "id", "ino", "is_hashed", "is_pinned", "leased", "looked_at",
        "lookup_count", "name", "open_fds", "parent", "reported", "restrictions", "rule", "size",
        "subtree", "unplaced_as", "unsynced", "variant", "verdict",
    )  # fmt: skip

    def __init__(self, node_id: NodeId, st: os.stat_result, verdict: Verdict, rule: str) -> None:
        self.id = node_id
        self.dev = st.st_dev
        self.ino = st.st_ino
        file_type = S_IFMT(st.st_mode)
        self.file_type = _FILE_TYPES.get(file_type, file_type)  # one int object for all of them
        self.verdict = verdict
        self.rule = rule
        self.btime_ns = 0
        """The object's birth time in nanoseconds, if a call for it was cheap; otherwise 0."""
        self.classified_at = 0.0
        """When this directory and all above it were last classified: seconds (time.monotonic)."""
        self.looked_at = 0.0
        """When this directory alone was last classified again."""
        self.restrictions = 0
        """The table's count of restrictions when this node's verdict was last updated."""
        self.case_matters: bool | None = None
        """Whether this directory can hold two names that differ in case only; None if not known."""
        self.case_asked = 0
        """How often ``LetterCase`` was asked while the answer was not known."""
        self.lookup_count = 0
        """Lookups that were reported to the kernel and that it has not forgotten."""
        self.is_pinned = False
        """Whether the node stays even if the kernel forgets it (``symlinks``)."""
        self.parent: Node | None = None
        """The directory where the object was last seen; None if it has lost its name."""
        self.name = b""
        self.has_other_names = False
        """Whether the kernel may remember further names of this file: links, or former ones."""
        self.unplaced_as: tuple[int, int] | None = None
        """Size and mtime (ns) when a removal took this name and left others."""
        self.fd = -1
        """A cached O_PATH descriptor, owned by DescriptorCache; -1 for none."""
        self.leased = -1
        """The number of the last request that asked for a descriptor (``DescriptorCache``)."""
        self.open_fds: tuple[int, ...] = ()
        """Descriptors of the open handles on this node; the handles own them."""
        self.reported = 0
        """A digest of the (size, mtime, ctime) that was last reported to the kernel."""
        self.size = 0
        """The file size that was last reported to the kernel or reached by its writes, in bytes."""
        self.unsynced = 0
        """Bytes written since the last sync."""
        self.variant = PLAIN_VARIANT
        self.subtree: LinkedSubtree | None = None
        """The linked subtree in which this directory was found; None if in none."""
        self.is_hashed = True
        """Whether (device, inode) finds this node; False once unlinked, retired or restricted."""

    @property
    def is_known(self) -> bool:
        """Whether the kernel knows the node, or it is pinned."""
        return self.lookup_count > 0 or self.is_pinned

    @property
    def is_directory(self) -> bool:
        """Whether the object is a directory."""
        return self.file_type == S_IFDIR

    def matches(self, st: os.stat_result) -> bool:
        """Return whether ``st`` is of the object that this node stands for."""
        return (
            self.ino == st.st_ino and self.dev == st.st_dev and self.file_type == S_IFMT(st.st_mode)
        )

    def is_found(self, st: os.stat_result) -> bool:
        """Return whether the object under this node's name, with attributes ``st``, is the node's.

        If the kernel remembers several names and the object has one, the answer is False: the
        object may be another file that got the inode number. An open file keeps its number.
        """
        if self.has_other_names and st.st_nlink == 1 and not self.open_fds:
            return False
        return (
            self.ino == st.st_ino and self.dev == st.st_dev and self.file_type == S_IFMT(st.st_mode)
        )


class NodeTable:
    """All nodes that the kernel knows."""

    def __init__(self, root: os.stat_result, numbers: Numbers = SHARE_NUMBERS) -> None:
        self.offset, self._first_own = numbers
        self.root = Node(ROOT_ID, root, ALLOW, "")
        self.root.lookup_count = 1
        self._home = root.st_dev
        self.by_id: dict[int, Node] = {ROOT_ID: self.root}
        # Nodes whose number is not their inode number: another device or variant, or a reused one.
        self._by_key: dict[tuple[int, int, int], Node] = {}
        # Nodes in linked subtrees, and retired ones: ``restrict_known`` has to find them as well.
        self._other_nodes: dict[ObjectKey, list[Node]] = {}
        self._own_ids = cast("Iterator[NodeId]", count(self._first_own))
        self.left: list[Node] = []
        """Forgotten directories that a node was moved away from. The caller
        that takes them from this list closes their descriptors."""
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

    def find_below(self, parent: Node, st: os.stat_result) -> Node | None:
        """Return the unguarded node of an entry of ``parent``; None if there is none."""
        if parent.subtree is None or not S_ISDIR(st.st_mode):
            return self.find(st)
        return self.find(st, parent.subtree.variant)

    def get_or_add(
        self,
        parent: Node,
        name: bytes,
        st: os.stat_result,
        verdict: Verdict,
        rule: str,
        btime_ns: int = 0,
        subtree: LinkedSubtree | None = None,
        *,
        is_same: Callable[[Node, bytes, Node, os.stat_result], bool],
    ) -> Node:
        """Return the node of the object found at ``name``; add one if there is none.

        Counts no lookup. ``subtree`` is the linked subtree that begins at this object, if one does.
        ``is_same`` returns whether a known node of a file with this inode number, last seen under
        another name or several, stands for the object, and not for one that is gone.
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
            node = self._add(st, variant, verdict, rule)
            node.btime_ns = btime_ns
            node.subtree = subtree if variant != GUARDED else None
        if node.parent is parent or node.parent is None:
            node.parent, node.name = parent, name
        else:
            self.move(node, parent, name)
        if file_type == S_IFDIR:
            node.classified_at = parent.classified_at
        node.verdict, node.rule = verdict, rule
        node.restrictions = self.restrictions
        return node

    def move(self, node: Node, parent: Node, name: bytes) -> None:
        """Note that a node is now ``name`` in ``parent``."""
        if node.parent is not parent:
            if node.parent is not None:
                self.left += takewhile(lambda step: not step.is_known, ancestors(node.parent))
            node.parent = parent
        node.name = name

    def unknown(self, st: os.stat_result) -> Node:
        """Return a node, outside of the table, for a directory that the kernel does not know."""
        node = Node(next(self._own_ids), st, ALLOW, "")
        node.is_hashed = False
        return node

    def _add(self, st: os.stat_result, variant: int, verdict: Verdict, rule: str) -> Node:
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
        if natural and number not in self.by_id:
            node = Node(number, st, verdict, rule)
        else:
            node = Node(next(self._own_ids), st, verdict, rule)
            self._by_key[st.st_dev, st.st_ino, variant] = node
        node.variant = variant
        if variant > GUARDED:
            self._other_nodes.setdefault((st.st_dev, st.st_ino), []).append(node)
        if st.st_dev == self._home:
            node.dev = self._home  # one int object for all of them
        self.by_id[node.id] = node
        return node

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
        # Round a ring twice: the first directory of it has its verdict from the last one.
        for step in [*reversed(way)] * (2 if is_ring else 1):
            above = step.parent
            if above is not None and above.verdict > step.verdict:
                step.verdict, step.rule = above.verdict, above.rule
            step.restrictions = self.restrictions

    def unhash(self, node: Node) -> None:
        """Make (device, inode) free for another node; the kernel may still use this one."""
        node.is_hashed = False
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


def ancestors(node: Node) -> Iterator[Node]:
    """Yield a node and those above it, as last seen; stop at a ring."""
    seen = set()
    step: Node | None = node
    while step is not None and step.id not in seen:
        yield step
        seen.add(step.id)
        step = step.parent
