"""Decides which directories of a view are the guest's own (``--local``). Pure: no I/O."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from gitguardfs.names import dotgit

DEPS = "deps"
"""The value of ``--local`` that stands for the names in ``DIRECTORIES``."""

_Question = Callable[[bytes], bool]


@dataclass(frozen=True)
class Marker:
    """The signs by which a directory of this name is the guest's, and not the share's."""

    beside: tuple[bytes, ...] = ()
    """The directory is the guest's if one of these files is beside it."""
    inside: bytes = b""
    """A directory of the share without this file in it stays the share's."""
    below: bytes = b""
    """A directory directly below one of this name is the guest's, whatever else is there."""
    is_new: bool = False
    """Whether only a directory that the share does not have can be the guest's."""

    def is_met(
        self, above: bytes, is_there: bool, is_beside: _Question, is_inside: _Question
    ) -> bool:
        """Return whether a directory is the guest's.

        ``above`` is the name of the directory above it, and ``is_there`` says whether the share has
        that directory. ``is_beside`` and ``is_inside`` look for a file beside it, and in it.
        """
        if self.below and above == self.below:
            return True
        if is_there and (self.is_new or (self.inside and not is_inside(self.inside))):
            return False
        return not self.beside or any(map(is_beside, self.beside))


ALWAYS = Marker()
DIRECTORIES = {
    b"node_modules": ALWAYS,
    b".venv": ALWAYS,
    b"venv": Marker(inside=b"pyvenv.cfg"),
    b"target": Marker(beside=(b"Cargo.toml", b"pom.xml")),
    b".gradle": ALWAYS,
    b".tox": ALWAYS,
    b".nox": ALWAYS,
    b".mypy_cache": ALWAYS,
    b".pytest_cache": ALWAYS,
    b"__pycache__": ALWAYS,
    b".next": ALWAYS,
    b".turbo": ALWAYS,
    b".uv_cache": ALWAYS,
    b".uv-cache": ALWAYS,
    b".worktrees": ALWAYS,
    b"worktrees": Marker(beside=(b".git",), below=b".claude", is_new=True),
}
"""Dependencies, builds and caches that package managers and compilers make anew, and where agents
put work trees: these have a ``.git``, which cannot be made on the share."""

FIRST_NAMES = (
    (
        re.compile(rb"target[0-9A-Za-z]{6}"), b"target",
        Marker(beside=(b"Cargo.toml",), inside=b"CACHEDIR.TAG"),
    ),
    (
        re.compile(rb"pytest-cache-files-[0-9a-z_]{8}"), b".pytest_cache",
        Marker(inside=b"CACHEDIR.TAG"),
    ),
)  # fmt: skip
"""Directories that cargo and pytest make, fill and then rename: the first name and the last.

If a directory of the last name is the guest's, so is one of the first name: neither program copies
when it cannot rename. A directory of the share without CACHEDIR.TAG stays the share's.
"""


class LocalNames:
    """The names of the guest's own directories, compiled once and asked for every name."""

    def __init__(self, globs: tuple[str, ...]) -> None:
        """Take the values of ``--local``: ``deps``, and patterns of one component each."""
        self._directories = DIRECTORIES if DEPS in globs else {}
        patterns = [fnmatch.translate(glob) for glob in globs if glob != DEPS]
        self._pattern = re.compile("|".join(patterns)) if patterns else None
        self.marker = lru_cache(dotgit.CACHED_NAMES)(self._marker)
        """Returns the marker for a name; None if no such directory is the guest's. Cached."""

    def _marker(self, name: bytes) -> Marker | None:
        found = self._directories.get(name)
        if self._pattern is not None and self._pattern.match(name.decode(errors="surrogateescape")):
            found = ALWAYS
        if found is None:
            for first, last, marker in FIRST_NAMES:
                if first.fullmatch(name) and self._marker(last) is not None:
                    found = marker
        return None if found is None or dotgit.is_dotgit(name) else found
