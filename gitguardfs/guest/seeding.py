"""Makes the agent's repositories of a new view, so that nobody meets a slow first use of git."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress

from gitguardfs.base import quote
from gitguardfs.linux.programs import ENVIRONMENT
from gitguardfs.linux.run_as import NoAnswer, SwitchUserFailed, User, run_as
from gitguardfs.options import accounts

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


def commands_to_name(uid: int) -> Iterator[str]:
    """Yield the commands that name a user in git, which refuses commits of an unnamed one."""
    account = accounts.find(str(uid))
    user = User(uid, account.gid, tuple(accounts.groups_of(uid)), account.name)
    with suppress(NoAnswer, SwitchUserFailed, OSError):
        if run_as(_has_no_name, account.home, user=user):
            command = ["sudo", "-iu", user.name, "git", "config", "--global"]
            yield f"{user.name} has no name in git, without which it commits nothing:"
            for key, value in (("user.name", "AI Agent"), ("user.email", "agent@example.org")):
                yield f"  {quote.shell([*command, key, value])}"


def _has_no_name(home: str) -> bool:
    with suppress(FileNotFoundError, subprocess.TimeoutExpired):
        done = subprocess.run(
            ["git", "config", "user.email"], env={**ENVIRONMENT, "HOME": home}, timeout=5,
            check=False,
        )  # fmt: skip
        return done.returncode == 1  # git-config(1): there is no such key
    return False
