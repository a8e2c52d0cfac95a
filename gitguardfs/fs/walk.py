"""Where the text of a symlink, or of a ``gitdir:`` line, leads on the host.

A relative path is walked from its directory, one component at a time and through every symlink
on the way. Where the source lies on the host nobody here knows, so an absolute path is walked
from the source's root by each of its suffixes; so is what is left of a path that climbs above
that root.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Generator
from stat import S_ISDIR, S_ISLNK

from gitguardfs.core.backing import Backing
from gitguardfs.core.descriptors import DescriptorCache
from gitguardfs.core.inodes import Node, ancestors

MAX_LINKS = 40
"""Symlinks on one way, as in the kernel (MAXSYMLINKS)."""

MAX_STEPS = 4096
"""Components looked at for one path, in all its suffixes: as many as PATH_MAX has bytes."""

HERE, ABOVE = b".", b".."

Enter = Callable[[int, bytes, os.stat_result, int], bool]
"""Called with a directory's descriptor, a name in it, and stat and descriptor of the directory of
that name: whether what lies below it is marked."""


Ends = Generator[tuple[int, bool], None, None]


class TooLong(Exception):  # noqa: N818  # what the path is, not that something broke
    """More than MAX_STEPS components."""


class Walk:
    """One path, walked in all the ways that it may be meant."""

    def __init__(
        self, backing: Backing, descriptors: DescriptorCache, root: Node, enter: Enter
    ) -> None:
        """``enter`` is called for each directory that is gone into by its name."""
        self._backing = backing
        self._descriptors = descriptors
        self._root = root
        self._enter = enter
        self._steps = 0

    def ends(self, directory: Node, path: bytes) -> Ends:
        """Yield where ``path``, as found in a directory, ends: a descriptor, and a mark.

        The descriptor is of a directory and valid until the next one is asked for; it is -1
        where there is nothing. Ways that end at anything else are left out. Raises TooLong, what
        ``enter`` raises, and OSError if the source fails.
        """
        parts = path.split(b"/")
        if path.startswith(b"/"):
            yield from self._suffixes(parts, 0)
        else:
            yield from self._follow(directory, parts, 0)

    def _suffixes(self, parts: list[bytes], links: int) -> Ends:
        parts = [part for part in parts if part not in (b"", HERE)]
        for start, part in enumerate(parts):
            if part != ABOVE:
                yield from self._follow(self._root, parts[start:], links, is_suffix=True)

    def _follow(
        self, directory: Node, parts: list[bytes], links: int, is_suffix: bool = False
    ) -> Ends:
        # Never by ".." of the source: its root may be covered by a seal.
        above = list(ancestors(directory))[1:]
        marks: list[bool] = []
        rest = parts[::-1]
        fds = [self._open(directory)]
        try:
            while rest:
                self._steps += 1
                if self._steps > MAX_STEPS:
                    raise TooLong
                name = rest.pop()
                if name in (b"", HERE):
                    continue
                if name == ABOVE and marks:
                    marks.pop()
                    os.close(fds.pop())
                    continue
                if name == ABOVE and above:
                    os.close(fds.pop())
                    fds.append(self._open(above.pop(0)))
                    continue
                if name == ABOVE:
                    if not is_suffix:  # otherwise a shorter suffix is the same
                        yield from self._suffixes(rest[::-1], links)
                    return
                st = self._find(fds[-1], name)
                if st is None:
                    yield -1, any(marks)
                    return
                if S_ISLNK(st.st_mode):
                    links += 1
                    if links > MAX_LINKS:
                        return
                    text = self._backing.readlink_at(fds[-1], name)
                    if text.startswith(b"/"):
                        yield from self._suffixes(text.split(b"/") + rest[::-1], links)
                        return
                    rest += text.split(b"/")[::-1]
                    continue
                if not S_ISDIR(st.st_mode):
                    return
                fds.append(self._backing.open_node(fds[-1], name))
                marks.append(self._enter(fds[-2], name, st, fds[-1]))
            yield fds[-1], any(marks)
        finally:
            for fd in fds:
                os.close(fd)

    def _open(self, directory: Node) -> int:
        return self._backing.open_node(self._descriptors.of(directory), HERE)

    def _find(self, dir_fd: int, name: bytes) -> os.stat_result | None:
        try:
            return self._backing.find_at(dir_fd, name)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:  # no file system has such a name
                return None
            raise
