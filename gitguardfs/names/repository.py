"""The names that make a directory a repository, and those by which it makes git run programs. Pure.

The authority is git: ``is_git_directory`` (setup.c) defines a repository.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from functools import lru_cache
from stat import S_ISDIR

from gitguardfs.names import dotgit

HEAD, REFS, OBJECTS, COMMONDIR = b"HEAD", b"refs", b"objects", b"commondir"
CONFIG, CONFIG_WORKTREE, HOOKS = b"config", b"config.worktree", b"hooks"

PARTS = frozenset((HEAD, REFS, OBJECTS, COMMONDIR, CONFIG, CONFIG_WORKTREE, HOOKS))
"""The names that define a repository, and those that can make git run a program."""

NEEDED = (HEAD, REFS, COMMONDIR)
"""Each set of parts that ``would_complete`` refuses to complete has one of these."""

PAYLOAD = frozenset((CONFIG, CONFIG_WORKTREE, COMMONDIR, HOOKS))
"""The names that are closed in a directory that is half a repository."""

Modes = Callable[[bytes], int | None]
"""Maps a name in git's spelling to the st_mode of the entry; to None if there is no entry."""

_PATTERNS = {name: dotgit.pattern_of(name) for name in PARTS}
_PLAIN = {name.lower(): frozenset((name,)) for name in _PATTERNS}
_NOTHING: frozenset[bytes] = frozenset()


@lru_cache(dotgit.CACHED_NAMES)
def parts(name: bytes) -> frozenset[bytes]:
    """Return the PARTS, in git's spelling, that ``name`` could resolve to."""
    if dotgit.is_portable(name):  # only its case and dots at its end can vary
        return _PLAIN.get(name.lower().rstrip(b"."), _NOTHING)
    names = {name, _normalized(name)}
    return frozenset(
        spelling
        for spelling, pattern in _PATTERNS.items()
        if any(dotgit.matches(pattern, one) for one in names)
    )


def _normalized(name: bytes) -> bytes:
    """Return ``name`` as ZFS compares it with normalization=formKC: ``\uff52efs`` is ``refs``."""
    text = name.decode(errors="surrogateescape")
    return unicodedata.normalize("NFKC", text).encode(errors="surrogateescape")


def is_repository(mode_of: Modes) -> bool:
    """Return whether a directory is treated as ``.git`` itself.

    Such a directory has a HEAD that is no directory, and refs or commondir.
    """
    head = mode_of(HEAD)
    if head is None or S_ISDIR(head):
        return False
    return mode_of(REFS) is not None or mode_of(COMMONDIR) is not None


def would_complete(name: bytes, is_directory: bool, mode_of: Modes) -> bool:
    """Return whether adding ``name`` would make a directory a repository, or most of one.

    A payload is config, config.worktree or hooks: these can make git run a program. Refused are:
    HEAD with refs, commondir or a payload; objects beside HEAD or refs, and a payload; and a
    commondir that is no directory. Whatever such a set still lacks, git on the host may restore.
    """
    return any(_completes(part, is_directory, mode_of) for part in parts(name))


def _completes(part: bytes, is_directory: bool, mode_of: Modes) -> bool:
    def is_there(*spellings: bytes) -> bool:
        return all(mode_of(spelling) is not None for spelling in spellings)

    def is_file(spelling: bytes) -> bool:
        mode = mode_of(spelling)
        return mode is not None and not S_ISDIR(mode)

    def has_payload() -> bool:
        return is_file(CONFIG) or is_file(CONFIG_WORKTREE) or is_there(HOOKS)

    if part == HEAD:
        others = is_there(REFS) or is_there(COMMONDIR) or has_payload()
        return not is_directory and others
    if part == REFS:
        return is_file(HEAD) or (is_there(OBJECTS) and has_payload())
    if part == OBJECTS:
        return (is_file(HEAD) or is_there(REFS)) and has_payload()
    if part == COMMONDIR:
        return not is_directory or is_file(HEAD)
    if part != HOOKS and is_directory:
        return False
    return is_file(HEAD) or is_there(REFS, OBJECTS)


def is_half_repository(mode_of: Modes) -> bool:
    """Return whether a directory has two of a HEAD that is no directory, refs and objects."""
    head = mode_of(HEAD)
    found = head is not None and not S_ISDIR(head)
    return found + (mode_of(REFS) is not None) + (mode_of(OBJECTS) is not None) >= 2


@lru_cache(dotgit.CACHED_NAMES)
def is_payload(name: bytes) -> bool:
    """Return whether ``name`` could resolve to one of PAYLOAD."""
    return not parts(name).isdisjoint(PAYLOAD)


@lru_cache(dotgit.CACHED_NAMES)
def is_hooks(name: bytes) -> bool:
    """Return whether ``name`` could resolve to the directory of hooks."""
    return HOOKS in parts(name)
