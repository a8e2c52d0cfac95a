"""``gitguard fetch``: take what an agent committed, as hostile input."""

from __future__ import annotations

import json
import os
import shlex
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime

import click

from gitguardfs.command_line import Command
from gitguardfs.errors import Exit, GitguardExit, UserError, counted, shown
from gitguardfs.fetch import bundle, merging, summary
from gitguardfs.fetch.bundle import HEADS, TAGS, Written
from gitguardfs.fetch.git import HostRepository, find_repository
from gitguardfs.fetch.merging import Merge, Outcome
from gitguardfs.fetch.quarantine import AGENT_TAGS, REMOTE, quarantined
from gitguardfs.fetch.summary import Branch
from gitguardfs.render.size import mebibytes

SHORT = 10
"""The characters of a commit's id that are shown."""
FILES = 20
"""How many files of a branch are printed; --json lists more."""
EPILOG = """\b
The whole way:
  (guest) git commit -am 'Mend it'      the agent's own git, by --git private
  (host)  gitguard fetch                checks it, says what came: agent/main
  (host)  git log -p main..agent/main   look before you take it
  (host)  gitguard fetch --merge main   take it into the branch that you are on
  (host)  git push                      your remotes never were the agent's
  (guest) git sync                      the agent goes on from there

Nothing of your work tree is written: the files are there already. Without
--merge nothing but refs/remotes/agent and refs/agent/tags changes. A branch that
the agent has deleted goes there, too, unless you name BRANCHes. A bundle that is
not as git writes it is refused as a whole. docs/private-git.md says more.

\b
Exit codes: 0 done, 1 a conflict, 2 wrong usage, 3 anything else.
"""


@dataclass
class Report:
    """What was done, for the terminal and for --json."""

    repository: str
    bundle: dict[str, object] | None = None
    branches: list[Branch] = field(default_factory=list)
    tags: dict[str, str] = field(default_factory=dict)
    removed: dict[str, str] = field(default_factory=dict)
    """Refs that are gone, with the commits that they were."""
    merge: Merge | None = None
    commands: list[str] = field(default_factory=list)
    """What looks and what takes."""
    notes: list[str] = field(default_factory=list)


@click.command(cls=Command, epilog=EPILOG, context_settings={"max_content_width": 100})
@click.argument("repository", metavar="[REPO]", default=".")
@click.argument("branches", metavar="[BRANCH]...", nargs=-1)
@click.option("--merge", metavar="NAME", help="Then merge agent/NAME into the branch that is"
              " checked out: history and index move, no file is written.")  # fmt: skip
@click.option("--expect", metavar="COMMIT", help="With --merge: only if agent/NAME is this commit,"
              " the one that you have looked at.")  # fmt: skip
@click.option("--drop", is_flag=True, help="Remove the agent's refs and the bundle; with --merge"
              " after that, alone without fetching.")  # fmt: skip
@click.option("--limit", metavar="SIZE", default="512M", show_default=True,
              help="The largest bundle that is read.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one object.")
def command(
    repository: str,
    branches: tuple[str, ...],
    merge: str | None,
    expect: str | None,
    drop: bool,
    limit: str,
    as_json: bool,
) -> int:
    """Fetch what an agent committed in its own repository (--git private).

    The agent's git writes its commits to REPO/.gitguard/agent.bundle. This command checks that file
    as hostile input and fetches its branches to agent/BRANCH. REPO is the repository of the current
    directory if you name none.
    """
    most = mebibytes(limit, "--limit") << 20
    _check_usage(branches, merge, expect, drop)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    if not os.path.isdir(repository):
        hint = f"gitguard fetch . {shlex.quote(shown(repository))} fetches a branch of that name"
        raise UserError(f"no such directory: {repository}", hint)
    found = find_repository(repository, os.environ)
    _check_remote(found)
    report = Report(found.top)
    git = "git" if repository == "." else shlex.join(["git", "-C", shown(repository)])
    if not drop or merge is not None:
        if merge is not None:
            merging.check_ready(found)
        written = _fetch(found, branches, merge, expect, most, report)
        if merge is not None:
            report.merge = merging.merge(found, merge)
        else:
            report.commands = list(_commands(found, report.branches, repository, git))
    else:
        written = None
    code = GitguardExit.OK
    if report.merge is not None and report.merge.outcome is Outcome.CONFLICT:
        report.commands = list(merging.by_hand(report.merge, git))
        code = GitguardExit.FINDINGS
    elif drop:
        _drop(found, written, report)
    click.echo(_as_json(report) if as_json else "\n".join(_as_text(report)))
    return code


def _check_usage(
    branches: tuple[str, ...], merge: str | None, expect: str | None, drop: bool
) -> None:
    if expect is not None and merge is None:
        raise UserError("--expect goes with --merge", "gitguard fetch --merge NAME --expect COMMIT")
    if drop and branches:
        raise UserError("--drop removes all branches of the agent's", "gitguard fetch REPO --drop")


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt  # so that the quarantine is removed


def _check_remote(repository: HostRepository) -> None:
    """Raise UserError if the human has a remote of that name: its branches are in the same place."""
    pattern = r"^remote\.agent\.(url|fetch|pushurl)$"
    if repository.git.run("config", "--get-regexp", pattern, allowed=(0, 1)).code == 0:
        raise UserError(
            f"{repository.top} has a remote called agent, whose branches would be overwritten",
            "git remote rename agent OTHER",
            Exit.SYSTEM,
        )


