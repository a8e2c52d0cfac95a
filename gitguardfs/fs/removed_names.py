"""Parts of repositories that were removed through this mount and that git may restore.

Suppose that a branch on the host tracks ``lib/HEAD``. An agent could remove that file and make the
other parts of a repository beside it; the next checkout would complete the repository. So a part
that the host had made still counts as present at its path. A part that was made through this mount
does not: git does not restore it.

A moved directory that is too large to be walked is recorded as a whole, by its old and its new
path: the parts that it now holds count as present at the old path.
"""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Mapping
from hashlib import blake2b
from stat import S_IFREG, S_ISDIR
from typing import NamedTuple

from gitguardfs.fs.nodes import Node, ancestors
from gitguardfs.fs.source import Source
from gitguardfs.fs.tree_walk import Directory
from gitguardfs.guard import repository
from gitguardfs.guard.dotgit import folded

log = logging.getLogger(__name__)

MAX_REMOVED = 10_000
"""Recorded names at most, which bounds memory. Removing further ones is refused."""

MAX_MADE = 10_000
"""Recorded names that this mount made, at most; older ones count as made by the host."""

MAX_PLACES = 64
"""Paths checked for one old path at most, after several moves of large directories."""

TOO_MANY = "too many removed parts of repositories"

Digest = bytes
"""A digest of a directory's path, case folded: 16 bytes, so that 10,000 take little memory."""


class Removal(NamedTuple):
    """A part of a repository that is about to be removed or moved away."""

    directory: Digest
    part: bytes
    mode: int


