"""The names that make a directory a repository, and those that git puts into a new one. Pure.

The authority is git: ``is_git_directory`` (setup.c) defines a repository;
``create_default_files`` and ``clone_init_db`` (builtin/init-db.c) fill a new one.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from functools import lru_cache
from stat import S_ISDIR

from gitguardfs.guard import dotgit

HEAD, REFS, OBJECTS, COMMONDIR = b"HEAD", b"refs", b"objects", b"commondir"
CONFIG, CONFIG_WORKTREE, HOOKS = b"config", b"config.worktree", b"hooks"

PARTS = frozenset((HEAD, REFS, OBJECTS, COMMONDIR, CONFIG, CONFIG_WORKTREE, HOOKS))
"""The names that define a repository, and those that can make git run a program."""

NEEDED = (HEAD, REFS, COMMONDIR)
"""Each set of parts that ``would_complete`` refuses to complete has one of these."""

MADE_BY_GIT = frozenset(
    (HEAD, b"HEAD.lock", CONFIG, b"config.lock", b"description", HOOKS, b"info", b"branches",
     REFS, OBJECTS, b"packed-refs", b"reftable")
)  # fmt: skip
"""Names that git puts into the top directory of a new bare repository."""

READ_AT_TOP = MADE_BY_GIT | {COMMONDIR, CONFIG_WORKTREE, b"shallow", b"logs", b"index"}
"""Names that git reads in the top directory of a repository."""

READ_BELOW = frozenset(
    (HOOKS, b"info", OBJECTS, REFS, b"logs", b"worktrees", b"modules", b"branches", b"reftable")
)
"""Directories of a repository in which git reads."""

Modes = Callable[[bytes], int | None]
"""Maps a name in git's spelling to the st_mode of the entry; to None if there is no entry."""

_PATTERNS = {name: dotgit.pattern_of(name) for name in READ_AT_TOP | READ_BELOW}
_PLAIN = {name.lower(): frozenset((name,)) for name in _PATTERNS}
_NOTHING: frozenset[bytes] = frozenset()


@lru_cache(dotgit.CACHED_NAMES)
def meanings(name: bytes) -> frozenset[bytes]:
    """Return the names of this module, in git's spelling, that ``name`` could resolve to."""
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


def parts(name: bytes) -> frozenset[bytes]:
    """Return the PARTS that ``name`` could resolve to."""
    return meanings(name) & PARTS


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
    HEAD with refs, commondir or a payload; refs with objects and a payload; and a commondir that
    is no directory. Whatever such a set still lacks, git on the host may restore.
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
        return is_there(REFS) and has_payload()
    if part == COMMONDIR:
        return not is_directory or is_file(HEAD)
    if part != HOOKS and is_directory:
        return False
    return is_file(HEAD) or is_there(REFS, OBJECTS)


@lru_cache(dotgit.CACHED_NAMES)
def is_read_at_top(name: bytes) -> bool:
    """Return whether git may read an entry called ``name`` in a repository's top directory."""
    return dotgit.may_be_any_name(name) or not meanings(name).isdisjoint(READ_AT_TOP)


@lru_cache(dotgit.CACHED_NAMES)
def is_read_below(name: bytes) -> bool:
    """Return whether git may read the entries of a repository's directory called ``name``."""
    return dotgit.may_be_any_name(name) or not meanings(name).isdisjoint(READ_BELOW)


def is_made_by_git(name: bytes) -> bool:
    """Return whether git puts an entry called ``name`` into a new repository."""
    return not meanings(name).isdisjoint(MADE_BY_GIT)
