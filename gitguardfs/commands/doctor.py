"""The command ``gitguard doctor``: checks, as the agent's user, that a project is guarded."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import click

from gitguardfs.base import columns, findings, quote
from gitguardfs.base.constants import FSTYPE
from gitguardfs.base.errors import Exit, UserError
from gitguardfs.base.findings import Result, Row, Severity, Status
from gitguardfs.base.walk import Unread
from gitguardfs.commands.command_line import FAIL_ON, JSON, Command, in_project
from gitguardfs.doctor import (
    attack_checks,
    changes_check,
    link_checks,
    local_checks,
    mount_checks,
    other_mounts,
    partial_checks,
    policy_checks,
    privilege_checks,
    share_checks,
)
from gitguardfs.doctor.context import Check, CheckedSystem, Context, Table, find_user, read_table
from gitguardfs.linux import mountinfo, run_as
from gitguardfs.linux.run_as import SwitchUserFailed, User
from gitguardfs.linux.safe_open import open_directory, path_of
from gitguardfs.mounting import guards

EPILOG = """\b
Examples:
  sudo gitguard doctor                        all guards, as their owners
  sudo gitguard doctor /srv/src --user agent  one guard, as the user agent
  sudo gitguard doctor /srv/src --attack      also the attacks on .git
  gitguard doctor --host ~/projects           the host's side of a share
  gitguard vm doctor                          the guard of a VM, from its host

--attack makes a directory in the view for the attacks and removes it again. On existing
repositories it tries only attacks that do no harm if they succeed. Polkit is not checked.
docs/doctor.md of the source has all checks.

