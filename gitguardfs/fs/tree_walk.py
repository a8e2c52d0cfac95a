"""What lies below a directory, as far as it can be looked at in some milliseconds."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from stat import S_IFDIR, S_ISDIR
from typing import NamedTuple

from gitguardfs.fs.source import Source

MAX_DIRECTORIES = 256
"""Directories that are looked into below one that is moved: as many as take some milliseconds."""


class Directory(NamedTuple):
    """One that was found."""

    path: tuple[bytes, ...]
    """From the directory where the walk began, which has an empty one."""
    fd: int
    """A descriptor that is valid until the next one is asked for."""
    kinds: Mapping[bytes, int]
    """The names in it, and their types as ``Source.typed_names`` has them."""


class TreeWalk:
    """One walk."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._left = MAX_DIRECTORIES
        self.is_whole = True
        """False if there was more than MAX_DIRECTORIES."""

    def directories(self, fd: int, path: tuple[bytes, ...] = ()) -> Iterator[Directory]:
        """Yield a directory and those below it; OSError if the source fails."""
        try:
            kinds = {name: kind for name, (kind, _) in self._source.typed_names(fd).items()}
        except FileNotFoundError:
            if path:  # the host has removed it since its name was seen
                return
            raise
        yield Directory(path, fd, kinds)
        for name, kind in kinds.items():
            if kind != S_IFDIR:
                continue
            if not self._left:
                self.is_whole = False
                return
            self._left -= 1
            try:
                inner = self._source.open_node(fd, name)
            except FileNotFoundError:
                continue
            try:
                if S_ISDIR(self._source.stat(inner).st_mode):
                    yield from self.directories(inner, (*path, name))
            finally:
                os.close(inner)
