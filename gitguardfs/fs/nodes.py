"""Nodes: what the kernel knows by number, where each lies, and how often it was looked up.

The table changes only on the event loop's thread, never across an await.

A node is an object of the source in one of its variants: (device, inode, type, variant). The
variants are the plain one, the guarded one, and a linked subtree for each symlink that a directory
is shown in the place of (``symlinks``): the kernel gives a directory one name only, so one with
two is two nodes.
A node's number is the source's inode number where that is unique, so that ``ls -i`` and
hard-link detection behave, and otherwise a number above 2**62. Lookup counts mirror the kernel's:
a node lives until the kernel has forgotten it as often as it was told about it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from itertools import count, takewhile
from stat import S_IFDIR, S_IFLNK, S_IFMT, S_IFREG, S_ISDIR

from gitguardfs.errors import os_error
from gitguardfs.guard.rules import Verdict

ROOT_ID = 1
PLAIN_VARIANT, GUARDED = 0, 1
"""Views; larger numbers are branches."""
ObjectKey = tuple[int, int]
"""Device and inode."""

NEVER = float("-inf")
"""When a directory was classified that has to be classified again at each use."""

FIRST_OWN_ID = 1 << 62
"""Node numbers from here on are ours; file systems do not hand out such inode numbers."""


def stale() -> OSError:
    """The object is gone or is not what it was; the kernel looks the path up again."""
    return os_error(errno.ESTALE)


_KINDS = {kind: kind for kind in (S_IFREG, S_IFDIR, S_IFLNK)}


class LinkedSubtree:
    """A directory and what lies below it, shown in the place of a symlink."""

    __slots__ = ("ancestors", "variant")

    def __init__(self, variant: int, ancestors: frozenset[ObjectKey]) -> None:
        self.variant = variant
        self.ancestors = ancestors
        """The directories on the way that led there, by device and inode."""


class Node:
    """One object of the source, in one of its variants."""

    __slots__ = (
        "branch", "btime_ns", "classified_at", "dev", "fd", "id", "ino", "is_hashed",
        "is_pinned", "kind", "lookup_count", "name", "open_fds", "parent", "reported",
        "restrictions", "rule", "size", "unsynced", "variant", "verdict",
    )  # fmt: skip

    def __init__(self, node_id: int, st: os.stat_result, verdict: Verdict, rule: str) -> None:
        self.id = node_id
        self.dev = st.st_dev
        self.ino = st.st_ino
        kind = S_IFMT(st.st_mode)
        self.kind = _KINDS.get(kind, kind)  # one int object for all of them
        self.verdict = verdict
        self.rule = rule
        self.btime_ns = 0
        """When the object was made (nanoseconds), if it was cheap to find out; otherwise 0."""
        self.classified_at = 0.0
        """When a directory was last classified, with all above it, in seconds (time.monotonic)."""
        self.restrictions = 0
        """Up to which of the table's restrictions of directories the verdict is known."""
        self.lookup_count = 0
        """As often as the kernel was told about it and has not forgotten it."""
        self.is_pinned = False
        """Whether it stays although the kernel may have forgotten it (``symlinks``)."""
        self.parent: Node | None = None
        """With ``name`` the place where it was last seen; None when it has none any more."""
        self.name = b""
        self.fd = -1
        """A cached O_PATH descriptor, owned by DescriptorCache; -1 for none."""
        self.open_fds: tuple[int, ...] = ()
        """Descriptors of open handles on it, owned by the handles."""
        self.reported = 0
        """A digest of (size, mtime, ctime) as the kernel was last told them."""
        self.size = 0
        """The size that the kernel was last told or wrote up to."""
        self.unsynced = 0
        """Bytes written to it since it was last synced."""
        self.variant = PLAIN_VARIANT
        self.branch: LinkedSubtree | None = None
        """Where it was found, if it is a directory behind a symlink."""
        self.is_hashed = True
        """Whether (device, inode) leads to it; not once it is unlinked, replaced or guarded."""

    @property
    def is_known(self) -> bool:
        """Whether the kernel knows it, or it is pinned."""
        return self.lookup_count > 0 or self.is_pinned

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory."""
        return self.kind == S_IFDIR

    def matches(self, st: os.stat_result) -> bool:
        """Whether ``st`` is of the object that this node stands for."""
        return self.ino == st.st_ino and self.dev == st.st_dev and self.kind == S_IFMT(st.st_mode)


class NodeTable:
    """All nodes that the kernel knows."""

    def __init__(self, root: os.stat_result) -> None:
        self.root = Node(ROOT_ID, root, Verdict.ALLOW, "")
        self.root.lookup_count = 1
        self._home = root.st_dev
        self._by_id: dict[int, Node] = {ROOT_ID: self.root}
        # Nodes whose number is not their inode number: another device or variant, or reused.
        self._by_key: dict[tuple[int, int, int], Node] = {}
        self._branched: dict[ObjectKey, list[Node]] = {}
        self._own_ids = count(FIRST_OWN_ID)
        self.left: list[Node] = []
        """Directories that the kernel has forgotten, and where something was last seen until now:
        whoever takes them from here closes what is kept for them."""
        self._restrictions = 0
        """How often something has become guarded; each node notes up to where it knows."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._by_id.values())

    def get(self, node_id: int) -> Node:
        """The node with this number; OSError(ESTALE) for one that was never handed out.

        Its verdict is up to date with those above it.
        """
        node = self._by_id.get(node_id)
        if node is None:
            raise stale()
        if node.restrictions != self._restrictions:
            self._restrict(node)
        return node

    def find(self, st: os.stat_result, variant: int = PLAIN_VARIANT) -> Node | None:
        """The node that stands for the object of ``st`` in a variant, if there is one."""
        if variant == PLAIN_VARIANT and st.st_dev == self._home:
            node = self._by_id.get(st.st_ino)
            natural = node is not None and node.id < FIRST_OWN_ID and node.is_hashed
            if node is not None and natural and node.matches(st):
                return node
        node = self._by_key.get((st.st_dev, st.st_ino, variant))
        return node if node is not None and node.matches(st) else None

    def find_below(self, parent: Node, st: os.stat_result) -> Node | None:
        """The unguarded node for the object of ``st``, which is an entry of ``parent``."""
        branch = parent.branch if S_ISDIR(st.st_mode) else None
        return self.find(st, PLAIN_VARIANT if branch is None else branch.variant)

    def get_or_add(
        self,
        parent: Node,
        name: bytes,
        st: os.stat_result,
        verdict: Verdict,
        rule: str,
        btime_ns: int = 0,
        branch: LinkedSubtree | None = None,
    ) -> Node:
        """The node for what was just seen at ``name`` in ``parent``, made if it is new.

        Its lookup count is left alone: whoever hands it to the kernel counts. ``branch`` is the
        one that begins here, if one does.
        """
        branch = (branch or parent.branch) if S_ISDIR(st.st_mode) else None
        variant = PLAIN_VARIANT if branch is None else branch.variant
        if verdict is not Verdict.ALLOW:
            variant = GUARDED
            self.restrict_known(st, verdict, rule)
        node = self.find(st, variant)
        if node is not None and btime_ns and node.btime_ns and btime_ns != node.btime_ns:
            self.unhash(node)  # the inode number was reused
            node = None
        if node is None:
            node = self._add(st, variant, verdict, rule)
            node.btime_ns = btime_ns
            node.branch = branch if variant != GUARDED else None
        self.place(node, parent, name)
        if node.kind == S_IFDIR:
            node.classified_at = parent.classified_at
            if node.verdict < verdict:
                self._restrictions += 1
        node.verdict, node.rule = verdict, rule
        node.restrictions = self._restrictions
        return node

    def place(self, node: Node, parent: Node, name: bytes) -> None:
        """Note that a node was seen at ``name`` in ``parent``."""
        if node.parent is not parent:
            if node.parent is not None:
                self.left += takewhile(lambda step: not step.is_known, ancestors(node.parent))
            node.parent = parent
        node.name = name

    def unknown(self, st: os.stat_result) -> Node:
        """A node for a directory above one that the kernel knows, of which it does not know.

        As one that it has forgotten, it is in no table.
        """
        node = Node(next(self._own_ids), st, Verdict.ALLOW, "")
        node.is_hashed = False
        return node

    def _add(self, st: os.stat_result, variant: int, verdict: Verdict, rule: str) -> Node:
        natural = variant == PLAIN_VARIANT and st.st_dev == self._home
        natural &= ROOT_ID < st.st_ino < FIRST_OWN_ID
        # An inode number in use for another type was reused: the old node keeps its number.
        reused = self._by_key.get((st.st_dev, st.st_ino, variant))
        if reused is not None:
            self.unhash(reused)
        if natural and (reused := self._by_id.get(st.st_ino)) is not None:
            self.unhash(reused)
        if natural and st.st_ino not in self._by_id:
            node = Node(st.st_ino, st, verdict, rule)
        else:
            node = Node(next(self._own_ids), st, verdict, rule)
            self._by_key[st.st_dev, st.st_ino, variant] = node
        node.variant = variant
        if variant > GUARDED:
            self._branched.setdefault((st.st_dev, st.st_ino), []).append(node)
        if st.st_dev == self._home:
            node.dev = self._home  # one int object for all of them
        self._by_id[node.id] = node
        return node

    def restrict_known(self, st: os.stat_result, verdict: Verdict, rule: str) -> None:
        """Close the unguarded variant of what has become guarded (the host renamed it there).

        A directory takes everything below it along.

        A file with further links may be ordinary under another name and is left alone.
        """
        if not (S_ISDIR(st.st_mode) or st.st_nlink == 1):
            return
        ordinary = self.find(st)
        for twin in (ordinary, *self._branched.get((st.st_dev, st.st_ino), ())):
            if twin is not None and twin is not self.root:
                self.restrict_below(twin, verdict, rule)

    def restrict_below(self, node: Node, verdict: Verdict, rule: str) -> None:
        """Hold what has become guarded, and all that lies below it, to ``verdict`` at least.

        What lies below takes that over when it is next asked for (``get``): a table can have a
        million nodes.
        """
        self.unhash(node)
        if node.verdict < verdict:
            node.verdict, node.rule = verdict, rule
        self._restrictions += 1

    def classify_root(self, verdict: Verdict, rule: str) -> None:
        """The root has become a repository, or is none any more."""
        self.root.verdict, self.root.rule = verdict, rule
        self._restrictions += 1

    def _restrict(self, node: Node) -> None:
        """Take over what directories above have been restricted to since the last time.

        Places can be out of date after host renames, and then even form a ring.
        """
        way: dict[Node, None] = {}
        step: Node | None = node
        while step is not None and step not in way and step.restrictions != self._restrictions:
            way[step] = None
            step = step.parent
        is_ring = step is not None and step in way
        # Round a ring twice: the first directory of it has its verdict from the last one.
        for step in [*reversed(way)] * (2 if is_ring else 1):
            above = step.parent
            if above is not None and above.verdict > step.verdict:
                step.verdict, step.rule = above.verdict, above.rule
            step.restrictions = self._restrictions

    def unhash(self, node: Node) -> None:
        """Let (device, inode) mean another node from now on; the kernel may still use this one."""
        node.is_hashed = False
        if self._by_key.get((node.dev, node.ino, node.variant)) is node:
            del self._by_key[node.dev, node.ino, node.variant]
        if node.variant > GUARDED:
            twins = [n for n in self._branched.pop((node.dev, node.ino), ()) if n is not node]
            if twins:
                self._branched[node.dev, node.ino] = twins

    def forget(self, node_id: int, times: int) -> Node | None:
        """Undo ``times`` lookups; the node if that was the last the kernel knew of it."""
        node = self._by_id.get(node_id)
        if node is None or node is self.root:
            return None
        node.lookup_count -= times
        if node.is_known:
            return None
        self.drop(node)
        return node

    def drop(self, node: Node) -> None:
        """Remove a node that the kernel does not know."""
        self._by_id.pop(node.id, None)
        self.unhash(node)


def ancestors(node: Node) -> Iterator[Node]:
    """Yield a node and what lies above it, as last seen; ends where places form a ring."""
    seen = set()
    step: Node | None = node
    while step is not None and step.id not in seen:
        yield step
        seen.add(step.id)
        step = step.parent
