"""The layout of the guest's own directories, which follows the share's.

The directory ``app/node_modules`` of the view is ``+app/=node_modules`` there: ``+app`` stands in
for ``app``. Every name in the layout has one of the two marks, ``+`` or ``=``, so a stand-in is
never taken for a directory of the guest's own.
"""

from __future__ import annotations

import errno
import os
from itertools import pairwise

from gitguardfs.base.constants import LOCAL_OWN, LOCAL_STAND_IN
from gitguardfs.base.errors import os_error
from gitguardfs.base.protocol import RENAME_EXCHANGE
from gitguardfs.fs.access import NodeRef
from gitguardfs.fs.nodes import Directory, Node
from gitguardfs.fs.tree import Tree

NAME_MAX = 255
"""Bytes in a name."""


class StandIns:
    """The directories of the guest's tree that stand in for directories of the share.

    Their nodes are pinned, so that a rename moves all nodes below. Paths are names from the root of
    the share. Every method raises OSError if the disk fails.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._pinned: set[Directory] = set()
        self._forgotten = 0
        self._is_empty = True
        self._listed_at = -1
        """The mtime of the root when it was listed last, in nanoseconds."""

    @property
    def is_empty(self) -> bool:
        """Whether no directory of the share has a stand-in. ``gitguard local move`` makes some."""
        if self._is_empty:
            fd = self._tree.nodes.root.fd
            mtime = os.fstat(fd).st_mtime_ns
            if mtime != self._listed_at:
                names = self._tree.source.names(fd)
                self._is_empty = not any(name.startswith(LOCAL_STAND_IN) for name in names)
                self._listed_at = mtime
        return self._is_empty

    def find(self, path: list[bytes]) -> Directory | None:
        """Return the stand-in of a directory; None if it has none."""
        if path and self.is_empty:
            return None
        node: Directory | None = self._tree.nodes.root
        for name in path:
            if node is not None:
                node = self._child(node, name)
        return node

    def make(self, path: list[bytes]) -> Directory:
        """Return the stand-in of a directory, which is made if it has none."""
        node = self._tree.nodes.root
        for name in path:
            found = self._child(node, name)
            if found is None:
                self._tree.source.mkdir(
                    self._tree.descriptors.of(node), LOCAL_STAND_IN + name, 0o700
                )
                self._is_empty = False
                found = self._child(node, name)
                assert found is not None
                # Made as nobody if the disk is nearly full (OwnDisk).
                fd = self._tree.descriptors.of(found)
                self._tree.source.chown(fd, os.geteuid(), os.getegid())
            node = found
        return node

    def _child(self, parent: Directory, name: bytes) -> Directory | None:
        fd, name = self._tree.descriptors.of(parent), LOCAL_STAND_IN + name
        st = self._tree.source.find_of_any_length(fd, name)
        if st is None:
            return None
        node = self._tree.resolver.find_or_add(NodeRef(parent, fd, name), st)
        assert isinstance(node, Directory)
        node.is_pinned = True
        self._pinned.add(node)
        return node

    def has_own(self, stand_in: Node, name: bytes) -> bool:
        """Return whether the guest has a directory of that name in a directory of the share."""
        fd = self._tree.descriptors.of(stand_in)
        return self._tree.source.find_of_any_length(fd, LOCAL_OWN + name) is not None

    def own_in(self, stand_in: Node) -> dict[bytes, int]:
        """Return the guest's own directories in a directory: inode number by name."""
        entries = self._tree.source.typed_names(self._tree.descriptors.of(stand_in))
        return {name[1:]: inode for name, (_, inode) in entries.items() if name[:1] == LOCAL_OWN}

    def tidy(self, path: list[bytes]) -> None:
        """Remove the stand-in of a directory, and those above it, as far as they are empty."""
        way = [self._tree.nodes.root]
        for name in path:
            node = self._child(way[-1], name)
            if node is None:
                break
            way.append(node)
        for parent, node in reversed([*pairwise(way)]):
            try:
                self._tree.source.remove(self._tree.descriptors.of(parent), node.name, True)
            except OSError:  # it holds something
                return
            self._unpin(node)

    def _unpin(self, node: Directory) -> None:
        self._pinned.discard(node)
        node.is_pinned = False
        self._tree.resolver.drop_unknown(node)

    def note_forgotten(self) -> None:
        """Note that the kernel has forgotten a node; unpin stand-ins without a known node below.

        All nodes are gone through once it has forgotten as many as it still knows here.
        """
        self._forgotten += 1
        if self._forgotten < len(self._tree.nodes) - len(self._pinned):
            return
        self._forgotten = 0
        used: set[Node] = set()
        for node in self._tree.nodes:
            step = None if node in self._pinned else node.parent
            while step is not None and step not in used:
                used.add(step)
                step = step.parent
        for node in self._pinned - used:
            self._unpin(node)

    def check_room(self, path: list[bytes]) -> None:
        """Check that a stand-in can come to ``path``; make those above it.

        Raises OSError(ENAMETOOLONG).
        """
        if len(LOCAL_STAND_IN + path[-1]) > NAME_MAX:
            raise os_error(errno.ENAMETOOLONG)
        self.make(path[:-1])

    def move(self, old: list[bytes], new: list[bytes], is_exchange: bool) -> None:
        """Move a stand-in after its directory was moved, or exchanged with another.

        What a directory that is gone has left at the new path is left at the old one.
        """
        moved, replaced = self.find(old), self.find(new)
        if moved is None and is_exchange:
            old, new, moved, replaced = new, old, replaced, moved
        if moved is None:
            return
        above_old, above_new = self.make(old[:-1]), self.make(new[:-1])
        self._tree.source.rename(
            self._tree.descriptors.of(above_old), LOCAL_STAND_IN + old[-1],
            self._tree.descriptors.of(above_new), LOCAL_STAND_IN + new[-1],
            RENAME_EXCHANGE if replaced is not None else 0,
        )  # fmt: skip
        self._tree.nodes.move(moved, above_new, LOCAL_STAND_IN + new[-1])
        if replaced is not None:
            self._tree.nodes.move(replaced, above_old, LOCAL_STAND_IN + old[-1])
        self.tidy(old)
