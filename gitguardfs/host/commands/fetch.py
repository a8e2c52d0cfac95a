"""``gitguard fetch``: takes an agent's commits, as hostile input."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import tempfile
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

import click

from gitguardfs.base.errors import Exit, GitguardExit, UserError, counted, shown
from gitguardfs.base.quote import shell_printable
from gitguardfs.commands.command_line import CURRENT, Command
from gitguardfs.host.commands.shared_options import size
from gitguardfs.host.fetch import bundle, merging, summary
from gitguardfs.host.fetch.bundle import HEADS, TAGS, Written
from gitguardfs.host.fetch.git import LISTING, WRITING, GitError, HostRepository, find_repository
from gitguardfs.host.fetch.merging import Outcome
from gitguardfs.host.fetch.quarantine import quarantined
from gitguardfs.host.fetch.report import Report, as_text
from gitguardfs.host.fetch.report import as_json as report_json
from gitguardfs.host.fetch.summary import Branch

WHOLE = (40, 64)
"""The digits of an id: an agent can make two commits that begin with the same ten."""
OLD = 3600
"""After how many seconds a file that says that nothing is new may be wrong."""
REMOVALS, PAUSE = 100, 0.1
"""How often, and after how many seconds, the directory for a fetch is removed again."""
EPILOG = """\b
The whole way:
  (guest) git commit -am 'Mend it'      the agent's own git, by --git private
  (host)  gitguard fetch                checks it, says what came: agent/main
  (host)  git log -p main..agent/main   look before you take it
  (host)  gitguard fetch --merge main   take it into the branch you are on
  (host)  git push                      your remotes never were the agent's
  (guest) git sync                      the agent goes on from there

Nothing of your work tree is written: the files are there already. Without
--merge nothing but refs/remotes/agent and refs/agent/tags changes. A branch that
the agent has deleted goes there, too, unless you name BRANCHes. A bundle that is
not as git writes it is refused as a whole. docs/private-git.md says more.

