"""Finds the guard's policy for ``.git`` by reading; writes nothing."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable

from gitguardfs.base.errors import os_error
from gitguardfs.base.findings import Result, Row
from gitguardfs.doctor import search
from gitguardfs.doctor.context import Context
from gitguardfs.doctor.search import SearchResult
from gitguardfs.linux import run_as
from gitguardfs.linux.run_as import NoAnswer, User

OPEN_LIMIT = 180.0
"""Seconds for the first open of a ``.git`` of --git=private, which makes the agent's repository."""
LONGEST_PATH = 4096


def check(context: Context) -> list[Result]:
    """Check the policy by reading only, for a run without attacks."""
    user = context.user
    if user is None:
        return []
    try:
        policy = policy_by_reading(user, search.search_as(user, context.mountpoint))
    except PermissionError:
        policy = "unknown"
    except NoAnswer as error:
        return [policy_row(context.mountpoint).disturbed(error)]
    return [report_policy(context.mountpoint, policy)]


def policy_by_reading(user: User, found: SearchResult) -> str:
    """Return off, readonly, private, deny or unsure by a ``.git`` that was found; else unknown.

    Writes nothing into the view: a ``.git`` that access(2) reports as writable counts as off.
    """
    git = found.directory or found.file
    if git is None:
        return "unknown"
    look = _leads_to_own if found.directory is None else os.listdir
    try:
        is_own = run_as.run_as(_look, look, git, user=user, limit=OPEN_LIMIT)
        is_writable = run_as.run_as(os.access, git, os.W_OK, user=user)
    except PermissionError:
        return "deny"
    except (NoAnswer, OSError):
        return "unsure"
    return "off" if is_writable else "private" if is_own else "readonly"


def _look(look: Callable[[str], object], git: str) -> bool:
    """Return whether ``look`` returns True. Raises OSError(EACCES) if the mode is shown as 0."""
    if stat.S_IMODE(os.lstat(git).st_mode) == 0:
        raise os_error(errno.EACCES)
    return look(git) is True


def _leads_to_own(git: str) -> bool:
    """Return whether a ``.git`` file leads to a repository of the caller's outside of the view.

    That is what ``--git=private`` shows.
    """
    with open(os.open(git, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        key, _, path = file.read(LONGEST_PATH).rstrip(b"\n").partition(b" ")
        view = os.fstat(file.fileno()).st_dev
    try:
        st = os.stat(path)
    except (OSError, ValueError):  # a path of the host, or no path at all
        return False
    is_elsewhere = st.st_dev != view and os.path.isabs(path)
    return key == b"gitdir:" and is_elsewhere and st.st_uid == os.geteuid()


def policy_row(mountpoint: str) -> Row:
    """Return the row on the policy for ``.git``."""
    return Row(
        "guard.policy", f".git is guarded at {mountpoint}", f".git is not guarded at {mountpoint}"
    )


def report_policy(mountpoint: str, policy: str) -> Result:
    """Return the result for a policy."""
    row = policy_row(mountpoint)
    if policy == "off":
        hint = "mount it with --git=deny (the default), private, list, readonly or hide"
        return row.finding("the agent can write it: the guard is off (--git=off)", hint)
    if policy == "readonly":
        return row.note("the agent can read it (--git=readonly): history, remotes, tokens in them")
    if policy == "private":
        return row.ok("the agent has a repository of its own in its place (--git=private)")
    if policy == "unsure":
        return row.disturbed("neither making a .git nor listing one gave a clear answer")
    if policy == "unknown":
        return row.note(
            "it has no .git to read", title=f"the policy for .git at {mountpoint} is not known"
        )
    return row.ok("it is denied or hidden")
