"""A bounded cache of O_PATH descriptors, at most one for each node.

A tree has millions of files and a process a thousand descriptors, so most nodes have none. A
closed descriptor is opened again by its parent's descriptor and its name, one component at a time,
and compared with the node: another object raises OSError(ESTALE).

A descriptor that a request has asked for is leased to it: it stays open until the request ends,
which is when the next one begins. ``request`` counts them.

On a mount below the source, a descriptor would keep the host from unmounting that. So there it is
closed as soon as the request has been served.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TypeVar, TypeVarTuple

from gitguardfs.base.errors import os_error
from gitguardfs.base.protocol import NodeId
from gitguardfs.fs.nodes import Node, stale
from gitguardfs.linux import syscalls

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

REPLACED = 64
"""Names of files that were replaced which are remembered at most."""
OPEN_NODE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class DescriptorCache:
    """Descriptors of nodes; above the limit the least recently used one is closed.

    Every method that finds or opens an object raises OSError: ESTALE if the node's object is not
    found, and that of the source.
    """

    holds_objects = True
    """Whether a descriptor leads to an object, and not to whatever is at its path."""

    def __init__(self, limit: int, root_fd: int) -> None:
        """Keep ``limit`` descriptors, and those that are leased.

        ``root_fd`` is a descriptor of the source. Raises OSError.
        """
        self._limit = limit
        self._mount = syscalls.mount_id(root_fd)
        # Keyed by node, not by its number: another node may have the number by now, while this one
        # is still the parent of some node.
        self._cached: OrderedDict[Node, None] = OrderedDict()
        self._pinned: set[Node] = set()
        self.request = 0
        """The number of the request under way; the view raises it at the end of each."""
        self.passing: list[Node] = []
        """Nodes on mounts below the source that have got a descriptor in this request."""
        self.replaced: OrderedDict[tuple[NodeId, bytes], None] = OrderedDict()
        """Directory and name of each file that was replaced lately between two requests. The kernel
        looks it up again, once: what is found then must be there in the next request."""

    def __len__(self) -> int:
        return len(self._cached) + len(self._pinned)

    def of(self, node: Node) -> int:
        """Return a descriptor of ``node``, which is leased to the request under way."""
        node.leased = self.request
        if node.fd >= 0:
            if node in self._cached:
                self._cached.move_to_end(node)
            return node.fd
        if node.open_fds:
            return node.open_fds[0]
        self.keep(node, self._open_again(node))
        return node.fd

    def known(self, node: Node) -> int:
        """Return a descriptor that is surely of the node's object, if one is open; else -1."""
        if node.fd >= 0:
            node.leased = self.request
            return node.fd
        return node.open_fds[0] if node.open_fds else -1

    def parent_of(self, node: Node) -> int:
        """Return a descriptor of the directory where ``node`` was last seen."""
        if node.parent is None:
            raise stale()
        return self.of(node.parent)

    def note_replaced(self, node: Node) -> None:
        """Note that the host has replaced a file."""
        if node.parent is not None:
            self.replaced[node.parent.id, node.name] = None
            if len(self.replaced) > REPLACED:
                self.replaced.popitem(last=False)

    def let_go(self, nodes: Sequence[Node]) -> None:
        """Let the source show the present objects at the names of ``nodes``, before ``found``.

        ``nodes`` begins with a directory; each next node lies below the one before it.
        """

    def found(self, node: Node) -> int:
        """Return a descriptor of a directory that is still where it was last seen."""
        if node.parent is not None:
            try:
                st = os.stat(node.name, dir_fd=self.of(node.parent), follow_symlinks=False)
            except (FileNotFoundError, NotADirectoryError):
                raise stale() from None
            if not node.matches(st):
                raise stale()
        return self.of(node)

    def check_nameless(self, node: Node) -> None:
        """Check that a node without a name can still be used. Raises OSError(ESTALE)."""

    def _open_again(self, node: Node) -> int:
        way: dict[Node, None] = {}
        step = node
        while step.fd < 0:
            if step.parent is None or step in way:
                raise stale()
            way[step] = None
            step = step.parent
        top = self.of(step)
        fd = top
        for step in reversed(way):
            try:
                opened = self.open(OPEN_NODE, step.name, fd)
            except (FileNotFoundError, NotADirectoryError):
                raise stale() from None
            finally:
                if fd != top:
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
        try:
            return os.open(name, flags, mode, dir_fd=dir_fd)
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
        return self.with_room(lambda: os.open(name, flags, mode, dir_fd=dir_fd))

    def with_room(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        """Return the result of a call; while it fails with EMFILE, close cached descriptors.

        Raises OSError(ENFILE) if only leased ones are left, and what ``call`` raises.
        """
        while True:
            try:
                return call(*args)
            except OSError as error:
                if error.errno != errno.EMFILE:
                    raise
            before = len(self._cached)
            self._shrink(before // 2)
            if len(self._cached) == before:
                # Open files hold the rest. EMFILE would blame the process that asks.
                raise os_error(errno.ENFILE)

    def keep(self, node: Node, fd: int, is_here: bool = False) -> None:
        """Cache ``fd`` as the descriptor of ``node``; close ``fd`` if the node has one already.

        ``is_here`` says that it leads through no mount below the source.
        """
        if node.fd >= 0:
            os.close(fd)
            return
        node.fd = fd
        self._cached[node] = None
        if not is_here and self._is_below_mount(node):
            self.passing.append(node)
        if len(self._cached) > self._limit:
            self._shrink(self._limit)

    def _is_below_mount(self, node: Node) -> bool:
        """Return whether the descriptor of a node leads through a mount below the source."""
        return syscalls.mount_id(node.fd) != self._mount

    def close_passing(self) -> None:
        """Close the descriptors of ``passing``, once the request has been served.

        An object without a name keeps its descriptor: nothing else leads to it.
        """
        while self.passing:
            node = self.passing.pop()
            if node in self._cached:
                self.close(node)

    def keep_removed(self, node: Node, fd: int, is_last: bool) -> None:
        """Keep ``fd`` of an object that has lost a name, perhaps its last one."""
        self.keep(node, fd)

    def _shrink(self, size: int) -> None:
        """Close cached descriptors until ``size`` are left, except leased ones."""
        for _ in range(len(self._cached)):
            if len(self._cached) <= size:
                return
            node, _ = self._cached.popitem(last=False)
            if node.leased == self.request:
                self._cached[node] = None
            else:
                os.close(node.fd)
                node.fd = -1

    def pin(self, node: Node) -> None:
        """Keep the descriptor of a node without a name until the kernel forgets the node."""
        if node in self._cached:
            del self._cached[node]
            self._pinned.add(node)

    def unpin(self, node: Node) -> None:
        """Treat the descriptor of a node as any other, if it is pinned: the node has a name now."""
        if node in self._pinned:
            self._pinned.remove(node)
            fd, node.fd = node.fd, -1
            self.keep(node, fd)

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

    def close_unleased(self) -> None:
        """Close the descriptors of all objects that have names, except leased ones."""
        self._shrink(0)

    def close_all(self) -> None:
        """Close all descriptors of this cache, at the end of a mount."""
        self.request += 1
        self._shrink(0)
        for node in list(self._pinned):
            self.close(node)
