"""Searches a tree for repositories, and makes a scratch directory in it. Runs as the user."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from gitguardfs.base.paths import mode_at
from gitguardfs.linux.run_as import NoAnswer, User, run_as
from gitguardfs.names import dotgit, repository

ENTRIES = 50_000
"""Most names that a search reads: more than most projects have without dependencies."""
SECONDS = 5.0
"""Seconds that a search may take; there is one search for each mount."""
SCRATCH = "gitguard-doctor-"
REMOVAL_LIMIT = 20.0
"""Seconds to try to remove a scratch directory."""
IGNORED = (PermissionError, FileNotFoundError, NotADirectoryError)
"""Errors that a search ignores. After any other, the tree's content is unknown."""
SKIPPED = frozenset({"node_modules", "__pycache__", ".venv", ".cache"})
"""Names of large directories without repositories."""


@dataclass
class SearchResult:
    """One path for each form of repository; None if none was found."""

    directory: str | None = None
    file: str | None = None
    symlink: str | None = None
    root: str | None = None
    """A directory below the top one that holds a ``.git``."""
    bare: str | None = None
    writable: str | None = None
    """The first directory that the user may write to."""
    searched: int = 0
    """The number of names that were read."""
    complete: bool = True
    """Whether the whole tree was searched."""


def search_as(user: User, top: str) -> SearchResult:
    """Search a tree as a user. Raises PermissionError; NoAnswer if the search failed."""
    try:
        return SearchResult(**run_as(search, top, user=user, limit=30.0))
    except PermissionError:
        raise
    except (OSError, TypeError) as error:
        raise NoAnswer(str(error)) from None


def search(top: str, entries: int = ENTRIES, seconds: float = SECONDS) -> dict[str, Any]:
    """Search a tree breadth first, on one file system. Returns the fields of a ``SearchResult``."""
    found = SearchResult()
    deadline = time.monotonic() + seconds
    device = os.stat(top).st_dev
    queue = deque([top])
    while queue:
        directory = queue.popleft()
        if found.writable is None and os.access(directory, os.W_OK | os.X_OK):
            found.writable = directory
        with suppress(*IGNORED):
            _note_git(directory, found, top)
        with suppress(*IGNORED), os.scandir(directory) as listing:
            for entry in listing:
                found.searched += 1
                if found.searched > entries or time.monotonic() > deadline:
                    found.complete = False
                    return asdict(found)
                with suppress(*IGNORED):
                    _check_entry(entry, found, device, queue)
        if all((found.directory, found.file, found.symlink, found.root, found.bare)):
            break
    return asdict(found)


def _note_git(directory: str, found: SearchResult, top: str) -> None:
    """Note the ``.git`` of a directory; listings may leave it out. Raises OSError."""
    git = os.path.join(directory, ".git")
    mode = os.lstat(git).st_mode
    form = "directory" if stat.S_ISDIR(mode) else "symlink" if stat.S_ISLNK(mode) else "file"
    if getattr(found, form) is None:
        setattr(found, form, git)
    if found.root is None and directory != top:
        found.root = directory


def _check_entry(
    entry: os.DirEntry[str], found: SearchResult, device: int, queue: deque[str]
) -> None:
    if dotgit.is_dotgit(os.fsencode(entry.name)) or entry.name in SKIPPED:
        return
    if not entry.is_dir(follow_symlinks=False):
        return
    st = entry.stat(follow_symlinks=False)
    if st.st_dev != device:
        return
    is_placeholder = stat.S_IMODE(st.st_mode) == 0 and st.st_uid == 0
    if is_placeholder or holds_repository(entry.path):
        found.bare = found.bare or entry.path
        return
    queue.append(entry.path)


def holds_repository(path: str) -> bool:
    """Return whether a directory is a repository by the guard's rule. Raises OSError."""
    return repository.is_repository(partial(mode_at, path))


def is_kept(path: str, uid: int) -> bool:
    """Return whether the sticky bit keeps a user from renaming ``path``, another user's."""
    holder = os.lstat(os.path.dirname(path))
    if not holder.st_mode & stat.S_ISVTX:
        return False
    return uid not in (holder.st_uid, os.lstat(path).st_uid)


def make_scratch(directory: str) -> str:
    """Make a directory with the prefix SCRATCH; return its path."""
    return tempfile.mkdtemp(prefix=SCRATCH, dir=directory)


def remove_scratch(scratch: str) -> bool:
    """Remove a scratch directory, following no symlink. Returns whether it is gone."""
    # A process of an attack may still run, and make a file meanwhile.
    deadline = time.monotonic() + REMOVAL_LIMIT
    while os.path.lexists(scratch) and time.monotonic() < deadline:
        shutil.rmtree(scratch, ignore_errors=True)
        time.sleep(0.01)
    return not os.path.lexists(scratch)
