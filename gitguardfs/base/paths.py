"""Compares and names paths, and reads the mode of the object at a path."""

from __future__ import annotations

import hashlib
import os
import re

from gitguardfs.base import walk


def is_inside(path: str, directory: str) -> bool:
    """Return whether an absolute path is ``directory`` or lies below it."""
    return os.path.commonpath([path, directory]) == directory


def lies_in(path: str, project: str) -> bool:
    """Return whether ``path``, a symlink on its way or its end lies in the resolved ``project``."""
    absolute = os.path.abspath(path)
    return any(is_inside(place, project) for place in (absolute, *walk.trail(absolute)))


def mode_at(directory: str, name: bytes) -> int | None:
    """Return the st_mode of an entry of a directory, a symlink's own; None if there is no entry.

    Raises OSError if that is unknown.
    """
    try:
        return os.lstat(os.path.join(os.fsencode(directory), name)).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def slug(path: str, most: int) -> str:
    """Return the last name in a path as a-z, 0-9 and single ``-``, at most ``most`` characters.

    It is empty if the name has no such letter or digit.
    """
    name = re.sub(r"[^a-z0-9]+", "-", os.path.basename(path).lower()).strip("-")
    return name[:most].rstrip("-")


def checksum(path: str) -> str:
    """Return eight hexadecimal digits that distinguish paths with the same last name."""
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:8]