\b
Exit codes: 0 done, 1 a conflict, 2 wrong usage, 3 anything else.
"""


@click.command(cls=Command, epilog=EPILOG)
@click.argument("place", metavar="[PROJECT]", required=False)
@click.argument("branches", metavar="[BRANCH...]", nargs=-1)
@click.option("--project", metavar="DIR", help="The same as PROJECT; all arguments are then"
              f" BRANCHes.  [default: {CURRENT}]")  # fmt: skip
@click.option("--merge", metavar="BRANCH", help="Then merge agent/BRANCH into the branch that is"
              " checked out: history and index move, no file is written.")  # fmt: skip
@click.option("--expect", metavar="COMMIT", help="With --merge: only if agent/BRANCH is this"
              " commit, the one that you have looked at, by its whole id.")  # fmt: skip
@click.option("--drop", is_flag=True, help="Remove the agent's refs and the bundle; with --merge"
              " after that, alone without fetching.")  # fmt: skip
@size("--limit", "The largest bundle that is read.", "512M")
@click.option("--json", "as_json", is_flag=True, help="Print one object.")
def command(
    place: str | None,
    branches: tuple[str, ...],
    project: str | None,
    merge: str | None,
    expect: str | None,
    drop: bool,
    limit: int,
    as_json: bool,
) -> int:
    """Fetch what an agent committed in its own repository (--git private).

    The agent's git writes its commits to PROJECT/.gitguard/agent.bundle. This command checks that
    file as hostile input and fetches its branches to agent/BRANCH. PROJECT is the repository of the
    current directory if you name none.
    """
    if project is not None and place is not None:
        branches = (place, *branches)
    repository = project or place or "."
    wanted = _Wanted(branches, merge, expect)
    if expect is not None and merge is None:
        hint = "gitguard fetch --merge BRANCH --expect COMMIT"
        raise UserError("--expect goes with --merge", hint)
    if expect is not None and len(expect) not in WHOLE:
        raise UserError("--expect takes the whole id of a commit", "gitguard fetch prints it")
    if drop and branches:
        raise UserError("--drop removes all branches of the agent's", "gitguard fetch --drop")
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup(1) ignores SIGHUP
            signal.signal(number, _interrupt)
    if not os.path.isdir(repository):
        branch = shlex.quote(shown(repository))
        hint = f"gitguard fetch --project . {branch} fetches a branch of that name"
        raise UserError(f"no such directory: {repository}", hint)
    found = find_repository(repository, os.environ)
    if found.agent in found.remotes():
        raise UserError(
            f"{found.top} has a remote called {found.agent}, whose branches would be overwritten",
            f"git remote rename {shell_printable([found.agent])} OTHER",
            Exit.SYSTEM,
        )
    report = Report(found.top, found.agent)
    argument = [] if repository == "." else [repository]
    written = commit = None
    code = GitguardExit.OK
    if merge is not None:
        merging.check_ready(found)
    if merge is not None or not drop:
        written, commit = _fetch(found, wanted, limit << 20, report)
    if merge is not None and commit is not None:
        report.merge = merging.merge(found, merge, commit)
        if report.merge.outcome is Outcome.CONFLICT:
            git = shell_printable(["git", *(["-C", *argument] if argument else [])])
            report.commands = list(merging.by_hand(found.short(found.remote + merge), git))
            code, drop = GitguardExit.FINDINGS, False
    if drop:
        try:
            _drop(found, written, report)
        except (UserError, OSError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            report.notes.append(f"{os.path.join(found.top, bundle.PATH)} stays: {why}")
            code = GitguardExit.FAILED
    elif merge is None:
        report.commands = list(_commands(found, report.branches, argument))
    click.echo(report_json(report) if as_json else "\n".join(as_text(report)))
    return code


@dataclass(frozen=True)
class _Wanted:
    """The branches that the user has named, and the commit that one of them has to be."""

    branches: tuple[str, ...]
    merge: str | None
    expect: str | None

    @property
    def names(self) -> tuple[str, ...]:
        """All names."""
        return (*self.branches, *([self.merge] if self.merge else []))


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt  # so that the quarantine is removed


def _fetch(
    repository: HostRepository, wanted: _Wanted, limit: int, report: Report
) -> tuple[Written, str | None]:
    """Fetch, and fill the report; return the bundle's date and the commit to merge.

    Raises UserError.
    """
    own = (repository.remote, repository.agent_tags)
    with (
        _scratch() as directory,
        tempfile.TemporaryFile(dir=directory) as copy,
    ):
        written = bundle.copy(repository.top, copy, limit)
        header = bundle.parse(copy)
        new = header.named(HEADS)
        found = new | _taken(repository, new, wanted)
        _check_named(found, wanted, repository.agent)
        before = repository.refs(*own)
        taken = set(wanted.names) & new.keys() if wanted.branches else None
        if header.refs and taken != set():
            with quarantined(repository, header, copy, directory, limit) as quarantine:
                branches = summary.summarise(quarantine, repository)
                quarantine.take(repository, taken)
            report.branches = [one for one in branches if taken is None or one.name in taken]
            report.tags = header.named(TAGS) if taken is None else {}
    report.bundle = {
        "path": bundle.PATH,
        "written": _date(written.time),
        "age": summary.age(written.time, time.time()),
        "size": written.size,
    }
    if former := bundle.former(repository.top):
        report.notes.append(
            f"{counted(former, 'file')} {bundle.DIRECTORY}/former-*.bundle: commits of an earlier"
            " repository of the agent's, which its new one could not take over. In the guest,"
            " gitguard private list says whether it is still there"
        )
    if header.refs:
        known = [one for one in wanted.branches if one not in new]
        report.notes += [f"nothing new: you have all of {one}" for one in known]
    else:
        _note_nothing_new(repository, written, wanted.branches, report)
    _keep_tags(repository, before)
    after = repository.refs(*own)
    report.removed |= {name: value for name, value in before.items() if name not in after}
    return written, found.get(wanted.merge or "")


def _keep_tags(repository: HostRepository, before: dict[str, str]) -> None:
    """Restore tags that are not in the bundle because the human has their commits by now."""
    tags = {name: one for name, one in before.items() if name.startswith(repository.agent_tags)}
    after = repository.refs(repository.agent_tags)
    gone = {name: one for name, one in tags.items() if name not in after}
    light = {name: one for name, one in gone.items() if repository.commit(one) == one}
    kept = _merged(repository, light)
    _create([f"create {name} {value}\n" for name, value in kept.items()], repository)


def _create(lines: list[str], repository: HostRepository) -> None:
    """Make refs; pass over those that conflict with another ref."""
    given = "".join(lines).encode()
    try:
        repository.git.run("update-ref", "--stdin", given=given, limits=WRITING)
    except GitError:
        if half := len(lines) // 2:
            _create(lines[:half], repository)
            _create(lines[half:], repository)


def _date(seconds: float) -> str | None:
    try:
        return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):  # the agent may write any time
        return None


def _taken(repository: HostRepository, new: Container[str], wanted: _Wanted) -> dict[str, str]:
    """Return the commits of branches that are not in the bundle since the human has all of them.

    The branch to merge has to be in HEAD. Raises GitError.
    """
    refs = repository.refs(repository.remote, HEADS)
    known = {
        name: refs.get(repository.remote + name) or refs.get(HEADS + name, "")
        for name in wanted.names
        if name not in new
    }
    found = _merged(repository, {name: commit for name, commit in known.items() if commit})
    if wanted.merge in found:
        has, head = found.pop(wanted.merge), repository.commit("HEAD")
        commit = has if wanted.expect is None else repository.commit(wanted.expect)
        if commit and head and merging.is_within(repository, commit, head):
            found[wanted.merge] = commit
    return found


def _merged(repository: HostRepository, refs: dict[str, str]) -> dict[str, str]:
    """Return the refs whose commits the human's branches and tags have. Raises GitError."""
    if not refs:
        return {}
    own = repository.refs(HEADS, TAGS).values()
    given = "".join(f"{one}\n" for one in [*refs.values(), *(f"^{one}" for one in own)])
    beyond = repository.git.run("rev-list", "--stdin", given=given.encode(), limits=LISTING)
    kept = set(beyond.text.split("\n"))
    return {name: value for name, value in refs.items() if value not in kept}


