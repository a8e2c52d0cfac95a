"""One rename, as the rules see it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from stat import S_IFMT
from typing import NamedTuple

from gitguardfs.fs.access import NodeRef


class Renaming(NamedTuple):
    """An entry is moved from ``old`` to ``new``, or (``exchange``) two change places."""

    old: NodeRef
    new: NodeRef
    moved: os.stat_result
    target: os.stat_result | None
    """What is at ``new``, if there is something."""
    exchange: bool

    def leaving(self) -> Iterator[tuple[NodeRef, os.stat_result]]:
        """Yield what is moved, and from where."""
        yield self.old, self.moved
        if self.exchange and self.target is not None:
            yield self.new, self.target

    def arriving(self) -> Iterator[tuple[NodeRef, os.stat_result]]:
        """Yield what is moved, and to where."""
        yield self.new, self.moved
        if self.exchange and self.target is not None:
            yield self.old, self.target

    @property
    def can_be_undone(self) -> bool:
        """Whether nothing is replaced."""
        return self.target is None or self.exchange

    @property
    def kinds(self) -> set[int]:
        """The types (S_IFMT) of what is moved or replaced."""
        return {S_IFMT(st.st_mode) for st in (self.moved, self.target) if st is not None}
