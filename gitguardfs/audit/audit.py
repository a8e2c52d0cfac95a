"""One audit: what it goes by, and what it has found so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gitguardfs.audit import rows
from gitguardfs.audit.git_config import Entry, Git
from gitguardfs.audit.programs import Judge
from gitguardfs.audit.share import Share
from gitguardfs.audit.walk import Unread
from gitguardfs.findings import Result, Severity

BY_HAND = "run gitguard audit again when nobody works in there, or look at it as its owner"


@dataclass
class Audit:
    """The share, the user's git, and the findings."""

    share: Share
    git: Git
    uid: int
    """Of the user who works with git on the host."""
    user_entries: Sequence[Entry] = ()
    """What the user has set for all repositories."""
    trusts_bare: bool = True
    """Whether git goes by a bare repository that it comes across (safe.bareRepository)."""
    results: list[Result] = field(default_factory=list)
    work_trees: set[str] = field(default_factory=set)
    """Directories with a ``.git``."""

    @property
    def judge(self) -> Judge:
        """What tells which values of configuration lead to the agent."""
        return Judge(self.git, self.share)

    def add(self, result: Result) -> None:
        """Note a finding."""
        self.results.append(result)

    def unread(self, path: str, why: OSError | Unread) -> None:
        """Note that something could not be looked at: a finding, since it may hide others."""
        said = why.strerror if isinstance(why, OSError) else str(why)
        self.add(rows.READ.finding(f"{path}: {said}", BY_HAND, Severity.MEDIUM))
