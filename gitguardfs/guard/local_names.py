"""Decides which directories of a view are the guest's own (``--local``). Pure: no I/O."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from functools import lru_cache

from gitguardfs.guard import dotgit

DEPS = "deps"
"""The value of ``--local`` that stands for the names in ``DIRECTORIES``."""


@dataclass(frozen=True)
class Marker:
    """What tells a directory of dependencies from another of that name."""

    beside: tuple[bytes, ...] = ()
    """The directory is the guest's if one of these files is beside it."""
    inside: bytes = b""
    """A directory of the share without this file in it stays the share's."""


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
}
"""Dependencies, builds and caches that package managers and compilers make anew."""


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
        if dotgit.is_dotgit(name):
            return None
        if self._pattern is not None and self._pattern.match(name.decode(errors="surrogateescape")):
            return ALWAYS
        return self._directories.get(name)