class RemovedNames:
    """The parts that the host had made and that were removed or moved through this mount."""

    def __init__(self, source: Source, root_fd: int) -> None:
        self._source = source
        self._root_fd = root_fd
        self._removed: dict[Digest, dict[bytes, int]] = {}
        self._moved: dict[Digest, list[tuple[bytes, ...]]] = {}
        """By the digest of its old path: the paths, from the root, that a large directory got."""
        self._count = 0
        self._said = False
        self._made: OrderedDict[tuple[int, int, bytes], tuple[int, int, int]] = OrderedDict()
        """By directory and name: device, inode and birth time of the object made there."""

    @property
    def knows_any(self) -> bool:
        """Whether any removal or move is recorded."""
        return bool(self._removed or self._moved)

    def at(self, directory: Node) -> Mapping[bytes, int]:
        """Return the parts that count as present in a directory, and their modes.

        Raises OSError if the source fails.
        """
        if not self.knows_any:
            return {}
        found: dict[bytes, int] = {}
        places = [_names(directory)]
        seen: set[Digest] = set()
        while places:
            path = places.pop()
            folded_path = tuple(map(_any_case, path))
            digest = _digest(folded_path)
            if digest in seen:
                continue
            if len(seen) == MAX_PLACES:  # perhaps an attack: all parts count as present
                return dict.fromkeys(repository.PARTS, S_IFREG)
            _add(found, self._removed.get(digest, {}))
            if seen:
                _add(found, self._present(path))
            seen.add(digest)
            for length in range(1, len(path) + 1 if self._moved else 0):
                for new in self._moved.get(_digest(folded_path[:length]), ()):
                    places.append((*new, *path[length:]))
        return found

    def _present(self, path: tuple[bytes, ...]) -> dict[bytes, int]:
        """Return the parts in a directory of the source that this mount did not make."""
        fd = self._source.open_node(self._root_fd, b".")
        try:
            for name in path:
                below = self._source.open_node(fd, name)
                os.close(fd)
                fd = below
            if not S_ISDIR(self._source.stat(fd).st_mode):
                return {}
            found: dict[bytes, int] = {}
            for name in self._source.names(fd):
                parts = repository.parts(name)
                mode = self._source.mode_at(fd, name) if parts else None
                if mode is not None and not self.was_made_here(fd, name):
                    _add(found, dict.fromkeys(parts, mode))
            return found
        except (FileNotFoundError, NotADirectoryError):
            return {}
        finally:
            os.close(fd)

    def note_made(self, dir_fd: int, name: bytes) -> None:
        """Note that this mount made ``name``. Raises OSError if the source fails."""
        key = self._key(dir_fd, name)
        self._made[key] = self._identity(dir_fd, name)
        self._made.move_to_end(key)
        if len(self._made) > MAX_MADE:
            self._made.popitem(last=False)

    def note_gone(self, dir_fd: int, name: bytes) -> None:
        """Note that ``name`` is gone: the next object of that name may be the host's.

        Raises OSError if the source fails.
        """
        self._made.pop(self._key(dir_fd, name), None)

    def was_made_here(self, dir_fd: int, name: bytes) -> bool:
        """Return whether the object at ``name`` is recorded as made by this mount.

        Raises OSError if the source fails.
        """
        made = self._made.get(self._key(dir_fd, name))
        if made is None:
            return False
        try:
            return made == self._identity(dir_fd, name)
        except FileNotFoundError:  # the host has removed it since its name was seen
            return False

    def losing(self, directory: Node, dir_fd: int, name: bytes, mode: int) -> list[Removal]:
        """Return the parts that are lost with one name. Raises OSError if the source fails."""
        return self._losing(_path(directory), dir_fd, name, mode)

    def losing_in(self, directory: Node, name: bytes, below: Directory) -> list[Removal]:
        """Return the parts lost with the directory ``below``, which is at or below ``name``.

        Raises OSError if the source fails.
        """
        if not any(map(repository.parts, below.file_types)):
            return []
        path = (*_path(directory), *map(_any_case, (name, *below.path)))
        return [
            removal
            for name, file_type in below.file_types.items()
            for removal in self._losing(path, below.fd, name, file_type)
        ]

    def has_room_for(self, removals: list[Removal]) -> bool:
        """Return whether these removals can be recorded; if not, log that once."""
        return self._has_room(len({one for one in removals if not self._is_known(one)}))

    def _has_room(self, more: int) -> bool:
        if self._count + more <= MAX_REMOVED:
            return True
        if not self._said:
            self._said = True
            log.warning(
                "%d names that git may restore were removed; further removals are refused. "
                "Mount again, or use --allow-bare",
                MAX_REMOVED,
            )
        return False

    def note_removed(self, removals: list[Removal]) -> None:
        """Record removals that ``losing`` and ``losing_in`` returned."""
        for removal in removals:
            if not self._is_known(removal):
                self._removed.setdefault(removal.directory, {})[removal.part] = removal.mode
                self._count += 1

    def note_large_move(self, old: Node, old_name: bytes, new: Node, new_name: bytes) -> bool:
        """Record the move of a directory too large to be walked; return False if too many are.

        The record also stays if the move then fails: nothing is at the new path in that case.
        """
        key = _digest((*_path(old), _any_case(old_name)))
        places, place = self._moved.get(key, []), (*_names(new), new_name)
        if place not in places:
            if not self._has_room(1):
                return False
            self._moved[key] = [*places, place]
            self._count += 1
        return True

    def _losing(
        self, path: tuple[bytes, ...], dir_fd: int, name: bytes, mode: int
    ) -> list[Removal]:
        parts = repository.parts(name)
        if not parts or self.was_made_here(dir_fd, name):
            return []
        directory = _digest(path)
        return [Removal(directory, part, mode) for part in parts]

    def _is_known(self, removal: Removal) -> bool:
        # A part that is no directory weighs more: it replaces a directory of that name.
        mode = self._removed.get(removal.directory, {}).get(removal.part)
        return mode is not None and (S_ISDIR(removal.mode) or not S_ISDIR(mode))

    def _key(self, dir_fd: int, name: bytes) -> tuple[int, int, bytes]:
        st = self._source.stat(dir_fd)
        return st.st_dev, st.st_ino, name

    def _identity(self, dir_fd: int, name: bytes) -> tuple[int, int, int]:
        fd = self._source.open_node(dir_fd, name)
        try:
            st = self._source.stat(fd)
            return st.st_dev, st.st_ino, self._source.btime_ns(fd)
        finally:
            os.close(fd)


def _add(found: dict[bytes, int], more: Mapping[bytes, int]) -> None:
    """Add ``more`` to ``found``; a part that is no directory replaces one that is."""
    for part, mode in more.items():
        if part not in found or S_ISDIR(found[part]):
            found[part] = mode


def _names(directory: Node) -> tuple[bytes, ...]:
    return tuple(step.name for step in ancestors(directory) if step.name)[::-1]


def _path(directory: Node) -> tuple[bytes, ...]:
    return tuple(map(_any_case, _names(directory)))


def _any_case(name: bytes) -> bytes:
    return folded(name).lower()


def _digest(path: tuple[bytes, ...]) -> Digest:
    return blake2b(b"/".join(path), digest_size=16).digest()
