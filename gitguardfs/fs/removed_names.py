"""Parts of repositories that were removed through this mount and that git may restore.

Suppose that a branch on the host tracks ``lib/HEAD``. An agent could remove that file and make the
other parts of a repository beside it; the next checkout would complete the repository. So a part
that the host had made still counts as present at its path. A part that was made through this mount
does not count (``made_names``).

A moved directory that is too large to be walked, or that holds a repository, is recorded as a
whole, by its old and its new path. The parts that it now holds count as present at the old path.

Paths are recorded in ``any_spelling``: a server may take several spellings for one name.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import blake2b
from stat import S_IFREG, S_ISDIR
from typing import NamedTuple

from gitguardfs.fs.made_names import MadeNames
from gitguardfs.fs.nodes import Node, Path, path_of
from gitguardfs.fs.source import Source
from gitguardfs.fs.tree_walk import Directory
from gitguardfs.guard import repository
from gitguardfs.guard.dotgit import any_spelling

log = logging.getLogger(__name__)

MAX_REMOVED = 10_000
"""Recorded names at most, which bounds memory. Removing further ones is refused."""

MAX_ABOVE = 10 * MAX_REMOVED
"""Directories at most that the recorded names are in or below."""

MAX_PLACES = 64
"""Paths checked for one old path at most, after several moves of large directories."""

TOO_MANY = "too many removed parts of repositories"

Digest = bytes
"""A digest of a directory's path in ``any_spelling``: 16 bytes, so that many take little memory."""


class Removal(NamedTuple):
    """A part of a repository that is about to be removed or moved away."""

    directory: Path
    """In ``any_spelling``."""
    part: bytes
    mode: int


