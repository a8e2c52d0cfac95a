"""The texts of symlinks: which ones stay on the share as given, and how the others are stored.

Pure: bytes in, bytes out. A program on the host follows a symlink without asking this guard. So a
symlink that is made through the view leads strictly below its work tree, or nowhere. The work tree
is the nearest directory at or above the symlink's own directory that holds ``.git``; its top is
called the root here. If no directory holds ``.git``, the root is that of the share.

A text is *contained* if it is relative, has ``..`` only at its beginning, climbs no higher than the
root, does not end at the root, and has no component that git takes for ``.git``. Every symlink on
the way is contained from its own directory. So a chain of them stays below the root as well. Any
other text is stored behind ``NEUTRAL``: a path that only root of the host could make. A ``..`` in
it is stored as ``...``. The kernel needs no such care. But programs that resolve a path as text, as
Python's ``Path.resolve`` does, take ``..`` for the way back from a directory that does not exist.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from gitguardfs.names.dotgit import is_dotgit

NEUTRAL = b"/.gitguardfs-guest/"
"""Prefix of a stored text that leads nowhere on the host."""

_DOTS = re.compile(rb"(?<![^/])\.{2,}(?![^/])")
"""A component of two dots or more; ``neutral`` adds one to them, and ``shown`` takes it away."""


class Steps(NamedTuple):
    """A relative path: up some directories, then down by names."""

    up: int
    down: tuple[bytes, ...]


def steps_of(text: bytes) -> Steps | None:
    """Return the steps of a symlink's text; None if no directory makes the text contained."""
    if text.startswith(b"/"):
        return None
    parts = [part for part in text.split(b"/") if part not in (b"", b".")]
    up = 0
    while up < len(parts) and parts[up] == b"..":
        up += 1
    down = tuple(parts[up:])
    if b".." in down or any(map(is_dotgit, down)):
        return None
    return Steps(up, down)


def neutral(text: bytes) -> bytes:
    """Return the stored form of ``text`` that leads nowhere on the host."""
    return NEUTRAL + _DOTS.sub(rb"\g<0>.", text)


def is_neutral(stored: bytes) -> bool:
    """Return whether a stored text leads nowhere on the host."""
    return stored.startswith(NEUTRAL)


def shown(stored: bytes) -> bytes:
    """Return the text that the view shows for a stored one."""
    if not is_neutral(stored):
        return stored
    return _DOTS.sub(lambda dots: dots[0][:-1], stored[len(NEUTRAL) :])