def _fetch(
    repository: HostRepository,
    names: tuple[str, ...],
    merge: str | None,
    expect: str | None,
    limit: int,
    report: Report,
) -> Written:
    """Fetch, and note in the report what came. Raises UserError."""
    with (
        tempfile.TemporaryDirectory(prefix="gitguard-fetch-") as directory,
        tempfile.TemporaryFile(dir=directory) as copy,
    ):
        written = bundle.copy(repository.top, copy, limit)
        header = bundle.parse(copy)
        _check_named(header.named(HEADS), names, merge, expect)
        before = repository.refs(REMOTE, AGENT_TAGS)
        with quarantined(repository, header, copy, directory) as quarantine:
            branches = summary.summarise(quarantine, repository)
            wanted = {*names, merge} - {None} if names else None
            quarantine.take(repository, [one for one in wanted if one] if wanted else None)
    report.bundle = {
        "path": bundle.PLACE,
        "written": datetime.fromtimestamp(written.time).astimezone().isoformat(timespec="seconds"),
        "age": summary.age(written.time, time.time()),
        "size": written.size,
    }
    report.branches = [one for one in branches if wanted is None or one.name in wanted]
    report.tags = header.named(TAGS) if wanted is None else {}
    report.removed = summary.differences(before, repository.refs(REMOTE, AGENT_TAGS))
    return written


def _check_named(
    found: dict[str, str], names: tuple[str, ...], merge: str | None, expect: str | None
) -> None:
    """Raise UserError for a branch that is not in the bundle, or is not the expected commit."""
    for name in (*names, *([merge] if merge is not None else [])):
        if name not in found:
            there = ", ".join(list(found)[:20])
            raise UserError(f"the agent has no branch {name} with commits of its own",
                            f"there is {there or 'none'}", Exit.SYSTEM)  # fmt: skip
    if merge is not None and expect is not None:
        if len(expect) < 7 or not found[merge].startswith(expect.lower()):
            raise UserError(
                f"agent/{merge} is {found[merge][:SHORT]} now, not {expect}",
                "the agent has gone on: gitguard fetch says what came",
                Exit.SYSTEM,
            )


def _drop(repository: HostRepository, written: Written | None, report: Report) -> None:
    """Remove the agent's refs and the bundle, unless the agent has written a new one meanwhile."""
    if not bundle.remove(repository.top, written):
        report.notes.append("the agent has written a new bundle meanwhile: it stays")
    refs = repository.refs(REMOTE, AGENT_TAGS)
    lines = "".join(f"delete {name} {value}\n" for name, value in refs.items())
    repository.git.run("update-ref", "--stdin", given=lines.encode())
    report.removed |= refs


def _commands(
    repository: HostRepository, branches: list[Branch], place: str, git: str
) -> Iterator[str]:
    """Yield the commands that look at and take the branch that the human is on, or the first."""
    head = repository.git.run("symbolic-ref", "--quiet", "--short", "HEAD", allowed=(0, 1)).text
    branch = next((one for one in branches if one.name == head), next(iter(branches), None))
    if branch is None:
        return
    agents = repository.git.run(
        "for-each-ref", "--format=%(refname:short)", REMOTE + branch.name
    ).text  # agent/NAME, or more if the human has a branch of that name
    if branch.base is not None:
        yield f"{git} log -p {shlex.quote(f'{branch.base}..{agents}')}"
        yield f"{git} diff {shlex.quote(f'{branch.base}...{agents}')}"
    else:
        yield f"{git} log -p {shlex.quote(agents)}"
    words = [place] if place != "." else []
    words += ["--merge", branch.name, "--expect", branch.commit[:SHORT]]
    yield f"{shlex.join(['gitguard', 'fetch', *map(shown, words)])}    # or, by git alone:"
    yield f"{git} reset {shlex.quote(agents)}"


def _as_json(report: Report) -> str:
    return json.dumps(asdict(report), indent=2, default=lambda one: one.value)


def _as_text(report: Report) -> Iterator[str]:
    if report.bundle is not None:
        yield (
            f"{bundle.PLACE}: written {report.bundle['age']} ({report.bundle['written']}),"
            f" {counted(len(report.branches), 'branch').replace('branchs', 'branches')}"
        )
    for branch in report.branches:
        yield ""
        yield from _branch_lines(branch)
    for name, value in report.tags.items():
        yield f"tag {name}: {value[:SHORT]} ({AGENT_TAGS}{name})"
    for name, value in report.removed.items():
        yield f"removed {name}, which was {value[:SHORT]}"
    if report.merge is not None:
        yield from ("", *_merge_lines(report.merge))
    yield from report.notes
    if report.commands:
        yield ""
        if report.merge is None:
            yield "Look, then take:"
        yield from (f"  {line}" if report.merge is None else line for line in report.commands)


def _branch_lines(branch: Branch) -> Iterator[str]:
    if branch.before is None:
        news = "new"
    elif branch.before == branch.commit:
        news = "as at the last fetch"
    else:
        news = f"was {branch.before[:SHORT]}"
    line = f"agent/{branch.name}: {branch.commit[:SHORT]}, {news}"
    if branch.ahead is not None:
        line += f"; {counted(branch.ahead, 'commit')} that {branch.base or 'you'} "
        line += "does not have" if branch.base else "do not have"
        if branch.behind:
            line += f", {branch.behind} behind"
    yield line
    if branch.left_out:
        yield f"  {branch.left_out}"
        return
    for commit in branch.commits:
        yield f"  {commit.id[:SHORT]} {commit.subject} ({commit.author})"
    if (more := (branch.ahead or 0) - len(branch.commits)) > 0:
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


def _merge_lines(merged: Merge) -> Iterator[str]:
    agents = f"agent/{merged.branch}"
    if merged.outcome is Outcome.CONFLICT:
        yield f"{agents} was not merged into {merged.into}: conflicts, and nothing was changed"
        yield from (f"  {name}" for name in merged.conflicts)
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
