"""The report of ``gitguard fetch``: lines for a terminal, or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

from gitguardfs.base.errors import counted
from gitguardfs.host.fetch import bundle
from gitguardfs.host.fetch.merging import Merge, Outcome
from gitguardfs.host.fetch.summary import Branch, cut

SHORT = 10
"""The characters of a commit's id that are shown."""
FILES = 20
"""How many files of a branch are printed; --json lists more."""


@dataclass
class Report:
    """The report of one run, for the terminal and for --json."""

    repository: str
    agent: str
    """Prefix of the agent's branches."""
    bundle: dict[str, object] | None = None
    branches: list[Branch] = field(default_factory=list)
    tags: dict[str, str] = field(default_factory=dict)
    removed: dict[str, str] = field(default_factory=dict)
    """Removed refs, with their former commits."""
    merge: Merge | None = None
    commands: list[str] = field(default_factory=list)
    """Commands that show the branch, and those that take it."""
    notes: list[str] = field(default_factory=list)


def as_json(report: Report) -> str:
    """Return the report as one JSON object."""
    return json.dumps(asdict(report), indent=2, default=lambda one: one.value)


def as_text(report: Report) -> Iterator[str]:
    """Yield the lines of the report."""
    if report.bundle is not None:
        when = report.bundle["written"]
        yield f"{bundle.PATH}: written {report.bundle['age']}" + (f" ({when})" if when else "")
    for branch in report.branches:
        yield ""
        yield from _branch_lines(branch, report.agent)
    for name, value in report.tags.items():
        yield f"tag {name}: {value[:SHORT]} (refs/{report.agent}/tags/{name})"
    for name, value in report.removed.items():
        yield f"removed {name}, which was {value[:SHORT]}"
    if report.merge is not None:
        yield from ("", *_merge_lines(report.merge, report.agent))
    yield from report.notes
    if report.commands:
        yield "" if report.merge else "\nLook, then take:"
    yield from (line if report.merge else f"  {line}" for line in report.commands)


def _branch_lines(branch: Branch, agent: str) -> Iterator[str]:
    if branch.before is None:
        news = "new"
    elif branch.before == branch.commit:
        news = "as at the last fetch"
    else:
        news = f"was {branch.before[:SHORT]}"
    line = f"{agent}/{branch.name}: {branch.commit[:SHORT]}, {news}"
    if branch.ahead is not None:
        line += f"; {counted(branch.ahead, 'commit')} that {branch.base or 'you'} "
        line += "does not have" if branch.base else "do not have"
        if branch.behind:
            line += f", {branch.behind} behind"
    yield line
    if branch.left_out:
        yield f"  {branch.left_out}"
    for commit in branch.commits:
        yield f"  {commit.id[:SHORT]} {commit.subject} ({commit.author})"
    if branch.commits and (more := (branch.ahead or 0) - len(branch.commits)) > 0:
        yield f"  and {counted(more, 'commit')} before"
    width = max((len(one.path) for one in branch.files[:FILES]), default=0)
    for file in branch.files[:FILES]:
        lines = "binary" if file.added is None else f"+{file.added} -{file.deleted}"
        yield f"    {file.path:<{width}}  {lines}"
    if branch.changed:
        added = sum(one.added or 0 for one in branch.files)
        deleted = sum(one.deleted or 0 for one in branch.files)
        more_lines = " at least" if branch.changed > len(branch.files) else ""
        yield f"    {counted(branch.changed, 'file')}, +{added} -{deleted}{more_lines}"
    for warning in branch.warnings:
        yield f"  look at {warning}"


def _merge_lines(merged: Merge, agent: str) -> Iterator[str]:
    agents = f"{agent}/{merged.branch}"
    if merged.outcome is Outcome.CONFLICT:
        yield f"{agents} was not merged into {merged.into}: conflicts, and nothing was changed"
        yield from (f"  {cut(name)}" for name in merged.conflicts)
        return
    commit = (merged.commit or "")[:SHORT]
    words = {
        Outcome.UP_TO_DATE: f"{merged.into} has all of {agents} already",
        Outcome.FAST_FORWARD: f"{merged.into} is {agents} now: {commit}",
        Outcome.MERGED: f"{agents} is merged into {merged.into}: {commit}",
    }
    yield f"{words[merged.outcome]}; no file was written, git status says what differs"
    if merged.unsigned:
        yield "the merge is not signed; git commit --amend --no-edit -S signs it"
