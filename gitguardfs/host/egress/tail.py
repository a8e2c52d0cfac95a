"""Reads the lines of a log as they are written, also when the log is renamed or begins anew."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from io import FileIO

CHUNK_BYTES = 64 << 10
"""Bytes that are read at once."""


class Tail:
    """The lines of the log ``path`` that nobody has asked for yet; at first all of them.

    A log that is renamed (to its older part) is read to its end, before the new one. A line of more
    than ``longest`` bytes comes in pieces.
    """

    def __init__(self, path: str, longest: int = CHUNK_BYTES, *, only_new: bool = False) -> None:
        self.path = path
        self._longest = longest
        self._file = self._opened() if only_new else None
        self._begun = b""
        """The beginning of a line whose end has not been written yet."""
        if self._file is not None:
            self._file.seek(0, os.SEEK_END)

    def new_lines(self) -> Iterator[bytes]:
        """Yield the complete lines since the last call, without their ends. Raises OSError."""
        if self._file is None:
            self._file = self._opened()
        while (file := self._file) is not None:
            is_last = self._is_current(file)  # before reading: nobody writes to a renamed log
            if os.fstat(file.fileno()).st_size < file.tell():
                file.seek(0)
                self._begun = b""
            while data := file.read(CHUNK_BYTES):
                *complete, self._begun = (self._begun + data).split(b"\n")
                if len(self._begun) > self._longest:
                    complete, self._begun = [*complete, self._begun], b""
                yield from complete
            if is_last:
                return
            self.close()
            self._file = self._opened()

    def rest(self) -> Iterator[bytes]:
        """Yield the last line if its end is missing."""
        if self._begun:
            yield self._begun

    def close(self) -> None:
        """Close the log; a later call reads it from its beginning."""
        if self._file is not None:
            self._file.close()
        self._file, self._begun = None, b""

    def _opened(self) -> FileIO | None:
        with suppress(FileNotFoundError):
            return open(self.path, "rb", buffering=0)
        return None

    def _is_current(self, file: FileIO) -> bool:
        """Return whether there is no newer log at the path."""
        with suppress(FileNotFoundError):
            return os.path.samestat(os.stat(self.path), os.fstat(file.fileno()))
        return True
