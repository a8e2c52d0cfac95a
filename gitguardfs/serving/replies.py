"""Replies that report a node, with their timeouts: how long the kernel may cache them."""

from __future__ import annotations

from typing import NamedTuple

from gitguardfs.protocol import Attributes, EntryReply, NodeId, make


class Timeouts(NamedTuple):
    """The timeouts of one mount, in seconds."""

    entry: float
    attributes: float
    """0 if attributes are not the same for all users."""

    def reply(self, node: NodeId, attributes: Attributes) -> EntryReply:
        """Return the reply that reports a node."""
        entry, attr = self
        return make(EntryReply, (node, attributes, entry if attributes.lasts else 0.0, attr))
