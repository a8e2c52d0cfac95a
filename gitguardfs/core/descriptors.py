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

from gitguardfs.core.inodes import Node, stale

T = TypeVar("T")

IN_USE = 8
"""The newest are never closed: one operation works with up to four of them at a time."""
MINIMUM = 2 * IN_USE

OPEN_NODE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class DescriptorCache:
    """Descriptors of nodes; the least recently used is closed when there are too many."""

    def __init__(self, limit: int, by_paths: bool = False) -> None:
        """``limit`` is a number of descriptors; ``by_paths`` that they hold paths, not objects."""
        self._limit = max(limit, MINIMUM)
        self._by_paths = by_paths
        self._cached: OrderedDict[int, Node] = OrderedDict()
        self._pinned: dict[int, Node] = {}

    def __len__(self) -> int:
        return len(self._cached) + len(self._pinned)

    def of(self, node: Node) -> int:
        """A descriptor of ``node``, valid until the next operation; OSError if it is gone."""
        if self._by_paths and node.parent is not None and not node.is_directory:
            self.close(node)  # it may lead to something else by now
        if node.fd >= 0:
            self._touch(node)
            return node.fd
        if node.open_fds and (node.parent is None or not self._by_paths):
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
        way = []
        seen = set()
        step = node
        while step.fd < 0:
            if step.parent is None or step.id in seen:
                raise stale()
            seen.add(step.id)
            way.append(step)
            step = step.parent
        self._touch(step)
        fd = step.fd
        for step in reversed(way):
            try:
                opened = self.open(OPEN_NODE, step.name, fd)
            except (FileNotFoundError, NotADirectoryError):
                raise stale() from None
            finally:
                if step is not way[-1]:
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
                    raise OSError(errno.ENFILE, os.strerror(errno.ENFILE)) from None
            self._shrink(max(len(self._cached) // 2, IN_USE))

    def keep(self, node: Node, fd: int) -> None:
        """Cache ``fd`` as the descriptor of ``node``; closes it if there is one already."""
        if node.fd >= 0:
            os.close(fd)
            return
        node.fd = fd
        self._cached[node.id] = node
        if len(self._cached) > self._limit:
            self._shrink(self._limit)

    def _touch(self, node: Node) -> None:
        if node.id in self._cached:
            self._cached.move_to_end(node.id)

    def _shrink(self, size: int) -> None:
        while len(self._cached) > size:
            _, node = self._cached.popitem(last=False)
            os.close(node.fd)
            node.fd = -1

    def pin(self, node: Node) -> None:
        """Keep the descriptor of a node that has lost its last name until it is forgotten."""
        if self._cached.pop(node.id, None) is not None:
            self._pinned[node.id] = node

    def close(self, node: Node) -> None:
        """Close what is kept for a forgotten node."""
        if node.fd >= 0 and (
            self._cached.pop(node.id, None) is not None
            or self._pinned.pop(node.id, None) is not None
        ):
            os.close(node.fd)
            node.fd = -1

    def close_all(self) -> None:
        """Close everything, at the end of a mount."""
        self._shrink(0)
        for node in list(self._pinned.values()):
            self.close(node)
