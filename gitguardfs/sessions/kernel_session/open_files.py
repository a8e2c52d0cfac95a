"""Which files are open, and whether the kernel passes their reads and writes through.

The kernel allows one way for all who have a file open: EIO otherwise. So the way is chosen when
nobody has it open, and holds until the last has closed it. The kernel forgets the way before it
sends RELEASE: what is counted here is never behind.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from gitguardfs.fs.nodes import is_local
from gitguardfs.sessions.kernel_session.connection import Connection


@dataclass
class _OpenFile:
    backing: int
    """The number by which the kernel knows the source's file; 0 if it passes nothing through."""
    count: int = 0
    """How many have it open."""


class OpenFiles:
    """The open files of one connection, by node."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._files: dict[int, _OpenFile] = {}
        self.passes_through = False
        """Whether the kernel can pass reads and writes through."""

    def restore(self, opened: Iterable[tuple[int, int]]) -> None:
        """Count the files that a former daemon has opened: node, and number of the source's file.

        The kernel keeps to these numbers.
        """
        for node, backing in opened:
            self._files.setdefault(node, _OpenFile(backing)).count += 1

    def open(self, node: int, fd: int) -> int:
        """Count an open file; return the number of the source's file, or 0.

        ``fd`` is a descriptor of it, or -1 if the kernel is not to read and write by itself.
        """
        file = self._files.get(node)
        if file is None:
            backing = 0
            if fd >= 0 and self.passes_through:
                with suppress(OSError):  # ELOOP: file systems are stacked too high there
                    backing = self._connection.backing_open(fd, is_local(node))
            file = self._files[node] = _OpenFile(backing)
        file.count += 1
        return file.backing

    def is_passed_through(self, node: int) -> bool:
        """Return whether a node is open, and the kernel reads and writes it by itself."""
        file = self._files.get(node)
        return file is not None and file.backing != 0

    def close(self, node: int) -> None:
        """Count a file that was closed."""
        file = self._files.get(node)
        if file is None:
            return
        file.count -= 1
        if not file.count:
            del self._files[node]
            if file.backing:
                with suppress(OSError):  # the connection has ended
                    self._connection.backing_close(file.backing)
