"""The guest's own changes, which come back from the host a moment later."""

from __future__ import annotations

import os
from collections import OrderedDict
from time import monotonic
from typing import Any

from gitguardfs.base.protocol import RENAME_EXCHANGE, Attributes, EntryReply
from gitguardfs.fs.attributes import change_key
from gitguardfs.fs.nodes import Node
from gitguardfs.fs.tree import Tree
from gitguardfs.live.known_names import Place

REMEMBERED = 1 << 16
"""Changes of each kind that are remembered at most."""
LIFE = 10.0
"""Seconds after which a change does not come back any more."""


class _Recent:
    """Values that were noted a short time ago, by key."""

    def __init__(self) -> None:
        self._noted: OrderedDict[Any, tuple[float, object]] = OrderedDict()

    def note(self, key: object, value: object = None) -> None:
        self._noted.pop(key, None)
        self._noted[key] = monotonic(), value
        if len(self._noted) > REMEMBERED:
            self._noted.popitem(last=False)

    def holds(self, key: object, value: object = None) -> bool:
        at, noted = self._noted.get(key, (0.0, None))
        return noted == value and monotonic() - at < LIFE

    def drop(self, key: object) -> None:
        self._noted.pop(key, None)


class OwnChanges:
    """Changes that the kernel knows of already: the guest's own, and those that were repeated.

    The view tells of each request that has changed something.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._made, self._gone, self._content = _Recent(), _Recent(), _Recent()

    def closes(self, handle_id: int) -> None:
        """Note the content of a file that is closed, if it was open to be written."""
        handle = self._tree.handles.files.get(handle_id)  # type: ignore[call-overload]
        if handle is not None and handle.writable:
            self.note_content(handle.node.id, change_key(os.fstat(handle.fd)))

    def note(self, request: str, arguments: tuple[Any, ...], reply: Any) -> None:
        """Note a request that was served."""
        if request in ("unlink", "rmdir"):
            self.note_gone(arguments[:2])
        elif request == "rename":
            old, new, flags = arguments[:2], arguments[2:4], arguments[4]
            (self.note_made if flags & RENAME_EXCHANGE else self.note_gone)(old)
            self.note_made(new)
            parent = self._tree.nodes.get(new[0])
            st = self._tree.source.stat_at(self._tree.descriptors.of(parent), new[1])
            moved = self._tree.nodes.find(st)
            if moved is not None:
                self.note_content(moved.id, change_key(st))
        else:
            if request != "setattr":
                self.note_made(arguments[1:3] if request == "link" else arguments[:2])
            entry: EntryReply = reply[1] if request == "create" else reply
            if entry.attributes is not None:
                self.note_content(entry.node, _key(entry.attributes))

    def note_made(self, place: Place) -> None:
        """Note that a name is there."""
        self._gone.drop(place)
        self._made.note(place)

    def note_gone(self, place: Place) -> None:
        """Note that a name is gone."""
        self._made.drop(place)
        self._gone.note(place)

    def note_content(self, node_id: int, key: int) -> None:
        """Note size and times of a file, as ``change_key``."""
        self._content.note(node_id, key)

    def has_made(self, place: Place) -> bool:
        """Return whether the kernel knows that a name is there."""
        return self._made.holds(place)

    def has_removed(self, place: Place) -> bool:
        """Return whether the kernel knows that a name is gone."""
        return self._gone.holds(place)

    def has_written(self, node: Node, st: os.stat_result) -> bool:
        """Return whether the kernel knows a file's size and times, or a program writes it now."""
        if self._content.holds(node.id, change_key(st)):
            return True
        files = self._tree.handles.files.values()
        return any(handle.node is node and handle.writable for handle in files)


def _key(attributes: Attributes) -> int:
    """Return what ``change_key`` returns for the object of these attributes."""
    return hash((attributes.size, attributes.mtime_ns, attributes.ctime_ns))
