"""The names that the kernel knows, while the host tells of its changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gitguardfs.fs.node_table import NodeTable
from gitguardfs.fs.nodes import Directory, Node
from gitguardfs.live.lines import Path

Place = tuple[int, bytes]
"""A directory's number, and a name in it."""


MOST_FURTHER = 1 << 16
"""Further names of files that are remembered; users can make as many as they like."""


class KnownNames:
    """The nodes of a table by their places. Used on the serving thread only."""

    def __init__(
        self,
        nodes: NodeTable,
        came: Callable[[Directory], None],
        doubts: Callable[[Place], None],
    ) -> None:
        """``came`` is called with a directory that reappears at another place.

        The kernel has kept what it caches below it, and lines by the new path found nothing.
        ``doubts`` is called with a place that has another object now, or none.
        """
        self._nodes = nodes
        self._came = came
        self._doubts = doubts
        self._by_place: dict[Place, Node] = {}
        self._places: dict[int, Place] = {}
        self._further: set[Place] = set()
        """Places at which the kernel knows files that were last seen at another."""
        self._entries: dict[int, set[int]] = {}
        """By a directory's number: those of the nodes in it."""
        self._strayed: set[int] = set()
        """Directories that have lost their place: lines on what is below them find nothing."""
        for node in nodes:
            self._note(node)
        self._former = nodes.note
        nodes.note = self._note if self._former is None else self._note_both

    def close(self) -> None:
        """Follow the table's changes no more."""
        self._nodes.note = self._former

    def _note_both(self, node: Node) -> None:
        self._note(node)
        if self._former is not None:
            self._former(node)

    def _note(self, node: Node) -> None:
        former = self._places.get(node.id)
        if node.has_other_names and former is not None:
            if len(self._further) < MOST_FURTHER:
                self._further.add(former)
            else:
                self._doubts(former)
        self.lost(node)
        if self._nodes.by_id.get(node.id) is not node:  # the kernel has forgotten it
            return self._strayed.discard(node.id)
        place = None
        if node.parent is not None and node.is_hashed:
            place = self._places[node.id] = node.parent.id, node.name
            self._by_place[place] = node
            self._entries.setdefault(node.parent.id, set()).add(node.id)
            if node.id in self._strayed and place != former:
                self._came(node)  # type: ignore[arg-type]
            self._strayed.discard(node.id)
        if former is not None and former != place:
            self._doubts(former)
            if place is not None:
                self._doubts(place)

    def lost(self, node: Node) -> None:
        """Note that a node has lost its name by a change of the host's."""
        present = self._nodes.by_id.get(node.id)
        if node.id not in self._places or (present is not None and present is not node):
            return
        place = self._places.pop(node.id)
        if isinstance(node, Directory):
            self._strayed.add(node.id)
        if self._by_place.get(place) is node:
            del self._by_place[place]
        entries = self._entries.get(place[0], set())
        entries.discard(node.id)
        if not entries:
            self._entries.pop(place[0], None)

    def at(self, parent: Directory, name: bytes) -> Node | None:
        """Return the node that was last seen at a name, if the kernel knows it."""
        node = self._by_place.get((parent.id, name))
        return node if node is not None and node.is_known else None

    def directory(self, path: Path) -> Directory | None:
        """Return the directory at a path; None if the kernel knows none there."""
        node: Node | None = self._nodes.root
        for name in path:
            if not isinstance(node, Directory):
                return None
            node = self._by_place.get((node.id, name))
        return node if isinstance(node, Directory) and (node.is_known or not path) else None

    def below(self, top: Directory) -> Iterator[Node]:
        """Yield the known nodes below a directory, each directory as it is when it is reached."""
        ahead: list[int] = [top.id]
        seen: set[int] = {top.id}
        while ahead:
            for number in list(self._entries.get(ahead.pop(), ())):
                node = self._nodes.by_id.get(number)
                if node is None or number in seen:
                    continue
                if isinstance(node, Directory):
                    seen.add(number)
                    ahead.append(number)
                if node.is_known:
                    yield node

    def places(self) -> list[Place]:
        """Return all places. The further ones are forgotten with that."""
        further, self._further = self._further, set()
        return [*self._by_place, *(further - self._by_place.keys())]
