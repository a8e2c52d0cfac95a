"""Nodes: number, path, verdict and lookup count of each object that the kernel knows.

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
from collections.abc import Iterator
from stat import S_IFDIR, S_IFLNK, S_IFMT, S_IFREG
from typing import NamedTuple

from gitguardfs.base.errors import os_error
from gitguardfs.base.protocol import NodeId
from gitguardfs.names.rules import Verdict

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


UNJUDGED = -1
"""The count of restrictions of a node whose verdict is not known: a former daemon had it."""


UNKNOWN_SIZE = -1
"""The size of a file of which a killed daemon has not noted what the kernel takes for its size."""


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
        "btime_ns", "dev", "fd", "file_type", "has_other_names", "id", "ino", "is_hashed",
        "is_pinned", "leased", "lookup_count", "name", "open_fds", "parent", "reported",
        "restrictions", "rule", "size", "unplaced_as", "unsynced", "variant", "verdict",
        "was_mappable",
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
        self.restrictions = 0
        """The table's count of restrictions when this node's verdict was last updated."""
        self.lookup_count = 0
        """Lookups that were reported to the kernel and that it has not forgotten."""
        self.is_pinned = False
        """Whether the node stays even if the kernel forgets it (``symlinks``)."""
        self.parent: Directory | None = None
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
        self.was_mappable = False
        """Whether a process may have mapped the source's own file to write it. Nobody is told how
        long: the kernel's cached pages of the view's file do not show what is written there."""
        self.variant = PLAIN_VARIANT
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


class Directory(Node):
    """A directory, in one of its variants."""

    __slots__ = (
        "case_asked", "case_matters", "classified_at", "listed_as", "listed_at", "looked_at",
        "subtree",
    )  # fmt: skip

    def __init__(self, node_id: NodeId, st: os.stat_result, verdict: Verdict, rule: str) -> None:
        super().__init__(node_id, st, verdict, rule)
        self.classified_at = 0.0
        """When it and all directories above it were last classified: seconds (time.monotonic)."""
        self.looked_at = 0.0
        """When it alone was last classified again."""
        self.case_matters: bool | None = None
        """Whether it can hold two names that differ in case only; None if not known."""
        self.case_asked = 0
        """How often ``LetterCase`` was asked while the answer was not known."""
        self.listed_as = 0, 0
        """Its mtime and ctime when the kernel began to cache its listing, in nanoseconds."""
        self.listed_at = NEVER
        """When that was: seconds (time.monotonic)."""
        self.subtree: LinkedSubtree | None = None
        """The linked subtree in which it was found; None if in none."""


def ancestors(directory: Directory) -> Iterator[Directory]:
    """Yield a directory and those above it, as last seen; stop at a ring."""
    seen = set()
    step: Directory | None = directory
    while step is not None and step.id not in seen:
        yield step
        seen.add(step.id)
        step = step.parent
