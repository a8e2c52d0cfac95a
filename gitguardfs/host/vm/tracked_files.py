"""Finds tracked files whose names are hidden from the agent, whose git would call them deleted.

git runs on the host, in the user's repositories, and reads their lists of tracked files only.
"""

from __future__ import annotations

import functools
import os
import shutil
import time
from collections.abc import Callable, Iterable

from gitguardfs.base import git
from gitguardfs.base.errors import shown, warn
from gitguardfs.host.vm import trusted_programs

GIT = "git"
MAX_REPOSITORIES = 100
"""Repositories of a project that are asked at most, since `vm up` waits for them."""
SECONDS, MOST_SECONDS = 10.0, 30.0
"""Seconds for a repository, and for all: a FIFO within a ``.git`` keeps git waiting."""
MAX_LIST = 256 * git.MIB
"""Bytes of a list of paths: a million take about 100 MB."""
ENVIRONMENT = {**git.NO_CONFIG, "GIT_ALLOW_PROTOCOL": "none"}
"""Before 2.45 git fetches an object that is missing by a program that the repository names."""
_NO_REPOSITORY = "not a git repository"


def hidden(
    project: str, repositories: Iterable[str], hides: Callable[[str], bool]
) -> dict[str, str]:
    """Return tracked paths of which ``hides`` hides a component, each with that component.

    Asks the repository that holds ``project``, and those with their top at ``repositories``. Paths
    are relative to ``project``. Warns of a repository that cannot be read.
    """
    if shutil.which(GIT) is None:
        return {}
    hides = functools.cache(hides)
    found = {}
    deadline = time.monotonic() + MOST_SECONDS
    for directory in list(dict.fromkeys((project, *repositories)))[:MAX_REPOSITORIES]:
        seconds = min(SECONDS, deadline - time.monotonic())
        if seconds <= 0:
            warn(f"git answers slowly; not asked which files it tracks in {shown(directory)} ...")
            break
        below = os.path.relpath(directory, project)
        for path in _tracked(directory, seconds):
            name = next(filter(hides, path.split("/")), None)
            if name is not None:
                found[os.path.normpath(os.path.join(below, path))] = name
    return found


def _tracked(directory: str, seconds: float) -> list[str]:
    """Return the paths that git tracks at and below a directory, relative to that."""
    program = trusted_programs.path_of(GIT)
    limits = git.Limits(seconds, file=MAX_LIST)
    try:
        answer = git.run(program, ("-C", directory, "ls-files", "-z"), ENVIRONMENT, limits)
        reason = answer.reason if answer.code else ""
    except OSError as error:
        reason = str(error.strerror)
    if not reason:
        return os.fsdecode(answer.output).split("\0")[:-1]
    if _NO_REPOSITORY not in reason:
        warn(f"cannot ask git which files it tracks in {shown(directory)}: {reason}")
    return []
