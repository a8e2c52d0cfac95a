"""The absent names that the kernel caches for long, noted for this daemon and the next.

A file exists while the kernel caches for long. The next daemon of the same view finds it, if this
one is killed, and has all that the kernel caches looked up again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from gitguardfs.base.protocol import NodeId
from gitguardfs.fs.node_table import NodeTable
from gitguardfs.live.known_names import Place
from gitguardfs.live.notifying import Notifying
from gitguardfs.sessions.base import Session

MOST = 1 << 17
"""Absent names that the kernel may cache for long, at most; each takes 200 bytes."""
LARGEST = 1 << 25
"""Bytes of the file, at most: it lies in memory, and users choose the names."""


class AbsentNames:
    """The absent names, and the file that has them."""

    def __init__(self, path: str) -> None:
        """Make a file whose name begins so. Raises OSError."""
        self._path = path = f"{path}-{time.monotonic_ns()}"
        self._names: set[Place] = set()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_EXCL | os.O_CLOEXEC
        self._fd = os.open(path, flags | os.O_NOFOLLOW, 0o600)
        self._room = LARGEST

    def note(self, parent: NodeId, name: bytes) -> bool:
        """Note a name, and return whether the kernel may cache its absence for long."""
        place = parent, name
        if place in self._names:
            return True
        row = b"%d/%s\0" % place
        if len(self._names) >= MOST or self._room < len(row):
            return False
        try:
            written = os.write(self._fd, row)
        except OSError:
            return False
        self._room -= written
        if written < len(row):  # nothing is to follow a part of a row
            self._room = 0
            return False
        self._names.add(place)
        return True

    def take(self) -> list[Place]:
        """Return all names, and note them no more: the kernel is made to look them up again."""
        taken, self._names = list(self._names), set()
        return taken

    def remove(self) -> None:
        """Remove the file: nothing of it is cached for long any more."""
        with suppress(OSError):
            os.unlink(self._path)
        os.close(self._fd)


def forget_what_a_former_daemon_kept(
    paths: Iterable[str], nodes: NodeTable, session: Session
) -> None:
    """Have all looked up again that the kernel may cache for long, and remove the files then.

    To be called on the serving thread. Raises OSError.
    """
    rows = []
    for path in paths:
        with open(path, "rb") as file:
            rows += [row.partition(b"/") for row in file.read().split(b"\0")[:-1]]
    # A row may have been cut off.
    places = [(int(parent), name) for parent, _, name in rows if parent.isdigit()]
    places += [(node.parent.id, node.name) for node in nodes if node.parent is not None]
    notifying = Notifying(session, _safely)
    notifying.forget(places, list(nodes.by_id), None)
    notifying.when_all_is_told(lambda: _remove(paths))
    notifying.end()


def _safely(call: Callable[[], None]) -> None:
    with suppress(Exception):
        call()


def _remove(paths: Iterable[str]) -> None:
    for path in paths:
        with suppress(OSError):
            os.unlink(path)
