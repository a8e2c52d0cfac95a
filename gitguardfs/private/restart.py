"""Decides whether an agent's repository has to begin anew.

It has to if it was made before the human's repository had a commit, or if the human has put
another project at its path.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from itertools import islice

from gitguardfs.private import git, reader, store
from gitguardfs.private.git import GitFailed
from gitguardfs.private.reader import Source
from gitguardfs.private.share import DIRECTORY, Unusable, open_path, read

SECONDS = 60.0
"""How long git may take to list the first commits: of a million it takes about ten."""
_UNBORN = "agent.unborn"
_FILES = (b"HEAD", b"config", b"packed-refs", b"info/exclude")
_DIRECTORIES = (b".", b"refs/heads", b"refs/tags", b"objects", b"objects/pack", b"hooks", b"info")
_NO_USE = ("FETCH_HEAD", "gitguard-")
"""First letters of files that git, and git sync, leave in a repository without using it."""
_MAX_NAMES = 40
"""The most entries of a directory that are read: those of a new repository have ten."""
_MAX_BYTES = 64 << 20


def note_unborn(new: str) -> None:
    """Note the state of an agent's repository that is made of no commit. Raises OSError.

    ``new`` is its directory, which nobody else can change yet, beside the copy.
    """
    fd = os.open(new, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        store.write(os.path.join(os.path.dirname(new), _UNBORN), _digest(fd), 0o600)
    finally:
        os.close(fd)


def is_unborn(directory: str) -> bool:
    """Return whether the agent's repository was made of no commit."""
    return os.path.exists(os.path.join(directory, _UNBORN))


def forget_unborn(directory: str) -> None:
    """Leave the agent's repository as it is from now on. Raises OSError."""
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(directory, _UNBORN))


def is_unused(directory: str) -> bool:
    """Return whether the agent has put nothing into its repository, which was made of no commit.

    Objects, branches, tags, the index, settings, hooks and all other new files of git's count. The
    agent may have put anything there: no symlink is followed, no special file waited for, and no
    mount in it is entered.
    """
    try:
        with open(os.path.join(directory, _UNBORN), "rb") as file:
            noted = file.read()
        fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            flags = os.O_PATH | os.O_DIRECTORY
            agent = open_path(fd, os.fsencode(store.AGENT), flags, crosses_mounts=False)
        finally:
            os.close(fd)
        try:
            return _digest(agent) == noted
        finally:
            os.close(agent)
    except (OSError, Unusable):
        return False


def _digest(git_dir: int) -> bytes:
    """Return a digest of a repository's files and names. Raises Unusable, OSError."""
    seen: list[object] = [read(git_dir, name, _MAX_BYTES, crosses_mounts=False) for name in _FILES]
    seen += [_names(git_dir, name) for name in _DIRECTORIES]
    return hashlib.sha256(repr(seen).encode()).hexdigest().encode()


def _names(git_dir: int, name: bytes) -> list[str]:
    fd = open_path(git_dir, name, DIRECTORY, crosses_mounts=False)
    try:
        with os.scandir(fd) as entries:
            names = sorted(entry.name for entry in islice(entries, _MAX_NAMES))
            return [name for name in names if not name.startswith(_NO_USE)]
    finally:
        os.close(fd)


def is_another_project(directory: str, source: Source) -> bool:
    """Return whether nothing of the copy's history is in the host's repository.

    The branches and tags of the copy are looked for first. Then come its first commits, for which
    git walks through the whole history. Raises GitFailed, OSError.
    """
    copy = os.path.join(directory, store.HOST)
    tips = git.run(
        ("for-each-ref", "--format=%(objectname)"), directory=copy, limit=SECONDS
    ).split()  # fmt: skip
    theirs = list(source.all_refs.values())
    if not tips or set(tips) & set(theirs):
        return False
    if not theirs:
        raise GitFailed("has no branch any more")
    with reader.made(directory, source) as path:
        is_missing = _are_missing([*theirs, *tips], path, source)
        if any(is_missing[: len(theirs)]):
            raise GitFailed("has a branch without its commit")
        if not all(is_missing[len(theirs) :]):
            return False
        roots = git.run(("rev-list", "--max-parents=0", "--all"), directory=copy, limit=SECONDS)
        return all(_are_missing(roots.split(), path, source))


def _are_missing(names: list[bytes], path: str, source: Source) -> list[bool]:
    answers = git.run(
        ("cat-file", "--batch-check=%(objectname)"), directory=path, limit=SECONDS,
        content=b"\n".join(names) + b"\n", keep=source.descriptors, silent=True,
    ).splitlines()  # fmt: skip
    return [answer.endswith(b" missing") for answer in answers]
