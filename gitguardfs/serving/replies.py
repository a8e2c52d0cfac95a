"""For how long the kernel may believe what it is told of a node."""

from __future__ import annotations

from typing import NamedTuple

from gitguardfs.protocol import Attributes, EntryReply


class Timeouts(NamedTuple):
    """The timeouts of one mount, in seconds."""

    entry: float
    attributes: float
    """0 if attributes are not the same for all users."""

    def reply(self, node: int, attributes: Attributes) -> EntryReply:
        """Return the reply that reports a node."""
        entry = self.entry if attributes.lasts else 0.0
        return EntryReply(node, attributes, entry, self.attributes)
