"""One run of ``gitguard audit``: its inputs, and its findings so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gitguardfs.base.findings import Result, Row, Severity
from gitguardfs.base.walk import Unread
from gitguardfs.host.audit import rows
from gitguardfs.host.audit.git_config import ConfigEntry, Git
from gitguardfs.host.audit.programs import Judge
from gitguardfs.host.audit.share import Share

BY_HAND = "run gitguard audit again while nobody works there, or read it as its owner"


@dataclass
class Audit:
    """The share, the user's git, and the findings."""

    share: Share
    git: Git
    uid: int
    """The user id of the host's user, who works with git there."""
    user_entries: Sequence[ConfigEntry] = ()
    """The user's and the system's configuration, which holds in every repository."""
    trusts_bare: bool = True
    """Whether git uses a bare repository that it finds by itself (safe.bareRepository)."""
    results: list[Result] = field(default_factory=list)
    work_trees: set[str] = field(default_factory=set)
    """Absolute paths of the directories that hold a ``.git``."""
    bare: set[str] = field(default_factory=set)
    """Absolute paths of the bare repositories in the share."""
    symlinks: dict[str, str] = field(default_factory=dict)
    """The texts of the symlinks in the share by their absolute paths."""
    dependencies: dict[str, None] = field(default_factory=dict)
    """Absolute paths of node_modules and the like (``dependencies``)."""

    @property
    def judge(self) -> Judge:
        """Return the judge of which configuration values lead to files that the agent can write."""
        return Judge(self.git, self.share)

    def report(self, row: Row, detail: str, fix: str, severity: Severity = Severity.HIGH) -> None:
        """Add a finding."""
        self.results.append(row.finding(detail, fix, severity))

    def unread(self, path: str, why: OSError | Unread) -> None:
        """Add a finding for a path that could not be read, since it may hide other findings."""
        reason = why.strerror if isinstance(why, OSError) else str(why)
        self.report(rows.READ, f"{path}: {reason}", BY_HAND, Severity.MEDIUM)