class RemovedNames:
    """The parts that the host had made and that were removed or moved through this mount."""

    def __init__(self, source: Source, root_fd: int) -> None:
        self._source = source
        self._root_fd = root_fd
        self._removed: dict[Digest, dict[bytes, int]] = {}
        self._moved: dict[Digest, list[Path]] = {}
        """By the digest of its old path: the paths that a directory got."""
        self._moved_from: dict[Path, Path] = {}
        """The old paths of these directories, by the same path in ``any_spelling``."""
        self._above: set[Digest] = set()
        """The directories with recorded names in or below them."""
        self._count = 0
        self._said = False
        self.made = MadeNames(source, root_fd)

    @property
    def knows_any(self) -> bool:
        """Whether any removal or move is recorded."""
        return bool(self._removed or self._moved)

    def at(self, directory: Node) -> Mapping[bytes, int]:
        """Return the parts that count as present in a directory, and their modes.

        Raises OSError if the source fails.
        """
        return self.at_path(path_of(directory)) if self.knows_any else {}

    def at_path(self, path: Path) -> dict[bytes, int]:
        """Return what ``at`` does, given the path of a directory. Raises as ``at`` does."""
        found: dict[bytes, int] = {}
        places = self._places(path)
        if places is None:  # perhaps an attack: all parts count as present
            return dict.fromkeys(repository.PARTS, S_IFREG)
        for digest, place in places.items():
            add_parts(found, self._removed.get(digest, {}))
            if place is not path:
                add_parts(found, self._present(place))
        return found

    def may_restore_below(self, path: Path, arriving: Path) -> bool:
        """Return whether git may restore a name in a directory at ``path``, or below it.

        What the directory ``arriving``, which is about to get that path, holds does not count.
        Raises OSError if the source fails.
        """
        if not self.knows_any:
            return False
        places = self._places(path)
        if places is None or not self._above.isdisjoint(places):
            return True
        own = _digest(_spelled(arriving))
        return any(
            self._is_directory(place)
            for digest, place in places.items()
            if place is not path and digest != own
        )

    def moved_from(self, path: Path) -> list[Path] | None:
        """Return where recorded moves of directories took what was at ``path``, or below it.

        That includes what was moved on from there, alone or with a directory above it. Returns None
        if there are too many places to be checked.
        """
        found: dict[Digest, Path] = {}
        origins = [path] if self._moved else []
        seen: set[Digest] = set()
        while origins:
            origin = origins.pop()
            places = self._places(origin)
            if places is None:
                return None
            for digest, place in places.items():
                if place is not origin:
                    found[digest] = place
                if digest not in seen and digest in self._above:
                    origins += self._moved_from_below(place)
                seen.add(digest)
            if len(found) > MAX_PLACES:
                return None
        return [*found.values()]

    def _moved_from_below(self, path: Path) -> list[Path]:
        """Return the old paths of moved directories below a directory."""
        spelled = _spelled(path)
        length = len(spelled)
        return [
            origin
            for key, origin in self._moved_from.items()
            if len(key) > length and key[:length] == spelled
        ]

    def _places(self, path: Path) -> dict[Digest, Path] | None:
        """Return a path, then those where recorded moves of directories took what was there.

        Returns None if there are more than MAX_PLACES.
        """
        places = [path]
        seen: dict[Digest, Path] = {}
        while places:
            path = places.pop()
            spelled = _spelled(path)
            digest = _digest(spelled)
            if digest in seen:
                continue
            if len(seen) == MAX_PLACES:
                return None
            seen[digest] = path
            for length in range(1, len(path) + 1 if self._moved else 0):
                for new in self._moved.get(_digest(spelled[:length]), ()):
                    places.append((*new, *path[length:]))
        return seen

    def _present(self, path: Path) -> dict[bytes, int]:
        """Return the parts in a directory of the source that this mount did not make."""
        found: dict[bytes, int] = {}
        with self.opened(path) as fd, suppress(FileNotFoundError):
            for name in self._source.names(fd) if fd >= 0 else ():
                parts = repository.parts(name)
                mode = self._source.mode_at(fd, name) if parts else None
                if mode is not None and not self.made.was_made_here(path, fd, name):
                    add_parts(found, dict.fromkeys(parts, mode))
        return found

    def _is_directory(self, path: Path) -> bool:
        with self.opened(path) as fd:
            return fd >= 0

    @contextmanager
    def opened(self, path: Path) -> Iterator[int]:
        """Open a directory of the source by its path; -1 if there is none. Raises OSError."""
        fd = self._source.open_node(self._root_fd, b".")
        try:
            for name in path:
                below = self._source.open_node(fd, name)
                os.close(fd)
                fd = below
            is_directory = S_ISDIR(self._source.stat(fd).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            is_directory = False
        except BaseException:
            os.close(fd)
            raise
        try:
            yield fd if is_directory else -1
        finally:
            os.close(fd)

    def losing(self, directory: Node, dir_fd: int, name: bytes, mode: int) -> list[Removal]:
        """Return the parts that are lost with one name. Raises OSError if the source fails."""
        return self._losing(path_of(directory), dir_fd, name, mode)

    def losing_in(self, directory: Node, name: bytes, below: Directory) -> list[Removal]:
        """Return the parts lost with the directory ``below``, which is at or below ``name``.

        Raises OSError if the source fails.
        """
        if not any(map(repository.parts, below.file_types)):
            return []
        path = path_of(directory, name, *below.path)
        return [
            removal
            for name, file_type in below.file_types.items()
            for removal in self._losing(path, below.fd, name, file_type)
        ]

    def has_room_for(self, removals: list[Removal]) -> bool:
        """Return whether these removals can be recorded; if not, log that once."""
        new = {one for one in removals if not self._is_known(one)}
        return self._has_room(len(new), {one.directory for one in new})

    def _has_room(self, more: int, directories: set[Path]) -> bool:
        above = len(self._above) + sum(len(path) for path in directories)
        if self._count + more <= MAX_REMOVED and (not more or above <= MAX_ABOVE):
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
                parts = self._removed.setdefault(_digest(removal.directory), {})
                parts[removal.part] = removal.mode
                self._note_above(removal.directory)

    def note_move(self, old: Node, old_name: bytes, new: Node, new_name: bytes) -> bool:
        """Record the move of a directory with all below it; return False if too many are recorded.

        The record also stays if the move then fails: nothing is at the new path in that case.
        Earlier places of what was there are forgotten if they are gone without a trace. Raises
        OSError if the source fails.
        """
        from_path = path_of(old, old_name)
        path = _spelled(from_path)
        key = _digest(path)
        places, place = self._moved.get(key, []), path_of(new, new_name)
        if place not in places:
            if not self._has_room(1, {path}):
                return False
            self._moved[key] = [*filter(self._counts, places), place]
            self._moved_from[path] = from_path
            self._note_above(path[:-1])
        return True

    def _counts(self, place: Path) -> bool:
        """Return whether a place that a directory was moved to still counts.

        It counts while a directory is there. It also counts if a removal from it is recorded, or a
        move of it, or of a directory above or below it.
        """
        spelled = _spelled(place)
        digests = [_digest(spelled[:length]) for length in range(1, len(spelled) + 1)]
        was_moved_on = any(digest in self._moved for digest in digests)
        return was_moved_on or digests[-1] in self._above or self._is_directory(place)

    def _note_above(self, directory: Path) -> None:
        self._count += 1
        self._above.update(_digest(directory[:length]) for length in range(len(directory) + 1))

    def _losing(self, path: Path, dir_fd: int, name: bytes, mode: int) -> list[Removal]:
        parts = repository.parts(name)
        if not parts or self.made.was_made_here(path, dir_fd, name):
            return []
        directory = _spelled(path)
        return [Removal(directory, part, mode) for part in parts]

    def _is_known(self, removal: Removal) -> bool:
        # A part that is no directory weighs more: it replaces a directory of that name.
        mode = self._removed.get(_digest(removal.directory), {}).get(removal.part)
        return mode is not None and (S_ISDIR(removal.mode) or not S_ISDIR(mode))


def add_parts(found: dict[bytes, int], more: Mapping[bytes, int]) -> None:
    """Add ``more`` to ``found``; a part that is no directory replaces one that is."""
    for part, mode in more.items():
        if part not in found or S_ISDIR(found[part]):
            found[part] = mode


def _spelled(path: Path) -> Path:
    return tuple(map(any_spelling, path))


def _digest(path: Path) -> Digest:
    return blake2b(b"/".join(path), digest_size=16).digest()
