"""Rows of values in memory that outlives this process if another one has its descriptor as well.

Rows are added one by one, and replaced as a whole when they have become many. A row counts once it
is complete, whenever the process is killed: the number that says where rows end is written last.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from marshal import dumps, loads
from struct import Struct
from typing import Any

Row = tuple[Any, ...]
"""Numbers, bytes, None and tuples of them."""

AREA = 1 << 30
"""Bytes of each of the two areas, which take memory only as far as they are written."""
FIRST = mmap.PAGESIZE
"""Where the first area begins."""
SHORT = 1 << 20
"""Bytes of rows up to which it is not worth while to replace them."""
_END = Struct("Q")
_LENGTH = Struct("I")
_FORMAT = 2
"""The version of marshal that is quickest to write."""


class SharedRows:
    """A growing list of rows in a file of memory."""

    def __init__(self, are_many: Callable[[], None]) -> None:
        """Begin without rows. Raises OSError.

        ``are_many`` is called once when their size has doubled.
        """
        self._are_many = are_many
        self.fd = os.memfd_create("gitguardfs-rows")
        """The file's descriptor."""
        os.ftruncate(self.fd, FIRST + 2 * AREA)
        self._memory = mmap.mmap(self.fd, FIRST + 2 * AREA)
        self._start = self._end = FIRST
        self._enough = FIRST + SHORT
        _END.pack_into(self._memory, 0, self._end)

    def add(self, row: Row) -> None:
        """Add a row. If there is no room, readers find no rows until ``replace``."""
        data = dumps(row, _FORMAT)
        start = self._end
        end = start + 4 + len(data)
        if end > self._enough:
            if end > self._start + AREA:
                self._end = self._start + AREA
                return _END.pack_into(self._memory, 0, 0)
            self._enough = self._start + AREA
            self._are_many()
        self._memory[start:end] = _LENGTH.pack(len(data)) + data
        self._end = end
        _END.pack_into(self._memory, 0, end)

    def replace(self, rows: Iterable[Row]) -> None:
        """Put ``rows`` in place of all rows. Raises OSError."""
        start = at = FIRST + AREA if self._start == FIRST else FIRST
        for row in rows:
            data = dumps(row, _FORMAT)
            end = at + 4 + len(data)
            if end > start + AREA:
                at = 0
                break
            self._memory[at:end] = _LENGTH.pack(len(data)) + data
            at = end
        _END.pack_into(self._memory, 0, at)
        former, self._start, self._end = self._start, start, at or start + AREA
        self._enough = min(self._end + max(SHORT, self._end - start), start + AREA)
        self._memory.madvise(mmap.MADV_REMOVE, former, AREA)

    def close(self) -> None:
        """Close the file."""
        self._memory.close()
        os.close(self.fd)


def rows_in(fd: int) -> Iterator[Row]:
    """Yield the rows in a file of memory, the oldest first. Raises OSError, ValueError."""
    with mmap.mmap(fd, FIRST + 2 * AREA, prot=mmap.PROT_READ) as memory:
        (end,) = _END.unpack_from(memory)
        if not FIRST <= end <= FIRST + 2 * AREA:
            raise ValueError("the rows had no room")
        at = FIRST if end <= FIRST + AREA else FIRST + AREA
        while at < end:
            (length,) = _LENGTH.unpack_from(memory, at)
            at += 4 + length
            yield loads(memory[at - length : at])  # noqa: S302  # only root hands it over
