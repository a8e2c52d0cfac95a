"""Changes of names that wait until no further event comes, and the lines that they become.

An editor's save is some ten events of one name within a millisecond. A name is reported ``SETTLED``
seconds after its last event, and after ``LATEST`` seconds though it is written all the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, TypeVar

SETTLED = 0.02
"""Seconds after the last event of a name."""
LATEST = 0.1
"""Seconds after the first one, at most."""

Key = TypeVar("Key")


class Event(Enum):
    """One thing that has happened to a name."""

    APPEARED = auto()
    MOVED_IN = auto()
    """As APPEARED, perhaps over another file of that name."""
    WENT = auto()
    WRITTEN = auto()
    ATTRIBUTES = auto()


@dataclass(slots=True)
class Change:
    """The events of one name so far."""

    due: float
    latest: float
    was_there: bool | None
    """Whether the name existed before; None if nobody knows."""
    is_there: bool = True
    is_new: bool = False
    """Whether another object has the name than before."""
    is_written: bool = False
    has_attributes: bool = False
    is_read: bool = False
    """Whether it is a directory whose watch was placed after its creation."""

    def add(self, event: Event) -> None:
        """Note one more event."""
        if event is Event.WENT:
            self.is_there = self.is_new = self.is_written = self.has_attributes = False
        elif event is Event.WRITTEN:
            self.is_written = True
        elif event is Event.ATTRIBUTES:
            self.has_attributes = True
        else:
            self.is_there = self.is_new = True

    def lines(self) -> list[str]:
        """Return the keys of its lines in the stream, in their order."""
        if not self.is_there:
            return ["brief" if self.was_there is False else "gone"]
        if self.is_new:
            return ["made", "again"] if self.is_read else ["made"]
        flags = {
            "changed": self.is_written, "attributes": self.has_attributes, "again": self.is_read
        }  # fmt: skip
        return [key for key, is_so in flags.items() if is_so]


_WAS_THERE = {Event.APPEARED: False, Event.MOVED_IN: None}


class Settling(Generic[Key]):
    """Changes by their names, the one that is due first at the front."""

    def __init__(self) -> None:
        self._changes: dict[Key, Change] = {}

    def note(self, key: Key, event: Event, now: float) -> Change:
        """Add an event of a name; return its change."""
        change = self._changes.get(key)
        if change is None:
            change = Change(now + SETTLED, now + LATEST, _WAS_THERE.get(event, True))
            self._changes[key] = change
        elif now + SETTLED < change.latest:  # else it stays at its place
            change.due = now + SETTLED
            del self._changes[key]
            self._changes[key] = change
        change.add(event)
        return change

    def take(self, key: Key) -> Change | None:
        """Remove a name's change, and return it."""
        return self._changes.pop(key, None)

    def put(self, key: Key, change: Change, now: float) -> None:
        """Go on with a change under another name."""
        change.due, change.latest = now + SETTLED, now + LATEST
        self._changes.pop(key, None)
        self._changes[key] = change

    def clear(self) -> None:
        """Forget all changes."""
        self._changes.clear()

    @property
    def next_due(self) -> float | None:
        """The time when the next change is settled; None without one."""
        return next((change.due for change in self._changes.values()), None)

    def settled(self, now: float) -> Iterator[tuple[Key, Change]]:
        """Remove the settled changes, and yield them."""
        while self._changes:
            key, change = next(iter(self._changes.items()))
            if change.due > now:
                return
            del self._changes[key]
            yield key, change
