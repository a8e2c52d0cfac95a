"""One rename: its two names, and the entries at them."""

from __future__ import annotations

import os
from stat import S_IFMT
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

    @property
    def can_be_undone(self) -> bool:
        """Whether the rename can be undone: no entry is replaced."""
        return self.target is None or self.exchange

    @property
    def file_types(self) -> set[int]:
        """The types (S_IFMT) of the entries that are moved or replaced."""
        return {S_IFMT(st.st_mode) for st in (self.moved, self.target) if st is not None}
