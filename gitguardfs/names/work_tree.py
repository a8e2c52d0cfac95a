"""Names in a work tree that git opens without checking the file type. Pure.

If such a name is a FIFO or a terminal, git waits for ever for input. The authority is git:
``validate_headref`` (setup.c), ``add_patterns`` (dir.c), ``read_attr_from_file`` (attr.c) and
``read_mailmap_file`` (mailmap.c) follow no symlink; ``config_from_gitmodules``
(submodule-config.c) does.
"""

from __future__ import annotations

from functools import lru_cache
from stat import S_ISDIR, S_ISLNK, S_ISREG

from gitguardfs.names import dotgit

GITMODULES = b".gitmodules"
OPENED = (b"HEAD", b".gitignore", b".gitattributes", b".mailmap", GITMODULES)

_OPENED = dotgit.pattern_of(*OPENED)
_FOLLOWED = dotgit.pattern_of(GITMODULES)


def stops_git(name: bytes, mode: int) -> bool:
    """Return whether git may wait for ever for an entry of that name and type (S_IFMT)."""
    if S_ISREG(mode) or S_ISDIR(mode):
        return False
    return _is_followed(name) if S_ISLNK(mode) else _is_opened(name)


@lru_cache(dotgit.CACHED_NAMES)
def _is_opened(name: bytes) -> bool:
    return dotgit.matches(_OPENED, name)


@lru_cache(dotgit.CACHED_NAMES)
def _is_followed(name: bytes) -> bool:
    return dotgit.matches(_FOLLOWED, name)
