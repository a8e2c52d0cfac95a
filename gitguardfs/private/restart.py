"""Whether an agent's repository has to begin anew, since the human's is not what it was made from.

That is so if it was made before the human's repository had a commit, and if the human has put
another project at its path.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from itertools import islice
from stat import S_ISREG

from gitguardfs.linux import syscalls
from gitguardfs.private import git, reader, store
from gitguardfs.private.git import GitFailed
from gitguardfs.private.reader import Source

SECONDS = 60.0
"""How long git may take to list the first commits: of a million it takes about ten."""
_UNBORN = "agent.unborn"
_FILES = (b"HEAD", b"config", b"packed-refs", b"info/exclude")
_DIRECTORIES = (b".", b"refs/heads", b"refs/tags", b"objects", b"objects/pack", b"hooks", b"info")
_NO_USE = ("FETCH_HEAD", "gitguard-")
"""What begins the names that git, and git sync, leave in a repository that is only looked at."""
_MAX_NAMES = 40
"""Entries of such a directory that are looked at: those of a new repository have ten at most."""
_MAX_BYTES = 64 << 20


def note_unborn(new: str) -> None:
    """Note what an agent's repository is like that is made of no commit. Raises OSError.

    ``new`` is its directory, which nobody else can change yet, beside the copy.
    """
    fd = os.open(new, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        store.write(os.path.join(os.path.dirname(new), _UNBORN), _looks_like(fd), 0o600)
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

    An object, branch, tag, index, setting, hook, and any other new file of git's count. It is the
    agent's, so it may be anything: no symlink is followed, no special file waited for, and nothing
    mounted in it is entered.
    """
    try:
        with open(os.path.join(directory, _UNBORN), "rb") as file:
            noted = file.read()
        fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            agent = _opened(fd, os.fsencode(store.AGENT), os.O_PATH | os.O_DIRECTORY)
        finally:
            os.close(fd)
        try:
            return _looks_like(agent) == noted
        finally:
            os.close(agent)
    except OSError:
        return False


def _looks_like(git_dir: int) -> bytes:
    seen: list[object] = [_content(git_dir, name) for name in _FILES]
    seen += [_names(git_dir, name) for name in _DIRECTORIES]
    return hashlib.sha256(repr(seen).encode()).hexdigest().encode()


def _content(git_dir: int, name: bytes) -> bytes | None:
    try:
        fd = _opened(git_dir, name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except FileNotFoundError:
        return None
    try:
        st = os.fstat(fd)
        if not S_ISREG(st.st_mode) or st.st_size > _MAX_BYTES:
            return b""
        return os.read(fd, _MAX_BYTES)
    finally:
        os.close(fd)


def _names(git_dir: int, name: bytes) -> list[str]:
    fd = _opened(git_dir, name, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with os.scandir(fd) as entries:
            names = sorted(entry.name for entry in islice(entries, _MAX_NAMES))
            return [name for name in names if not name.startswith(_NO_USE)]
    finally:
        os.close(fd)


def _opened(fd: int, path: bytes, flags: int) -> int:
    return syscalls.open_beneath(fd, path, flags, crosses_mounts=False)


def is_another_project(directory: str, source: Source) -> bool:
    """Return whether nothing of the copy's history is in the host's repository.

    Asked are the branches and tags of the copy, then its first commits, which takes git a walk
    through the whole history. Raises GitFailed, OSError.
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
