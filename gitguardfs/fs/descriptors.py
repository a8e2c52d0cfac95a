"""A bounded cache of O_PATH descriptors, at most one for each node.

A tree has millions of files and a process a thousand descriptors, so most nodes have none. A
closed descriptor is opened again by its parent's descriptor and its name, one component at a time,
and compared with the node: another object raises OSError(ESTALE) and is never used.
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
"""The newest descriptors, never closed: one operation uses up to four at a time. Half is margin."""
MINIMUM = 2 * IN_USE

OPEN_NODE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class DescriptorCache:
    """Descriptors of nodes; above the limit the least recently used one is closed."""

    def __init__(self, limit: int, path_based: bool = False) -> None:
        """Keep ``limit`` descriptors at most. ``path_based``: they hold paths, not objects."""
        self._limit = max(limit, MINIMUM)
        self._path_based = path_based
        # Keyed by node, not by its number: another node may have the number by now, while this one
        # is still the parent of some node.
        self._cached: OrderedDict[Node, None] = OrderedDict()
        self._pinned: set[Node] = set()
        self._file: Node | None = None
        """The node of the file that was last opened, where descriptors hold paths."""

    def __len__(self) -> int:
        return len(self._cached) + len(self._pinned)

    def of(self, node: Node) -> int:
        """Return a descriptor of ``node``, valid until the next operation.

        Raises OSError(ESTALE) if the node's object is not found, and any other OSError of the
        source.
        """
        if self._path_based and not node.is_directory:
            if node.parent is not None:
                self.close_file()
                self.close(node)  # the cached one may lead to another object by now
                self._file = node
            elif node.open_fds:
                return node.open_fds[0]  # without a name, an open file leads to the object
        if node.fd >= 0:
            if node in self._cached:
                self._cached.move_to_end(node)
            return node.fd
        if node.open_fds and not self._path_based:
            return node.open_fds[0]
        fd = self._reopen(node)
        self.keep(node, fd)
        return fd

    def parent_of(self, node: Node) -> int:
        """Return a descriptor of the directory where ``node`` was last seen.

        Raises OSError(ESTALE) if ``node`` has lost its last name; otherwise as ``of``.
        """
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
        if top in self._cached:
            self._cached.move_to_end(top)
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
                if not step.is_found(os.fstat(fd)):
                    raise stale()
            except (FileNotFoundError, NotADirectoryError):  # 9p opens a held name unasked
                os.close(fd)
                raise stale() from None
            except OSError:
                os.close(fd)
                raise
        return fd

    def open(self, flags: int, name: bytes, dir_fd: int | None, mode: int = 0) -> int:
        """Call os.open; if descriptors run out, close cached ones. Raises OSError."""
        return self.with_room(lambda: os.open(name, flags, mode, dir_fd=dir_fd))

    def with_room(self, call: Callable[[], T]) -> T:
        """Return the result of ``call``; while it fails with EMFILE, close cached descriptors.

        Raises OSError(ENFILE) if too few are cached, and what ``call`` raises.
        """
        while True:
            try:
                return call()
            except OSError as error:
                if error.errno != errno.EMFILE:
                    raise
                if len(self._cached) <= IN_USE:
                    # Open files hold the rest. EMFILE would blame the process that asks.
                    raise os_error(errno.ENFILE) from None
            self._shrink(max(len(self._cached) // 2, IN_USE))

    def keep(self, node: Node, fd: int) -> None:
        """Cache ``fd`` as the descriptor of ``node``; close ``fd`` if the node has one already."""
        if node.fd >= 0:
            os.close(fd)
            return
        node.fd = fd
        self._cached[node] = None
        if len(self._cached) > self._limit:
            self._shrink(self._limit)

    def _shrink(self, size: int) -> None:
        while len(self._cached) > size:
            node, _ = self._cached.popitem(last=False)
            os.close(node.fd)
            node.fd = -1

    def pin(self, node: Node) -> None:
        """Keep the descriptor of a node without a name until the kernel forgets the node."""
        if node in self._cached:
            del self._cached[node]
            self._pinned.add(node)

    def close(self, node: Node) -> None:
        """Close the cached or pinned descriptor of ``node``, if there is one."""
        if node in self._cached:
            del self._cached[node]
        elif node in self._pinned:
            self._pinned.remove(node)
        else:
            return
        os.close(node.fd)
        node.fd = -1

    def close_file(self) -> None:
        """Close the descriptor of a file that an earlier operation opened, if it holds a path.

        The guest's kernel shows number and type of a held object at its name, also once the host
        has replaced it.
        """
        if self._file is not None:
            file, self._file = self._file, None
            if file.parent is not None:
                self.close(file)

    def close_cached(self) -> None:
        """Close the descriptors of all objects that have names.

        Those that the caller has are closed as well: it asks for them again.
        """
        self._shrink(0)

    def close_all(self) -> None:
        """Close all descriptors of this cache, at the end of a mount."""
        self._shrink(0)
        for node in list(self._pinned):
            self.close(node)
