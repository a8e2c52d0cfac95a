"""Which processes want attributes with their listings.

A listing with attributes costs a stat and a node for each entry. A program that only walks the
names, such as find, is spared that where the session can report names alone.
"""

from __future__ import annotations

from collections import OrderedDict

ENOUGH = 2
"""Lookups of files, by a process that was given only their names, after which it gets attributes
with its listings."""
REMEMBERED = 256
"""Processes."""


class ReaddirplusAdvice:
    """Remembers which processes look at what they have listed."""

    def __init__(self) -> None:
        self._lookups: OrderedDict[int, int] = OrderedDict()

    def wants_names_only(self, pid: int) -> bool:
        """Return whether the process ``pid`` has wanted only names of directories so far."""
        lookups = self._lookups.setdefault(pid, 0)
        if len(self._lookups) > REMEMBERED:
            self._lookups.popitem(last=False)
        return lookups < ENOUGH

    def note_lookup(self, pid: int) -> None:
        """Note that a process has looked up something that is no directory."""
        if pid in self._lookups:
            self._lookups[pid] += 1
