"""Finds the guard's policy for ``.git`` by reading; writes nothing."""

from __future__ import annotations

import errno
import os
import stat

from gitguardfs.doctor import search
from gitguardfs.doctor.context import Context
from gitguardfs.doctor.search import SearchResult
from gitguardfs.errors import os_error
from gitguardfs.findings import Result, Row
from gitguardfs.linux import run_as
from gitguardfs.linux.run_as import NoAnswer, User


def check(context: Context) -> list[Result]:
    """Check the policy by reading only, for a run without attacks."""
    user = context.user
    if user is None:
        return []
    row = policy_row(context.mountpoint)
    try:
        found = SearchResult(
            **run_as.run_as(search.search, context.mountpoint, user=user, limit=30.0)
        )
    except PermissionError:
        policy = "unknown"
    except (NoAnswer, OSError, TypeError) as error:
        return [row.disturbed(error)]
    else:
        policy = policy_by_reading(user, found.directory)
    return [report_policy(context.mountpoint, policy)]


def policy_by_reading(user: User, git: str | None) -> str:
    """Return off, readonly, deny or unsure for the ``.git`` at ``git``; unknown for None.

    Writes nothing: a ``.git`` that access(2) reports as writable counts as off.
    """
    if git is None:
        return "unknown"
    try:
        run_as.run_as(_list_open, git, user=user)
        is_writable = run_as.run_as(os.access, git, os.W_OK, user=user)
    except PermissionError:
        return "deny"
    except (NoAnswer, OSError):
        return "unsure"
    return "off" if is_writable else "readonly"


def _list_open(git: str) -> None:
    """List a ``.git``. Raises OSError(EACCES) if its mode is shown as 0."""
    if stat.S_IMODE(os.lstat(git).st_mode) == 0:
        raise os_error(errno.EACCES)
    os.listdir(git)


def policy_row(mountpoint: str) -> Row:
    """Return the row on the policy for ``.git``."""
    return Row(
        "guard.policy", f".git is guarded at {mountpoint}", f".git is not guarded at {mountpoint}"
    )


def report_policy(mountpoint: str, policy: str) -> Result:
    """Return the result for a policy."""
    row = policy_row(mountpoint)
    if policy == "off":
        hint = "mount it with --git=deny (the default), list, readonly or hide"
        return row.finding("the agent can write it: the guard is off (--git=off)", hint)
    if policy == "readonly":
        return row.note("the agent can read it (--git=readonly): history, remotes, tokens in them")
    if policy == "unsure":
        return row.disturbed("neither making a .git nor listing one gave a clear answer")
    if policy == "unknown":
        return row.note(
            "it has no .git to read", title=f"the policy for .git at {mountpoint} is not known"
        )
    return row.ok("it is denied or hidden")
