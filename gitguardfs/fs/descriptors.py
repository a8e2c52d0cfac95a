"""A bounded cache of O_PATH descriptors, one a node, reopened by place and identity.

Trees have millions of files and a process a thousand descriptors: most nodes have none. One
that is needed again is opened through its parent's descriptor and its name, one component at
a time, and compared with the node: what is not the same object is ESTALE, never used.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from gitguardfs.errors import os_error
from gitguardfs.fs.nodes import Node, stale

T = TypeVar("T")

IN_USE = 8
"""The newest are never closed: one operation works with up to four of them at a time."""
MINIMUM = 2 * IN_USE

OPEN_NODE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class DescriptorCache:
    """Descriptors of nodes; the least recently used is closed when there are too many."""

    def __init__(self, limit: int, path_based: bool = False) -> None:
        """``limit`` is a number of descriptors; ``path_based``: they hold paths, not objects."""
        self._limit = max(limit, MINIMUM)
        self._path_based = path_based
        # By node, not by its number: that may be another node's by now, while this one is still
        # somebody's parent.
        self._cached: OrderedDict[Node, None] = OrderedDict()
        self._pinned: set[Node] = set()

    def __len__(self) -> int:
        return len(self._cached) + len(self._pinned)

    def of(self, node: Node) -> int:
        """A descriptor of ``node``, valid until the next operation; OSError if it is gone."""
        if self._path_based and node.parent is not None and not node.is_directory:
            self.close(node)  # it may lead to something else by now
        if node.fd >= 0:
            self._touch(node)
            return node.fd
        if node.open_fds and (node.parent is None or not self._path_based):
            return node.open_fds[0]
        fd = self._reopen(node)
        self.keep(node, fd)
        return fd

    def parent_of(self, node: Node) -> int:
        """A descriptor of the directory where ``node`` was last seen; ESTALE if nowhere."""
        if node.parent is None:
            raise stale()
        return self.of(node.parent)

    def _reopen(self, node: Node) -> int:
        way: dict[Node, None] = {}
        step = node
        while step.fd < 0:
            if step.parent is None or step in way:
                raise stale()
            way[step] = None
            step = step.parent
        top = step
        self._touch(top)
        fd = top.fd
        for step in reversed(way):
            try:
                opened = self.open(OPEN_NODE, step.name, fd)
            except (FileNotFoundError, NotADirectoryError):
                raise stale() from None
            finally:
                if fd != top.fd:
                    os.close(fd)
            fd = opened
            try:
                if not step.matches(os.fstat(fd)):
                    raise stale()
            except OSError:
                os.close(fd)
                raise
        return fd

    def open(self, flags: int, name: bytes, dir_fd: int | None, mode: int = 0) -> int:
        """os.open; out of descriptors, cached ones make room."""
        return self.with_room(lambda: os.open(name, flags, mode, dir_fd=dir_fd))

    def with_room(self, call: Callable[[], T]) -> T:
        """Run ``call``, closing cached descriptors while it fails for want of one."""
        while True:
            try:
                return call()
            except OSError as error:
                if error.errno != errno.EMFILE:
                    raise
                if len(self._cached) <= IN_USE:
                    # All are held by open files: "too many in the system", not in the caller.
                    raise os_error(errno.ENFILE) from None
            self._shrink(max(len(self._cached) // 2, IN_USE))

    def keep(self, node: Node, fd: int) -> None:
        """Cache ``fd`` as the descriptor of ``node``; closes it if there is one already."""
        if node.fd >= 0:
            os.close(fd)
            return
        node.fd = fd
        self._cached[node] = None
        if len(self._cached) > self._limit:
            self._shrink(self._limit)

    def _touch(self, node: Node) -> None:
        if node in self._cached:
            self._cached.move_to_end(node)

    def _shrink(self, size: int) -> None:
        while len(self._cached) > size:
            node, _ = self._cached.popitem(last=False)
            os.close(node.fd)
            node.fd = -1

    def pin(self, node: Node) -> None:
        """Keep the descriptor of a node that has lost its last name until it is forgotten."""
        if node in self._cached:
            del self._cached[node]
            self._pinned.add(node)

    def close(self, node: Node) -> None:
        """Close what is kept for a forgotten node."""
        if node in self._cached:
            del self._cached[node]
        elif node in self._pinned:
            self._pinned.remove(node)
        else:
            return
        os.close(node.fd)
        node.fd = -1

    def close_all(self) -> None:
        """Close everything, at the end of a mount."""
        self._shrink(0)
        for node in list(self._pinned):
            self.close(node)
