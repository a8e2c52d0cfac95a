"""Finds where the path of a symlink, or of a ``gitdir:`` line, leads on the host.

A relative path is walked from its directory, one component at a time and through every symlink.
The source's path on the host is unknown here. So each suffix of an absolute path is walked from
the source's root. The same is done with the rest of a path that climbs above that root.

``/proc/self/cwd`` and ``/dev/fd/N`` lead to a directory of the process that follows the symlink.
git runs at the top of a work tree. So what follows ``proc`` or ``dev`` is also walked from each
directory above the symlink.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Generator
from stat import S_ISDIR, S_ISLNK
from typing import TypeAlias

from gitguardfs.constants import MAX_SYMLINKS
from gitguardfs.fs.descriptors import DescriptorCache
from gitguardfs.fs.nodes import Node, ancestors
from gitguardfs.fs.source import Source

MAX_STEPS = 4096
"""Components read for one path, in all its suffixes together: as many as PATH_MAX has bytes."""

HERE, ABOVE = b".", b".."

OF_PROCESSES = (b"proc", b"dev")
"""The directories of the host in which paths differ from process to process."""

Enter = Callable[[int, bytes, os.stat_result, int], bool]
"""Called with a directory's descriptor, a name in that directory, and attributes and descriptor of
the directory of that name. Returns whether all below that directory is marked."""

Rest: TypeAlias = "tuple[bytes, Rest] | None"
"""The rest of a path: its first component, and the rest after it. Suffixes share their memory."""

Ends = Generator[tuple[int, bool], None, None]


class PathTooLong(Exception):  # noqa: N818  # what the path is, not that something broke
    """The path takes more than MAX_STEPS components."""


class PathWalk:
    """Walks one path in all the ways in which the host may resolve it."""

    def __init__(
        self, source: Source, descriptors: DescriptorCache, root: Node, enter: Enter
    ) -> None:
        """Call ``enter`` for each directory that the walk enters by its name."""
        self._source = source
        self._descriptors = descriptors
        self._root = root
        self._enter = enter
        self._above = [root]
        self._steps = 0

    def ends(self, directory: Node, path: bytes) -> Ends:
        """Yield each end of ``path``, which was found in ``directory``: a descriptor, and a mark.

        The descriptor is of a directory and valid until the next end is yielded; -1 if nothing is
        at the end. Ends at other types of objects are left out. Raises PathTooLong, what ``enter``
        raises, and OSError if the source fails.
        """
        self._above = list(ancestors(directory))
        rest = self._parse(path, None)
        if path.startswith(b"/"):
            yield from self._suffixes(rest, 0)
        else:
            yield from self._follow(directory, rest, 0)

    def _parse(self, path: bytes, rest: Rest) -> Rest:
        """Return the components of ``path``, with ``rest`` after them."""
        parts = [part for part in path.split(b"/") if part not in (b"", HERE)]
        self._count(len(parts))
        for part in reversed(parts):
            rest = part, rest
        return rest

    def _count(self, steps: int) -> None:
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise PathTooLong

    def _suffixes(self, rest: Rest, symlinks: int) -> Ends:
        starts = [self._root]
        while rest is not None:
            part, after = rest
            if part != ABOVE:
                for start in starts:
                    yield from self._follow(start, rest, symlinks, is_suffix=True)
            if part in OF_PROCESSES:
                starts = self._above
            rest = after

    def _follow(self, directory: Node, rest: Rest, symlinks: int, is_suffix: bool = False) -> Ends:
        # Never by ".." in the source: its root may be covered by a seal.
        above = ancestors(directory)
        base = next(above)
        marks: list[bool] = []
        fds: list[int] = []
        """Descriptors: of ``base``, once needed, and of each directory entered from there."""
        try:
            while rest is not None:
                self._count(1)
                name, rest = rest
                if name == ABOVE and marks:
                    marks.pop()
                    os.close(fds.pop())
                    continue
                if name == ABOVE:
                    upper = next(above, None)
                    if upper is None:
                        if not is_suffix:  # a suffix: a shorter one is the same path
                            yield from self._suffixes(rest, symlinks)
                        return
                    base = upper
                    while fds:
                        os.close(fds.pop())
                    continue
                if not fds:
                    fds.append(self._open(base))
                st = self._find(fds[-1], name)
                if st is None:
                    yield -1, any(marks)
                    return
                if S_ISLNK(st.st_mode):
                    symlinks += 1
                    if symlinks > MAX_SYMLINKS:
                        return
                    text = self._source.readlink_at(fds[-1], name)
                    rest = self._parse(text, rest)
                    if text.startswith(b"/"):
                        yield from self._suffixes(rest, symlinks)
                        return
                    continue
                if not S_ISDIR(st.st_mode):
                    return
                fds.append(self._source.open_node(fds[-1], name))
                marks.append(self._enter(fds[-2], name, st, fds[-1]))
            if not fds:
                fds.append(self._open(base))
            yield fds[-1], any(marks)
        finally:
            for fd in fds:
                os.close(fd)

    def _open(self, directory: Node) -> int:
        return self._source.open_node(self._descriptors.of(directory), HERE)

    def _find(self, dir_fd: int, name: bytes) -> os.stat_result | None:
        try:
            return self._source.find_at(dir_fd, name)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:  # no file system has so long a name
                return None
            raise
