"""``gitguard audit``: what could an agent use on the host without touching ``.git``?"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence

import click

from gitguardfs.base import columns, findings
from gitguardfs.base.constants import FSTYPE
from gitguardfs.base.errors import Exit, UserError
from gitguardfs.base.findings import Result
from gitguardfs.commands.command_line import CURRENT, FAIL_ON, JSON, Command, in_project
from gitguardfs.host.audit.audit import Audit
from gitguardfs.host.audit.git_config import Git
from gitguardfs.host.audit.search import search
from gitguardfs.host.audit.share import Share
from gitguardfs.names.rules import GuardRules, RuleSet
from gitguardfs.options import accounts
from gitguardfs.options.parsing import check_glob

SHOWN = 20
"""How many findings of one kind are printed, to fit a screen; --json lists all."""
EPILOG = """\b
Examples:
  gitguard audit                                the current directory
  gitguard audit ~/projects                     all repositories in it
  gitguard audit ~/projects --protect .husky    with a rule of the guard
  gitguard audit ~/projects --json --fail-on low

Run it on the host, on the directory itself, not on a guarded view of it. The audit changes nothing
and runs nothing of a repository: no hook, filter, alias, pager or fsmonitor. Run by root, it first
switches to the owner of PROJECT. docs/audit.md of the source has all kinds of findings.

\b
Exit codes: 0 done, 1 findings (--fail-on), 2 wrong usage, 3 anything else.
"""


@click.command(cls=Command, epilog=EPILOG)
@in_project(CURRENT)
@click.option(
    "--protect",
    metavar="GLOB",
    multiple=True,
    help="Names that the guard makes read-only: they are not reported. Repeatable.",
)
@click.option(
    "--deny", metavar="GLOB", multiple=True, help="Names that the guard denies. Repeatable."
)
@click.option(
    "--hide", metavar="GLOB", multiple=True, help="Names that the guard hides. Repeatable."
)
@JSON
@FAIL_ON
def command(
    project: str | None,
    protect: tuple[str, ...],
    deny: tuple[str, ...],
    hide: tuple[str, ...],
    as_json: bool,
    fail_on: str,
) -> int:
    """Find what an agent in PROJECT could use on the host without touching .git.

    Checks every repository in and below PROJECT: configuration, hooks and helpers that run files
    of the work tree, git directories in unusual places, symlinks that lead out of PROJECT,
    credentials and secrets. Each finding comes with its fix: a command, or a rule for the guard.
    """
    for glob in (*deny, *protect, *hide):
        check_glob(glob)
    guard = RuleSet(GuardRules(deny=deny, protect=protect, hide=hide))
    directory = project or "."
    top = _open(directory)
    progress = findings.ScanProgress(sys.stderr)
    try:
        _check_no_view(top, directory)
        git = _git(_become_owner(top))
        share = Share(os.path.realpath(directory), guard)
        audit = Audit(share, git, os.geteuid())
        results = search(audit, top, progress.say)
    finally:
        os.close(top)
        progress.line.clear()
    width = columns.width_of(sys.stdout)
    click.echo(findings.as_json(results) if as_json else as_text(results, width))
    return findings.exit_code(results, fail_on)


def as_text(results: Sequence[Result], width: int = columns.PIPED) -> str:
    """Return the results as a table with the first ``SHOWN`` of each kind, and a summary."""
    seen: Counter[str] = Counter()
    shown = []
    for result in results:
        seen[result.id] += 1
        if seen[result.id] <= SHOWN:
            shown.append(result)
    left = [f"{count - SHOWN} of {id}" for id, count in seen.items() if count > SHOWN]
    table, _, _ = findings.as_text(shown, width).rpartition("\n")
    more = [f"not shown: {', '.join(left)} (--json has them all)"] if left else []
    return "\n".join([table, *more, findings.summary(results)])


def _open(directory: str) -> int:
    try:
        return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"no such directory: {directory}") from None
    except OSError as error:
        raise UserError(f"{directory}: {error.strerror}", code=Exit.SYSTEM) from None


def _check_no_view(top: int, directory: str) -> None:
    """Raise UserError if ``top`` is in a guarded view, where ``.git`` cannot be read."""
    if sys.platform != "linux":
        return
    from gitguardfs.linux import mountinfo

    mount = next(iter(mountinfo.stack_of(top)), None)
    if mount is not None and mount.fstype == FSTYPE:
        hint = "run it on the host, on the directory that is guarded"
        raise UserError(f"{directory} is a guarded view of a directory", hint, Exit.SYSTEM)


def _become_owner(top: int) -> dict[str, str]:
    """Switch for good to the directory's owner, if root runs this.

    Returns the environment by which git finds that user's configuration. Root's own are
    not the owner's: after a switch only the owner's home counts. The owner's git can use only files
    that the owner can read. And git, which parses files that the agent wrote, then has few rights.
    """
    st = os.fstat(top)
    if os.geteuid() != 0 or st.st_uid == 0:
        return dict(os.environ)
    account = accounts.find(str(st.st_uid))
    groups, gid, home = [st.st_gid], st.st_gid, "/"
    if account.exists:
        groups, gid = os.getgrouplist(account.name, account.gid), account.gid
        home = account.home
    os.setgroups(groups)
    os.setgid(gid)
    os.setuid(st.st_uid)
    return {"HOME": home}


def _git(environment: dict[str, str]) -> Git:
    git = Git.installed(environment)
    if git is None:
        raise UserError(
            "git is not installed", "install git: the audit uses its parser", Exit.SYSTEM
        )
    return git