\b
Exit codes: 0 done, 1 findings (--fail-on), 2 wrong usage, 3 anything else.
"""

AUDIT = "gitguard audit PROJECT, for each directory that is shared"
MOUNTED = Row("guard.mounted", "a guard is mounted", "no guard is mounted")
AGENTS_USER = Row(
    "run.user", "the agent's user is known", "the agent's user is not known for certain"
)
TRIED = Row(
    "run.user", "checks can run as the agent's user", "no check could run as the agent's user"
)


@click.command(cls=Command, epilog=EPILOG)
@in_project("every guard of this system")
@click.option(
    "--user",
    metavar="USER",
    help="The agent's user, by name or number. Default: the owner of its view's root.",
)
@click.option("--host", is_flag=True, help="Check the host's side of what is shared.")
@click.option(
    "--attack",
    is_flag=True,
    help="Carry out the attacks on .git; they write into the project.",
)
@JSON
@FAIL_ON
def command(
    project: str | None, user: str | None, as_json: bool, host: bool, attack: bool, fail_on: str
) -> int:
    """Check, as the agent's user, that PROJECT is guarded and the guard cannot be bypassed.

    Checks the mount, tries to reach the raw share, and checks whether the user can become root.
    With --attack it also carries out the known attacks on .git.
    """
    if attack and host:
        raise click.UsageError("--attack is for a guard; with --host there is none to attack")
    leave = Leaving()
    for number in attack_checks.STOPPING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, leave)  # so that what was made is removed
    caller = os.environ.get("SUDO_UID") if os.geteuid() == 0 else str(os.geteuid())
    if not host and user is None:
        status = _of_vms(project, caller, as_json, attack, fail_on)
        if status is not None:
            return status
    progress = findings.ProgressLine(sys.stderr)
    try:
        if host:
            results = examine_host(project, user, caller, progress.say)
        else:
            results = examine(project, user, caller, attack=attack, say=progress.say)
    finally:
        progress.clear()
    if not attack and not host:
        results.append(attack_checks.UNTRIED.note(attack_checks.ON_REQUEST))
    if as_json:
        click.echo(findings.as_json(results))
    else:
        click.echo(findings.as_text(results, columns.width_of(sys.stdout)))
    if not attack and not host and not as_json:
        click.echo("attacks not tried (--attack)")
    if host and not as_json:
        click.echo(f"next: {quote.shell(['gitguard', 'audit', project]) if project else AUDIT}")
    return findings.exit_code(results, fail_on)


def _of_vms(
    project: str | None, caller: str | None, as_json: bool, attack: bool, fail_on: str
) -> int | None:
    """Check as on the host of VMs; return None if this is none. Raises UserError."""
    try:
        from gitguardfs.host.commands import doctor
    except ModuleNotFoundError:  # the copy of gitguardfs for guests
        return None
    return doctor.run(
        project, caller, as_json, attack, fail_on, lambda path: examine_host(path, None, caller)
    )


class Leaving:
    """A signal handler: the first signal ends the command, later ones are ignored.

    Thus no signal interrupts the removal of the scratch directory.
    """

    def __init__(self) -> None:
        """Make a handler that no signal has reached yet."""
        self._has_begun = False

    def __call__(self, number: int, _frame: object) -> None:
        """Handle a signal."""
        if self._has_begun:
            return
        self._has_begun = True
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)


def examine(
    path: str | None,
    user: str | None,
    caller: str | None,
    system: CheckedSystem | None = None,
    attack: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> list[Result]:
    """Run every check on one mount point, or on all guards. Raises UserError.

    ``caller`` is the uid, as text, of the user who called the command or sudo. Without ``attack``
    nothing is written into the project. ``say`` gets a line of progress before each check.
    """
    system = system or CheckedSystem()
    table = read_table()
    if path is not None:
        points = [_mountpoint(path, table)]
    else:
        points = list(dict.fromkeys(seen.path for seen in table if seen.fstype == FSTYPE))
    is_root = os.geteuid() == 0
    servers = guards.servers()
    results: list[Result] = []
    if not points:
        hint = "sudo vm-mount --tag TAG --map-mount PATH mounts one; --host checks the host's side"
        results = [MOUNTED.finding("this system has no gitguardfs mount", hint)]
        points = [""]
    for point in points:
        agent = choose_user(user, caller, owner_of(point, table), is_root, system)
        context = Context(point, agent, is_root, table, servers=servers, system=system, say=say)
        if context.guard is not None:
            context = replace(context, daemons=mount_checks.serving(context.guard, servers))
        if user is None and is_root:
            results += check_default_user(context, caller)
        about_git = attack_checks.check if attack else policy_checks.check
        results += _checked(context, about_git)
        if path is not None:
            for other in other_mounts.other_guards(context):
                say(f".git in {other}")
                results += _tried(about_git, replace(context, mountpoint=other))
    return list(dict.fromkeys(results))


def _checked(context: Context, about_git: Check) -> list[Result]:
    results = _note_left_out(context)
    usable = False
    if context.mountpoint:
        context.say(f"the mount at {context.mountpoint}")
        about_mount = _tried(mount_checks.check, context) + other_mounts.note_mounts_inside(context)
        results += [*about_mount, other_mounts.check_foreign(context)]
        results += link_checks.check_option(context)
        usable = any(r.id == "guard.answers" and r.status is Status.OK for r in about_mount)
    checks: dict[str, Check] = {
        "the raw share": share_checks.check,
        "directories of the guest's own": local_checks.check,
        "partial clones": partial_checks.check,
        "changes on the host": changes_check.check,
        "privileges": privilege_checks.check,
    }
    if usable:
        checks[f".git in {context.mountpoint}"] = about_git
    for what, check in checks.items():
        context.say(what)
        results += _tried(check, context)
    return results


def _tried(check: Check, context: Context) -> list[Result]:
    """Run a check; return one finding, the same for all checks, if switching the user failed."""
    try:
        return check(context)
    except SwitchUserFailed as error:
        return [untried(error)]


def untried(error: SwitchUserFailed) -> Result:
    """Return the finding that no check can run as the agent's user."""
    hint = "run it as root of the system itself, not of a container or a user namespace"
    return TRIED.finding(f"could not be checked: {error}", hint, Severity.MEDIUM)


def _note_left_out(context: Context) -> list[Result]:
    """Return a note on which checks are left out, for lack of a user or of root's rights."""
    if context.user is None:
        hint = "sudo gitguard doctor --user NAME, with the user that the agent runs as"
        return [AGENTS_USER.note("only the mount was checked", hint, AGENTS_USER.failed)]
    if not context.is_root:
        why = (
            "not checked: the daemon's process, other mount namespaces, files that only root reads"
        )
        title = f"checks run as {context.user.name}, without root's rights"
        return [AGENTS_USER.note(why, "run it with sudo", title)]
    return []


def check_default_user(context: Context, caller: str | None) -> list[Result]:
    """Return a finding if the owner of the view is no user of this system.

    Return a note if another user called sudo: usually the owner is the agent's user, and the
    caller the one who has sudo.
    """
    user = context.user
    if user is None:
        return []
    again = quote.shell(["sudo", "gitguard", "doctor", context.mountpoint, "--user"])
    if not user.has_account:
        why = f"{context.mountpoint} belongs to uid {user.uid}, which has no account here"
        hint = (
            f"{again} NAME, with the user that the agent runs as; mount it with --map for that user"
        )
        return [AGENTS_USER.finding(why, hint, Severity.MEDIUM)]
    if caller not in (None, "0", str(user.uid)):
        why = f"{context.mountpoint} belongs to {user.name}"
        hint = f"if the agent runs as another user: {again} NAME"
        return [AGENTS_USER.note(why, hint, f"checked as {user.name}, the owner of the view")]
    return []


