"""Leaves the guest's own directories out of the agent's work tree: the view shows no file there.

git would take the files that the human tracks there for deleted, and so would the agent's next
commit. A sparse checkout is git's own way to say that they are not in this work tree.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from gitguardfs.names.local_names import LocalNames
from gitguardfs.private import git, store
from gitguardfs.private.host_repository import Config

LIMIT = 60.0
"""Seconds for one git command. An index of 100,000 files takes less than one."""
BRANCHES = 20
"""The human's newest branches, which are looked through as HEAD is; each takes a git command."""
NOTE = "left-out"
"""A file of the copy with patterns, which the agent's hook adds to the agent's own."""
CONFIG = b"""\
[core]
\tsparseCheckout = true
\tsparseCheckoutCone = false
[sparse]
\texpectFilesOutsideOfPatterns = true
"""
"""Settings of the agent's repository. What the guest has there itself is never a change."""


def is_on(host: Config) -> bool:
    """Return whether the human has a sparse checkout."""
    return host.get(b"core.sparsecheckout", b"").lower() in (b"true", b"yes", b"on", b"1")


def leave_out(repository: str, copy: str, local: LocalNames) -> set[bytes]:
    """Mark the files in the index that the view does not show; return the directories of these.

    ``repository`` is the agent's, which has not been given to the agent yet, and ``copy`` the one
    whose objects it borrows. Without an index there is nothing to mark. Raises GitFailed, OSError.
    """
    index = os.path.join(repository, "index")
    if not os.path.exists(index):
        return set()
    words, more = (f"--git-dir={copy}", f"--work-tree={repository}"), {"GIT_INDEX_FILE": index}
    files = git.run((*words, "ls-files", "-z"), limit=LIMIT, more=more).split(b"\0")
    found = directories_of(local, files)
    below = tuple(directory + b"/" for directory in found)
    hidden = [path for path in files if path.startswith(below)]
    if hidden:
        git.run(
            (*words, "update-index", "-z", "--skip-worktree", "--stdin"),
            limit=LIMIT, more=more, content=b"\0".join(hidden),
        )  # fmt: skip
    return found


def tracked(copy: str, local: LocalNames) -> set[bytes]:
    """Return the directories of the guest's own in which the human has committed files.

    HEAD and the newest branches are looked through. Raises GitFailed, OSError.
    """
    words = ("for-each-ref", "--sort=-committerdate", f"--count={BRANCHES}", "--format=%(refname)")
    heads = git.run((*words, "refs/heads"), directory=copy, limit=LIMIT).split()
    found = set[bytes]()
    for tip in (b"HEAD", *heads):
        with suppress(git.GitFailed):  # no commit yet, or a partial clone
            ls_tree = ("ls-tree", "-r", "-z", "--name-only", "--full-tree", os.fsdecode(tip))
            files = git.run(ls_tree, directory=copy, limit=LIMIT).split(b"\0")
            found |= directories_of(local, files)
    return found


def directories_of(local: LocalNames, files: Iterable[bytes]) -> set[bytes]:
    """Return the directories in a tree of the share that the view replaces by the guest's own.

    ``files`` are all files of a tree. Of nested directories, the outermost is returned.
    """
    present = set(files)
    inner = {os.path.dirname(path) for path in present} - {b""}
    return {found for directory in inner if (found := _outermost(local, directory, present))}


def _outermost(local: LocalNames, directory: bytes, files: set[bytes]) -> bytes | None:
    def has(directory: bytes, name: bytes) -> bool:
        return os.path.join(directory, name) in files

    above = b""
    for name in directory.split(b"/"):
        path, marker = os.path.join(above, name), local.marker(name)
        if marker is not None and marker.is_met(
            os.path.basename(above),
            is_there=True,
            is_beside=partial(has, above),
            is_inside=partial(has, path),
        ):
            return path
        above = path
    return None


def note(copy: str, local: LocalNames | None) -> None:
    """Note the directories of ``tracked`` for the agent's hook. Raises GitFailed, OSError."""
    if local is not None and (found := tracked(copy, local)):
        store.write(os.path.join(copy, NOTE), patterns(b"", found).partition(b"\n")[2])


def patterns(former: bytes, left_out: set[bytes]) -> bytes:
    """Return the content of ``info/sparse-checkout``: what it has, without these directories."""
    lines = [b"!/%s/\n" % re.sub(rb"([*?\[\\])", rb"\\\1", path).replace(b"\n", b"?")
             for path in sorted(left_out)]  # fmt: skip
    return b"".join((former.rstrip(b"\n") + b"\n" if former else b"/*\n", *lines))
