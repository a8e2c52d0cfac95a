"""Walks the directories below a directory, up to a limit, so that it takes milliseconds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from stat import S_IFDIR, S_ISDIR, S_ISLNK, S_ISREG
from typing import NamedTuple

from gitguardfs.fs.source import Source

MAX_DIRECTORIES = 256
"""Directories listed below a moved one: as many as take some milliseconds."""

MAX_DEPTH = 256
"""Directories on the way down, each of which is open meanwhile."""


class Directory(NamedTuple):
    """A directory that was found."""

    path: tuple[bytes, ...]
    """The path from the directory where the walk began, whose own path is empty."""
    fd: int
    """A descriptor that is valid until the next directory is yielded."""
    file_types: Mapping[bytes, int]
    """The names in the directory, and their types as ``Source.typed_names`` returns them."""


class TreeWalk:
    """One walk."""

    def __init__(
        self,
        source: Source,
        limit: int | None = None,
        enters: Callable[[tuple[bytes, ...]], bool] = lambda _: True,
    ) -> None:
        """Take ``limit`` in place of MAX_DIRECTORIES; ``enters`` returns whether a path matters."""
        self._source = source
        self._left = MAX_DIRECTORIES if limit is None else limit
        self._enters = enters
        self.is_whole = True
        """False if there was more than the limits allow."""

    def directories(self, fd: int, path: tuple[bytes, ...] = ()) -> Iterator[Directory]:
        """Yield a directory and those below it. Raises OSError if the source fails."""
        try:
            file_types = {
                name: file_type for name, (file_type, _) in self._source.typed_names(fd).items()
            }
        except FileNotFoundError:
            if path:  # the host has removed it since its name was seen
                return
            raise
        yield Directory(path, fd, file_types)
        for name, file_type in file_types.items():
            if file_type != S_IFDIR or not self._enters((*path, name)):
                continue
            if not self._left or len(path) == MAX_DEPTH:
                self.is_whole = False
                return
            self._left -= 1
            try:
                inner = self._source.open_node(fd, name)
            except FileNotFoundError:
                continue
            try:
                st = self._source.stat(inner)
                if S_ISDIR(st.st_mode):
                    yield from self.directories(inner, (*path, name))
                elif self._source.path_based and (S_ISREG(st.st_mode) or S_ISLNK(st.st_mode)):
                    self.is_whole = False  # a held name: it cannot be seen what is below it
            finally:
                os.close(inner)
