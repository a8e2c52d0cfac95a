"""One rename: its two names, and the entries at them."""

from __future__ import annotations

import os
from typing import NamedTuple

from gitguardfs.fs.access import NodeRef

PlacedEntry = tuple[NodeRef, os.stat_result]
"""A place, and the attributes of the entry that is or was there."""


class Renaming(NamedTuple):
    """A move of an entry from ``old`` to ``new``, or (``exchange``) an exchange of two entries."""

    old: NodeRef
    new: NodeRef
    moved: os.stat_result
    target: os.stat_result | None
    """The entry at ``new``; None if there is none."""
    exchange: bool
    moves_links: bool
    """Whether a symlink may come to a place from which its text leads elsewhere."""
    fds: list[int]
    """Descriptors to close at the end; the last is of the replaced entry, if there is one."""

    def leaving(self) -> tuple[PlacedEntry, ...]:
        """Return each entry that is moved, with its place before the rename."""
        moved = self.old, self.moved
        if self.exchange and self.target is not None:
            return moved, (self.new, self.target)
        return (moved,)

    def arriving(self) -> tuple[PlacedEntry, ...]:
        """Return each entry that is moved, with its place after the rename."""
        moved = self.new, self.moved
        if self.exchange and self.target is not None:
            return moved, (self.old, self.target)
        return (moved,)
