"""Names that large directories were just moved away from.

Such a directory is not searched: git on the host may be making a repository below it, and goes on
under the old path. So no directory or symlink may get that name for as long as git would need.
"""

from __future__ import annotations

import os
from time import monotonic

from gitguardfs.fs import forming
from gitguardfs.fs.access import NodeRef
from gitguardfs.fs.nodes import Node, ancestors
from gitguardfs.guard.dotgit import any_spelling
from gitguardfs.protocol import Later


class LeftPlaces:
    """The names, and until when nothing may get them."""

    def __init__(self) -> None:
        self._left: dict[tuple[int, int, bytes], tuple[float, Node]] = {}
        """By directory (device, inode) and name: until when (time.monotonic), and the directory."""

    def note(self, ref: NodeRef) -> None:
        """Note that a large directory is moved away from ``ref``."""
        now = monotonic()
        # No limit is needed: each entry costs the guest milliseconds, and lasts FORMING_FOR.
        self._left = {key: left for key, left in self._left.items() if left[0] > now}
        self._left[_key(ref)] = now + forming.FORMING_FOR, ref.parent

    def wait_for(self, ref: NodeRef) -> None:
        """Raise Later if a large directory was just moved away from ``ref``."""
        left = self._left.get(_key(ref)) if self._left else None
        if left is not None:
            self._wait(left[0])

    def wait_for_below(self, st: os.stat_result) -> None:
        """Raise Later if a large directory was just moved away from below the directory ``st``."""
        for until, directory in self._left.values():
            if any(step.matches(st) for step in ancestors(directory)):
                self._wait(until)

    def _wait(self, until: float) -> None:
        now = monotonic()
        if now < until:
            raise Later(forming.WHY, until, now + forming.WAIT)


def _key(ref: NodeRef) -> tuple[int, int, bytes]:
    return ref.parent.dev, ref.parent.ino, any_spelling(ref.name)
