"""Says whether git on this machine uses bare repositories that it finds by itself.

No guard can hold an agent that fills a bare repository while it is made, or one whose parts a later
checkout brings. With ``safe.bareRepository=explicit`` git uses none that it was not pointed to.
"""

from __future__ import annotations

import os

from gitguardfs.base.findings import Result, Severity
from gitguardfs.base.walk import Unread
from gitguardfs.host.audit import rows
from gitguardfs.host.audit.git_config import EXPLICIT, Git

FIX = f"git config --global safe.bareRepository {EXPLICIT}"


def judge(value: str) -> Result:
    """Judge a user's safe.bareRepository; empty if it is not set."""
    detail = f"safe.bareRepository is {value or 'not set'}"
    if value == EXPLICIT:
        return rows.TRUST.ok(detail)
    return rows.TRUST.finding(detail, FIX, Severity.LOW)


def line() -> str | None:
    """Return one line on the git of this user, with the command that helps; None if unknown."""
    git = Git.installed(os.environ)
    if git is None:
        return None
    try:
        result = judge(git.bare_repositories())
    except Unread:
        return None
    return f"{result.title}: {result.detail}" + (f" ({result.hint})" if result.hint else "")
