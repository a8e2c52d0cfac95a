"""Makes the agent's repositories of a new view, so that nobody meets a slow first use of git."""

from __future__ import annotations

import os
from collections.abc import Iterator

DEPTH = 2
"""Directories below the view's root that are looked at: ~/projects/hello, ~/projects/team/hello."""
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def seed(view: str) -> Iterator[str]:
    """Open each ``.git`` that is a file; the daemon then makes the repository that it leads to.

    Yields a line before each, and one for each that failed: the next open tries again.
    """
    for path, directories, names, fd in os.fwalk(view):
        shown = os.path.relpath(path, view)
        depth = 0 if shown == "." else shown.count("/") + 1
        if depth >= DEPTH:
            directories.clear()
        if ".git" not in names:
            continue
        name = os.path.basename(view) if depth == 0 else shown
        yield f"Preparing the agent's repository of {name}."
        try:
            os.close(os.open(".git", _READ, dir_fd=fd))
        except OSError as error:
            yield f"  {error.strerror}: the agent's first use of git tries again."
