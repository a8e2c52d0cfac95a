"""Parts of repositories that this mount made, and that git on the host has not added since.

After such a part was removed, git does not restore it. But once the index of a repository around
it has changed, git may have added the part to that index, and may restore it.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from stat import S_ISDIR

from gitguardfs.fs.host_git import LOCK_NAME
from gitguardfs.fs.nodes import Node, Path, path_of
from gitguardfs.fs.source import DOTGIT, Source

MAX_MADE = 10_000
"""Recorded names that this mount made, at most; older ones count as made by the host."""

Identity = tuple[int, int, int]
"""Device, inode and birth time of an object."""

IndexState = tuple[tuple[int, int, int, int], ...]
"""Of the index of each repository around a directory: inode, size, mtime and ctime."""


class MadeNames:
    """The names that were made through this mount."""

    def __init__(self, source: Source, root_fd: int) -> None:
        self._source = source
        self._root_fd = root_fd
        self._made: OrderedDict[tuple[int, int, bytes], tuple[Identity, IndexState]] = OrderedDict()
        """By directory and name: the object made there, and the indexes at that time."""

    def note_made(self, directory: Node, dir_fd: int, name: bytes) -> None:
        """Note that this mount made ``name``. Raises OSError if the source fails."""
        key = self._key(dir_fd, name)
        self._made.pop(key, None)
        state = self._index_state(path_of(directory))
        if state is None:
            return
        self._made[key] = self._identity(dir_fd, name), state
        if len(self._made) > MAX_MADE:
            self._made.popitem(last=False)

    def note_gone(self, dir_fd: int, name: bytes) -> None:
        """Note that ``name`` is gone: the next object of that name may be the host's.

        Raises OSError if the source fails.
        """
        self._made.pop(self._key(dir_fd, name), None)

    def was_made_here(self, path: Path, dir_fd: int, name: bytes) -> bool:
        """Return whether this mount made the object at ``name`` and git has not added it since.

        ``path`` is the directory's. Raises OSError if the source fails.
        """
        made = self._made.get(self._key(dir_fd, name))
        if made is None:
            return False
        try:
            return made == (self._identity(dir_fd, name), self._index_state(path))
        except (FileNotFoundError, NotADirectoryError):  # the host has changed something meanwhile
            return False

    def _key(self, dir_fd: int, name: bytes) -> tuple[int, int, bytes]:
        st = self._source.stat(dir_fd)
        return st.st_dev, st.st_ino, name

    def _index_state(self, path: Path) -> IndexState | None:
        """Return the state of all indexes at or above a directory.

        Returns None if it is unknown: while git writes one, and where ``.git`` is no directory, as
        in linked worktrees. Raises OSError if the source fails.
        """
        state: list[tuple[int, int, int, int]] = []
        fd = self._source.open_node(self._root_fd, b".")
        try:
            for name in (*path, b""):
                st = self._source.find_at(fd, DOTGIT)
                if st is not None:
                    index = self._index(fd) if S_ISDIR(st.st_mode) else None
                    if index is None:
                        return None
                    state.append(index)
                if name:
                    below = self._source.open_node(fd, name)
                    os.close(fd)
                    fd = below
        finally:
            os.close(fd)
        return tuple(state)

    def _index(self, dir_fd: int) -> tuple[int, int, int, int] | None:
        git_fd = self._source.open_node(dir_fd, DOTGIT)
        try:
            if self._source.find_at(git_fd, LOCK_NAME) is not None:
                return None
            st = self._source.find_at(git_fd, b"index")
        finally:
            os.close(git_fd)
        return (
            (0, 0, 0, 0) if st is None else (st.st_ino, st.st_size, st.st_mtime_ns, st.st_ctime_ns)
        )

    def _identity(self, dir_fd: int, name: bytes) -> Identity:
        fd = self._source.open_node(dir_fd, name)
        try:
            st = self._source.stat(fd)
            return st.st_dev, st.st_ino, self._source.btime_ns(fd)
        finally:
            os.close(fd)