def _mountpoint(given: str, table: Table) -> str:
    """Return the mount point of the guard that a path lies in, else the resolved path.

    The path is resolved by descriptors, so that no user can lead root to another guard by a
    symlink. A mount point itself is not accessed: it may be dead, or hang. Raises UserError.
    """
    path = os.path.abspath(given)
    listed = {seen.path for seen in table}
    if path in listed:
        return path
    parent, name = os.path.split(path)
    with _opened(parent, given) as fd:
        inside = os.path.join(path_of(fd), name)
    if inside in listed:
        return inside
    with _opened(path, given) as fd:
        number, resolved = mountinfo.number_of(fd), path_of(fd)
    around = next((seen for seen in table if seen.mnt_id == number), None)
    return around.path if around is not None and around.fstype == FSTYPE else resolved


@contextmanager
def _opened(path: str, given: str) -> Iterator[int]:
    """Open a directory for the body. Raises UserError, which names the ``given`` path."""
    try:
        fd = open_directory(path, os.geteuid() == 0)
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"no such directory: {given}") from None
    except OSError as error:
        raise UserError(f"{given}: {error.strerror}", code=Exit.SYSTEM) from None
    try:
        yield fd
    finally:
        os.close(fd)


def choose_user(
    name: str | None, caller: str | None, owner: str | None, is_root: bool, system: CheckedSystem
) -> User | None:
    """Return the user to check as: ``name``, the owner of the view's root, or the caller.

    Returns None if none of them is known. Raises UserError for root, and if switching to the user
    takes root's rights.
    """
    if name is None and not is_root:
        name = caller
    name = name or owner or (caller if caller != "0" else None)
    if name is None:
        return None
    user = find_user(name, system.groups_of)
    if user.uid == 0:
        raise UserError(
            "root reaches the raw share by design",
            "--user NAME, with the user that the agent runs as",
        )
    if not is_root and user.uid != os.geteuid():
        raise UserError(f"only root can switch to {user.name}", "run it with sudo", Exit.SYSTEM)
    return user


def owner_of(mountpoint: str, table: Table) -> str | None:
    """Return the uid, as text, of the owner of the view's root; None if that is root.

    If the view does not answer: of the mounting user, unless root; then of its parent directory.
    """
    top = mountinfo.top_at(mountpoint, table)
    options = top.all_options if top is not None else frozenset[str]()
    mounter = next((o.removeprefix("user_id=") for o in options if o.startswith("user_id=")), "0")
    for path in (mountpoint, os.path.dirname(mountpoint)) if mountpoint else ():
        try:
            uid = str(run_as.run_as(_uid_of, path))
        except (OSError, run_as.NoAnswer):
            if mounter == "0":
                continue
            uid = mounter
        return uid if uid != "0" else None
    return None


def _uid_of(path: str) -> int:
    return os.stat(path).st_uid


def examine_host(
    path: str | None,
    user: str | None,
    caller: str | None,
    say: Callable[[str], None] = lambda _: None,
) -> list[Result]:
    """Run the checks of the host's side. Raises UserError."""
    directory, owner = None, caller or "0"
    if path is not None:
        with _opened(os.path.abspath(path), path) as fd:
            directory, owner = path_of(fd), str(os.fstat(fd).st_uid)
    name = user or owner
    found = find_user(name)
    if os.geteuid() not in (0, found.uid):
        if user is not None:
            raise UserError(f"only root can switch to {name}", "run it with sudo", Exit.SYSTEM)
        found = find_user(str(os.geteuid()))
    say("the host's side" + (f" of {directory}" if directory is not None else ""))
    try:
        from gitguardfs.host import doctor_checks as host_checks
    except ModuleNotFoundError:
        what = "doctor --host runs on the host, and this is the copy of gitguardfs for guests"
        raise UserError(what, "run it on the host", Exit.SYSTEM) from None

    def as_user(*call: Any) -> str:
        try:
            return str(run_as.run_as(*call, user=found))
        except run_as.NoAnswer as error:
            raise Unread(str(error)) from None

    try:
        return host_checks.check(directory, found.uid, as_user)
    except SwitchUserFailed as error:
        return [untried(error)]
