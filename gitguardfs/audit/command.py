"""``gitguard audit``: what could an agent use on the host without touching ``.git``?"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence

import click

from gitguardfs import accounts, findings
from gitguardfs.audit.audit import Audit
from gitguardfs.audit.git_config import SEARCH_PATH, Git
from gitguardfs.audit.search import search
from gitguardfs.audit.share import Share
from gitguardfs.errors import Exit, UserError
from gitguardfs.findings import Result
from gitguardfs.guard.rules import Guard, Rules

SHOWN = 20
"""Findings of one kind that are printed; --json has them all."""
EVERY = 0.1
"""Seconds between two words about the progress."""
EPILOG = """\b
Examples:
  gitguard audit ~/projects
  gitguard audit ~/projects --protect .husky    with a rule of the guard
  gitguard audit ~/projects --json --fail-on low

It runs on the host, over the directory itself and not over a guarded view of it. It changes
nothing, and runs nothing of a repository: no hook, filter, alias, pager or fsmonitor. Root becomes
the owner of DIR first.

\b
Exit codes: 0 nothing found, 1 findings, 2 wrong usage, 3 anything else.
"""


@click.command(epilog=EPILOG, context_settings={"max_content_width": 100})
@click.argument("directory", metavar="DIR")
@click.option(
    "--protect",
    metavar="GLOB",
    multiple=True,
    help="Names that the guard lets nobody change: they are no finding. Repeatable.",
)
@click.option(
    "--deny", metavar="GLOB", multiple=True, help="Names that the guard denies. Repeatable."
)
@click.option(
    "--hide", metavar="GLOB", multiple=True, help="Names that the guard hides. Repeatable."
)
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
@click.option(
    "--fail-on",
    type=click.Choice(findings.SEVERITIES),
    default="medium",
    show_default=True,
    help="Exit with 1 for findings of this severity and above.",
)
def command(
    directory: str,
    protect: tuple[str, ...],
    deny: tuple[str, ...],
    hide: tuple[str, ...],
    as_json: bool,
    fail_on: str,
) -> int:
    """Find what an agent in DIR could use on the host without touching .git.

    Looks at every repository below DIR: configuration, hooks and helpers that run files of the
    work tree, git directories in odd places, symlinks that lead out, credentials and secrets. Each
    finding comes with what mends it: a command, or a rule for the guard.
    """
    guard = Guard(Rules(deny=deny, protect=protect, hide=hide))
    top = _open(directory)
    progress = Progress()
    try:
        _check_no_view(top, directory)
        git = _git(_become_owner(top))
        share = Share(os.path.realpath(directory), guard)
        audit = Audit(share, git, os.geteuid())
        results = search(audit, top, progress.say)
    finally:
        os.close(top)
        progress.clear()
    click.echo(findings.as_json(results) if as_json else as_text(results))
    return findings.exit_code(results, fail_on)


class Progress:
    """Says on a terminal how far the walk is, a few times a second."""

    def __init__(self) -> None:
        self._line = findings.Progress(sys.stderr)
        self._next = 0.0

    def say(self, names: int, directory: str) -> None:
        """Tell what is looked at, if nothing was told just now."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + EVERY
            self._line.say(f"{names} names, {directory}")

    def clear(self) -> None:
        """Take the line away."""
        self._line.clear()


def as_text(results: Sequence[Result]) -> str:
    """Return the results as a table, of each kind the first ones."""
    seen: Counter[str] = Counter()
    shown = []
    for result in results:
        seen[result.id] += 1
        if seen[result.id] <= SHOWN:
            shown.append(result)
    left = [f"{count - SHOWN} of {id}" for id, count in seen.items() if count > SHOWN]
    table, _, _ = findings.as_text(shown).rpartition("\n")
    more = [f"not shown: {', '.join(left)} (--json has them all)"] if left else []
    return "\n".join([table, *more, findings.summary(results)])


def _open(directory: str) -> int:
    """Return a descriptor of the shared directory; raises UserError."""
    try:
        return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"no such directory: {directory}", code=Exit.SYSTEM) from None
    except OSError as error:
        raise UserError(f"{directory}: {error.strerror}", code=Exit.SYSTEM) from None


def _check_no_view(top: int, directory: str) -> None:
    """Raise UserError for a guarded view, where ``.git`` cannot be read, or not even be seen."""
    if sys.platform != "linux":
        return
    from gitguardfs.linux import mountinfo

    mount = next(iter(mountinfo.stack_of(top)), None)
    if mount is not None and mount.fstype == mountinfo.FSTYPE:
        hint = "give the directory that is guarded, on the host"
        raise UserError(f"{directory} is a guarded view of a directory", hint, Exit.SYSTEM)


def _become_owner(top: int) -> dict[str, str]:
    """Become the owner of the directory for good, if this is root.

    Returns where the configuration of the user is who then looks at everything. What root may read
    and the owner may not is of no use to the owner's git, and git parses what the agent has written
    as a user that may do little.
    """
    st = os.fstat(top)
    if os.geteuid() != 0 or st.st_uid == 0:
        return {key: os.environ[key] for key in ("HOME", "XDG_CONFIG_HOME") if key in os.environ}
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
    """Return the git that parses configuration; raises UserError."""
    program = shutil.which("git", path=SEARCH_PATH)
    if program is None:
        raise UserError("git is not installed", "its parser is needed", Exit.SYSTEM)
    home = environment.get("HOME", "/")
    return Git(program, home if home.startswith("/") else "/", environment.get("XDG_CONFIG_HOME"))
