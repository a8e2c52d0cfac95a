"""Look for repositories in a tree, and keep a scratch directory in it. Run as the user."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from gitguardfs.guard import dotgit, repository

ENTRIES = 50_000
"""Names that a search looks at: more than most projects have without their dependencies."""
SECONDS = 5.0
"""How long a search may take: it is made once a mount."""
SCRATCH = "gitguard-doctor-"
REMOVAL_LIMIT = 20.0
"""Seconds within which a scratch directory has to go."""
CLOSED = (PermissionError, FileNotFoundError, NotADirectoryError)
"""What a search passes over. After other errors it is not known what is there."""
DULL = frozenset({"node_modules", "__pycache__", ".venv", ".cache"})
"""Directories that are large and hold no repository."""


@dataclass
class SearchResult:
    """One path of each form of repository; None where there is none."""

    directory: str | None = None
    file: str | None = None
    symlink: str | None = None
    root: str | None = None
    """A directory, not the top one, that holds one of these."""
    bare: str | None = None
    writable: str | None = None
    """The first directory that the user may write to."""
    searched: int = 0
    """Names that were looked at."""
    complete: bool = True
    """Whether that was the whole tree."""

    def answer(self) -> dict[str, Any]:
        """It as JSON."""
        return asdict(self)


def search(top: str, entries: int = ENTRIES, seconds: float = SECONDS) -> dict[str, Any]:
    """Search a tree breadth first, on one file system; the answer is a ``SearchResult``'s."""
    found = SearchResult()
    deadline = time.monotonic() + seconds
    device = os.stat(top).st_dev
    queue = deque([top])
    while queue:
        directory = queue.popleft()
        if found.writable is None and os.access(directory, os.W_OK | os.X_OK):
            found.writable = directory
        with suppress(*CLOSED), os.scandir(directory) as listing:
            for entry in listing:
                found.searched += 1
                if found.searched > entries or time.monotonic() > deadline:
                    found.complete = False
                    return found.answer()
                with suppress(*CLOSED):
                    _look(entry, found, top, device, queue)
        if all((found.directory, found.file, found.symlink, found.root, found.bare)):
            break
    return found.answer()


def _look(
    entry: os.DirEntry[str], found: SearchResult, top: str, device: int, queue: deque[str]
) -> None:
    if dotgit.is_dotgit(os.fsencode(entry.name)):
        form = "symlink" if entry.is_symlink() else "file"
        form = "directory" if entry.is_dir(follow_symlinks=False) else form
        if getattr(found, form) is None:
            setattr(found, form, entry.path)
        holder = os.path.dirname(entry.path)
        if found.root is None and holder != top:
            found.root = holder
        return
    if not entry.is_dir(follow_symlinks=False) or entry.name in DULL:
        return
    st = entry.stat(follow_symlinks=False)
    if st.st_dev != device:
        return
    if looks_bare(entry.path, st):
        found.bare = found.bare or entry.path
        return
    queue.append(entry.path)


def looks_bare(path: str, st: os.stat_result) -> bool:
    """Whether a directory is a bare repository, or what a guard shows of one."""
    if stat.S_IMODE(st.st_mode) == 0 and st.st_uid == 0:
        return True
    return holds_repository(path)


def holds_repository(path: str) -> bool:
    """Whether a directory has what makes it a repository, as the guard has it; raises OSError."""

    def mode_of(name: bytes) -> int | None:
        try:
            return os.lstat(os.path.join(os.fsencode(path), name)).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return None

    return repository.is_repository(mode_of)


def is_kept(path: str, uid: int) -> bool:
    """Whether the sticky bit keeps a user from renaming ``path``, which is not his."""
    holder = os.lstat(os.path.dirname(path))
    if not holder.st_mode & stat.S_ISVTX:
        return False
    return uid not in (holder.st_uid, os.lstat(path).st_uid)


def make_scratch(directory: str) -> str:
    """A new directory with a name that says whose it is."""
    return tempfile.mkdtemp(prefix=SCRATCH, dir=directory)


def remove_scratch(scratch: str) -> bool:
    """Remove it with all in it, following no symlink; returns whether it is gone."""
    # What an attack has started may be ending still, and make something meanwhile.
    deadline = time.monotonic() + REMOVAL_LIMIT
    while os.path.lexists(scratch) and time.monotonic() < deadline:
        shutil.rmtree(scratch, ignore_errors=True)
        time.sleep(0.01)
    return not os.path.lexists(scratch)
