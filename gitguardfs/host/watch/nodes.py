"""Watched directories as a tree of names: a directory that is moved takes all below it along.

Paths are made when they are told. A tree of 200,000 directories has to fit into some 60 MB.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator


class Node:
    """A watched directory."""

    __slots__ = ("children", "name", "parent", "wd")

    def __init__(self, wd: int, parent: Node | None, name: str) -> None:
        self.wd = wd
        self.parent = parent
        self.name = sys.intern(name)  # few names, such as src, stand for many directories
        self.children: dict[str, Node] | None = None


class Nodes:
    """All watched directories of one tree, by watch descriptor and by name."""

    def __init__(self) -> None:
        self._nodes: dict[int, Node] = {}
        self.root: Node | None = None

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(list(self._nodes.values()))

    def get(self, wd: int) -> Node | None:
        """Return the directory with this watch descriptor."""
        return self._nodes.get(wd)

    def add(self, wd: int, parent: Node | None, name: str) -> Node:
        """Add a directory; the root has no parent."""
        node = self._nodes[wd] = Node(wd, None, name)
        if parent is None:
            self.root = node
        else:
            self.attach(node, parent, name)
        return node

    @staticmethod
    def child(parent: Node, name: str) -> Node | None:
        """Return the directory with this name in another one."""
        return parent.children.get(name) if parent.children else None

    def attach(self, node: Node, parent: Node, name: str) -> None:
        """Put a directory under a name, and take it from the one that it had."""
        self.detach(node)
        node.parent, node.name = parent, sys.intern(name)
        if parent.children is None:
            parent.children = {}
        parent.children[node.name] = node

    def detach(self, node: Node) -> None:
        """Take a directory from its name. It keeps its parent, by which its last path is told."""
        if node.parent is not None and self.child(node.parent, node.name) is node:
            assert node.parent.children is not None
            del node.parent.children[node.name]
            node.parent.children = node.parent.children or None

    def forget(self, node: Node) -> None:
        """Remove a directory whose watch has ended."""
        self.detach(node)
        if self._nodes.get(node.wd) is node:
            del self._nodes[node.wd]

    @staticmethod
    def below(node: Node) -> Iterator[Node]:
        """Yield a directory and all below it."""
        waiting = [node]
        while waiting:
            node = waiting.pop()
            waiting += (node.children or {}).values()
            yield node

    def at(self, path: str) -> Node | None:
        """Return the directory at a relative path."""
        node = self.root
        for name in path.split("/") if path else ():
            node = None if node is None else self.child(node, name)
        return node

    def path(self, node: Node | None, name: str = "") -> str | None:
        """Return the relative path of a name in a directory; None if it has left the tree."""
        parts = [name] if name else []
        while node is not None and node is not self.root:
            parts.append(node.name)
            node = node.parent
        return None if node is None else "/".join(reversed(parts))
