"""Decides which processes get attributes with their listings.

A listing with attributes costs a stat and a node for each entry. A program that only walks the
names, such as find, gets names alone if the session can report those.
"""

from __future__ import annotations

from collections import OrderedDict

ENOUGH = 2
"""Lookups of files after which a process that was given names alone gets attributes as well."""
REMEMBERED = 256
"""Processes that are remembered at a time; the one seen first is forgotten."""


class ReaddirplusAdvice:
    """Remembers which processes look up the entries that they have listed."""

    def __init__(self) -> None:
        self.lookups: OrderedDict[int, int] = OrderedDict()
        """By process that has listed something: the objects, other than directories, that it has
        looked up since."""

    def wants_names_only(self, pid: int) -> bool:
        """Return whether the process ``pid`` has only listed names, and looked up few, so far."""
        lookups = self.lookups.setdefault(pid, 0)
        if len(self.lookups) > REMEMBERED:
            self.lookups.popitem(last=False)
        return lookups < ENOUGH
