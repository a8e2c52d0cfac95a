"""The lines by which the host tells of its changes: one JSON object each, trusted for nothing."""

from __future__ import annotations

import json
import os
from typing import NamedTuple

VERSION = 1
LONGEST = 1 << 16
"""Bytes of a line, at most."""
LONGEST_PATH, LONGEST_NAME = 4096, 255
"""Bytes of a path and of a name in it, at most."""

BEGINS, BEAT, WHOLE, AGAIN = "gitguard-changes", "beat", "whole", "again"
LISTING = "listing"
"""Untold names, such as .git, have come or gone in this directory."""
MADE, GONE, CHANGED, ATTRIBUTES, MOVED = "made", "gone", "changed", "attributes", "moved"
BRIEF = "brief"
"""A name was there for a moment."""
ON_NAMES = (MADE, GONE, BRIEF, CHANGED, ATTRIBUTES, AGAIN, LISTING)
"""Kinds of lines about one name."""
_ON_ALL = (ATTRIBUTES, AGAIN, LISTING)
"""Kinds that may be about the shared directory itself."""

Path = tuple[bytes, ...]
"""The names that lead from the shared directory to an object; empty for the directory itself."""


class Line(NamedTuple):
    """A line of the stream."""

    kind: str
    """BEGINS, BEAT, WHOLE, or what a line on one or two names says of them."""
    path: Path = ()
    new_path: Path = ()
    """Of MOVED: where the object is now."""
    is_true: bool = False
    """Of WHOLE: whether all changes are told from now on."""
    why: str = ""
    """Of WHOLE: why not."""


def parse(text: bytes) -> Line:
    """Return a line. Raises ValueError for all that is none of this version."""
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("no object")
    if BEGINS in found:
        if found[BEGINS] != VERSION:
            raise ValueError(f"version {found[BEGINS]!r:.20}, and this is version {VERSION}")
        return Line(BEGINS)
    if BEAT in found:
        return Line(BEAT)
    if WHOLE in found:
        return Line(WHOLE, is_true=found[WHOLE] is True, why=_text(found.get("why")))
    if MOVED in found:
        both = found[MOVED]
        if not isinstance(both, list) or len(both) != 2:
            raise ValueError("no two names")
        return Line(MOVED, _named(both[0]), _named(both[1]))
    kind = next((kind for kind in ON_NAMES if kind in found), None)
    if kind is None:
        raise ValueError("no line of this version")
    path = found[kind]
    return Line(kind, _path(path) if kind in _ON_ALL else _named(path))


def _text(given: object) -> str:
    """Return a text of the host's, without control characters and at most a line long."""
    text = given if isinstance(given, str) else ""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:200])


def _named(path: object) -> Path:
    names = _path(path)
    if not names:
        raise ValueError("the shared directory itself")
    return names


def _path(path: object) -> Path:
    """Return a path that stays inside. Raises ValueError."""
    if not isinstance(path, str):
        raise ValueError("a path that is no text")
    given = os.fsencode(path)
    if len(given) > LONGEST_PATH:
        raise ValueError("a path that is too long")
    names = tuple(given.split(b"/")) if given else ()
    for name in names:
        if name in (b"", b".", b"..") or b"\0" in name or len(name) > LONGEST_NAME:
            raise ValueError("no path below the shared directory")
    return names
