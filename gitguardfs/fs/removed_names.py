"""Names of a repository's parts that were removed here and that git on the host may bring back.

Where a branch of the host's tracks ``lib/HEAD``, an agent could remove it, make the other parts
of a repository beside it, and have the next checkout complete it. So what the host had put there
goes on counting as present, by its path. What was made here does not: it is nothing that git
restores.

A directory that is too large to be looked through is remembered as a whole, by where it was and
where it went: what it holds there counts as present where it was.
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
"""Names that are remembered. Beyond that, removing one is refused."""

MAX_MADE = 10_000
"""Names made here that are remembered; of others it is taken that the host made them."""

MAX_PLACES = 64
"""Places where what was at one path may be by now, after so many moves of large directories."""

TOO_MANY = "too many removed parts of repositories"

Digest = bytes
"""Of a directory's path, in any case: ten thousand of them take little memory."""


class Removal(NamedTuple):
    """One name that is about to go."""

    directory: Digest
    part: bytes
    mode: int


class RemovedNames:
    """What the host had put somewhere and was removed or moved through this mount."""

    def __init__(self, source: Source, root_fd: int) -> None:
        self._source = source
        self._root_fd = root_fd
        self._removed: dict[Digest, dict[bytes, int]] = {}
        self._moved: dict[Digest, list[tuple[bytes, ...]]] = {}
        """By where they were, where large directories were moved to: from the root down."""
        self._count = 0
        self._said = False
        self._made: OrderedDict[tuple[int, int, bytes], tuple[int, int, int]] = OrderedDict()
        """By directory and name: device, inode and time of birth of what was made there."""

    @property
    def knows_any(self) -> bool:
        """Whether anything was removed or moved."""
        return bool(self._removed or self._moved)

    def at(self, directory: Node) -> Mapping[bytes, int]:
        """Return the parts that count as present in a directory, and their modes. OSError."""
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
            if len(seen) == MAX_PLACES:  # made for that: nobody can tell what was there
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
        """Return the parts that are in a directory of the source and were not made here."""
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
        """Note that ``name`` was made here; OSError if the source fails."""
        key = self._key(dir_fd, name)
        self._made[key] = self._identity(dir_fd, name)
        self._made.move_to_end(key)
        if len(self._made) > MAX_MADE:
            self._made.popitem(last=False)

    def note_gone(self, dir_fd: int, name: bytes) -> None:
        """Note that what was made at ``name`` is gone: what comes there next may be the host's."""
        self._made.pop(self._key(dir_fd, name), None)

    def was_made_here(self, dir_fd: int, name: bytes) -> bool:
        """Whether what is at ``name`` was made there by this mount, as far as is remembered."""
        made = self._made.get(self._key(dir_fd, name))
        if made is None:
            return False
        try:
            return made == self._identity(dir_fd, name)
        except FileNotFoundError:  # the host has removed it since its name was seen
            return False

    def losing(self, directory: Node, dir_fd: int, name: bytes, mode: int) -> list[Removal]:
        """Return what goes with one name; OSError if the source fails."""
        return self._losing(_path(directory), dir_fd, name, mode)

    def losing_in(self, directory: Node, name: bytes, below: Directory) -> list[Removal]:
        """Return what goes with a directory at or below ``name``; OSError if the source fails."""
        if not any(map(repository.parts, below.kinds)):
            return []
        path = (*_path(directory), *map(_any_case, (name, *below.path)))
        return [
            removal
            for name, kind in below.kinds.items()
            for removal in self._losing(path, below.fd, name, kind)
        ]

    def has_room_for(self, removals: list[Removal]) -> bool:
        """Whether so much more can be remembered; if not, the log says so once."""
        return self._has_room(len({one for one in removals if not self._is_known(one)}))

    def _has_room(self, more: int) -> bool:
        if self._count + more <= MAX_REMOVED:
            return True
        if not self._said:
            self._said = True
            log.warning(
                "%d names that git may bring back were removed; it is refused to remove more. "
                "Mount anew, or use --allow-bare",
                MAX_REMOVED,
            )
        return False

    def note_removed(self, removals: list[Removal]) -> None:
        """Note that what ``losing`` and ``losing_in`` returned is gone."""
        for removal in removals:
            if not self._is_known(removal):
                self._removed.setdefault(removal.directory, {})[removal.part] = removal.mode
                self._count += 1

    def note_large_move(self, old: Node, old_name: bytes, new: Node, new_name: bytes) -> bool:
        """Note that a directory, which is not looked through, is moved; False if that is too many.

        It is remembered also if the move fails then: nothing is at the new place in that case.
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
        # One that is no directory is worse than one that is, and then takes its place.
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
    """Add parts to others; one that is no directory counts for more than one that is."""
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