def _note_nothing_new(
    repository: HostRepository, written: Written, names: tuple[str, ...], report: Report
) -> None:
    """Remove the branches that the human has merged, unless some are named; keep the others.

    The agent's hook writes a bundle without branches once the human has all of them. Raises
    GitError.
    """
    if not report.notes:
        report.notes.append("nothing new: the agent has no commit that you do not have")
    if time.time() - written.time > OLD:
        report.notes.append(
            "if it has committed since then: a tool like husky can switch its hook off; in the"
            " guest: git sync"
        )
    branches = repository.refs(repository.remote)
    merged = _merged(repository, branches)
    if not names:
        _delete(merged, repository, report)
    for name in branches.keys() - merged.keys():
        branch = name.removeprefix("refs/remotes/")
        report.notes.append(f"{branch} stays, since you have not merged it; --drop removes it")


def _delete(refs: dict[str, str], repository: HostRepository, report: Report) -> None:
    lines = "".join(f"delete {name} {value}\n" for name, value in refs.items())
    repository.git.run("update-ref", "--stdin", given=lines.encode(), limits=WRITING)
    report.removed |= refs


@contextmanager
def _scratch() -> Iterator[str]:
    """Make a temporary directory; remove it even if a killed git still writes there."""
    directory = tempfile.mkdtemp(prefix="gitguard-fetch-")
    try:
        yield directory
    finally:
        for _ in range(REMOVALS):
            shutil.rmtree(directory, ignore_errors=True)
            if not os.path.lexists(directory):
                break
            time.sleep(PAUSE)


def _check_named(found: dict[str, str], wanted: _Wanted, agent: str) -> None:
    for name in wanted.names:
        if name not in found:
            there = ", ".join(list(found)[:20])
            raise UserError(f"the agent has no branch {name} with commits of its own",
                            f"there is {there or 'none'}", Exit.SYSTEM)  # fmt: skip
    merge, expect = wanted.merge, wanted.expect
    if merge and expect and found[merge] != expect.lower():
        raise UserError(
            f"{agent}/{merge} is {found[merge]} now, not {expect}",
            "the agent has gone on: gitguard fetch says what came",
            Exit.SYSTEM,
        )


def _drop(repository: HostRepository, written: Written | None, report: Report) -> None:
    """Remove the agent's refs and the bundle, unless the agent has written a new one meanwhile.

    In the main work tree the refs of work trees that are gone go, too. Raises GitError, OSError.
    """
    own = repository.refs(repository.remote, repository.agent_tags)
    _delete(own | repository.left_refs(), repository, report)
    if not bundle.remove(repository.top, written):
        report.notes.append("the agent has written a new bundle meanwhile: it stays")


def _commands(
    repository: HostRepository, branches: list[Branch], argument: list[str]
) -> Iterator[str]:
    """Yield commands that show and take the branch that the human is on, or else the first."""
    head = repository.head()
    branch = next((one for one in branches if one.name == head), next(iter(branches), None))
    if branch is None:
        return
    git = ["git", "-C", *argument] if argument else ["git"]
    agents = repository.short(repository.remote + branch.name)
    base = repository.short(HEADS + branch.base) if branch.base == branch.name else branch.base
    yield shell_printable([*git, "log", "-p", f"{base}..{agents}" if base else agents])
    if base:
        yield shell_printable([*git, "diff", f"{base}...{agents}"])
    words = [*argument, "--merge", branch.name, "--expect", branch.commit]
    yield shell_printable(["gitguard", "fetch", *words])
    if branch.behind == 0 and branch.base == (branch.name if branch.name == head else "HEAD"):
        # Else it would take the human's own commits off.
        yield shell_printable([*git, "reset", agents])
