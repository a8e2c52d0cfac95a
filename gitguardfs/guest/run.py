"""The command ``vm-mount``: mounts and guards a host's share, now and at every boot."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import click

import gitguardfs
from gitguardfs.base.command_line import LOCAL, RespelledCommand
from gitguardfs.base.errors import Exit, UserError, shown
from gitguardfs.base.installation import command as this_gitguardfs
from gitguardfs.doctor import privilege_checks
from gitguardfs.doctor.context import CheckedSystem, find_user
from gitguardfs.guest import (
    facts,
    mountpoint,
    plan_boot,
    plan_guard,
    plan_removal,
    plan_share,
    report,
    seeding,
)
from gitguardfs.guest.facts import Facts, SystemPaths
from gitguardfs.guest.plan_share import MountRequest, Style
from gitguardfs.guest.transaction import Step, Transaction
from gitguardfs.linux.programs import ENVIRONMENT
from gitguardfs.names.rules import GitMode
from gitguardfs.options.guarded_share import MODULES as TRANSPORT_MODULES
from gitguardfs.options.guarded_share import GuardedShare, owner_map, with_local
from gitguardfs.options.parsing import split_values

MODULES = (*dict.fromkeys(chain(*TRANSPORT_MODULES.values())), "9p", "fuse")

EPILOG = """\b
Examples:
  sudo vm-mount --tag projects --map-mount /home/agent/projects
  sudo vm-mount --tag projects --map-mount /home/agent/projects --local deps
  sudo vm-mount --tag projects -m /mnt/raw -mm /home/agent/src --style fstab
  sudo vm-mount -mm /home/agent/share -o git=deny,hide=.env
  sudo vm-mount --remove --tag projects

docs/guest.md of the source says what is written, and what is refused.

\b
Exit codes, as of mount(8): 0 done, 1 wrong usage, 2 an error of the system,
32 a mount failed.
"""


@dataclass(frozen=True)
class Arguments:
    """The command line; paths and names as they were typed."""

    tag: str | None = None
    mount: str | None = None
    map_mount: str | None = None
    transport: str | None = None
    style: Style | None = None
    user: str | None = None
    options: tuple[str, ...] = ()
    persist: bool = True
    interactive: bool = False
    yes: bool = False
    git_off: bool = False
    dry_run: bool = False

    @property
    def asks(self) -> bool:
        """Return whether to ask before anything is changed."""
        return self.interactive and not self.yes


@click.command(
    cls=RespelledCommand,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--tag", metavar="TAG", help="The share's mount tag.  [default: share, if it is the only one]"
)
@click.option(
    "-m",
    "--mount",
    metavar="PATH",
    help="Where to mount the raw share.  [default: below /var/lib/gitguardfs, for root alone]",
)
@click.option("--map-mount", metavar="PATH", help="Where to mount the guarded view. Also -mm.")
@click.option(
    "--transport",
    type=click.Choice(["9p", "virtiofs"]),
    help="What carries the share.  [default: virtiofs if it has the tag, otherwise 9p]",
)
@click.option(
    "--style",
    type=click.Choice(["fstab", "systemd"]),
    help="What mounts it at boot.  [default: what does so already; otherwise systemd if it runs"
    " here, or else fstab]",
)
@click.option(
    "--user",
    metavar="USER",
    help="User to show as the owner (or UID:GID)."
    "  [default: owner of the home that the view is in]",
)
@click.option("--no-persist", is_flag=True, help="Mount now, and write nothing for the next boot.")
@click.option(
    "--interactive", is_flag=True, help="Ask for what is missing, and before changing anything."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask before changing anything.")
@click.option("--git-off", is_flag=True, help="Guard nothing: leave .git open to the agent.")
@LOCAL
@click.option("--dry-run", is_flag=True, help="Print what would be done; change nothing.")
@click.option(
    "--remove",
    "takes_away",
    is_flag=True,
    help="Unmount the view, and the share if vm-mount mounted it; delete their entries.",
)
@click.option(
    "-o",
    "o",
    metavar="OPTS",
    multiple=True,
    help="Further options for gitguardfs, with commas between: git=deny,hide=.env",
)
@click.version_option(gitguardfs.__version__, prog_name="vm-mount", message="%(prog)s %(version)s")
def command(
    takes_away: bool, no_persist: bool, o: tuple[str, ...], local: tuple[str, ...], **given: Any
) -> int:
    """Mount a directory of the host, with mapped owners and .git out of reach.

    The share is mounted where only root can reach it. Its owner is shown as the owner of the home
    that the view is in. In place of .git the agent gets a git repository of its own, if git is
    installed here; -o git=deny leaves it without. Entries in fstab or systemd units mount both at
    each boot. Run it again to change something. If a step fails, all finished steps are undone.
    """
    if os.geteuid() != 0:
        raise UserError("only root can mount and unmount shares", "sudo vm-mount ...", Exit.SYSTEM)
    options = with_local(split_values(o), local)
    arguments = Arguments(options=options, persist=not no_persist, **given)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)  # by an exception, so that finished steps are undone
    return remove(SystemPaths(), arguments) if takes_away else install(SystemPaths(), arguments)


def _leave(number: int, _frame: object) -> None:
    raise UserError(f"ended by {signal.Signals(number).name}", code=Exit.SYSTEM)


# Installing


def install(system: SystemPaths, arguments: Arguments) -> int:
    """Mount the share, guard it and write the entries for the next boot. Returns the exit code.

    Raises UserError; then all finished steps are undone.
    """
    if not arguments.dry_run:
        load_modules()
    program = _program(system)
    if len(program) == 1:
        system = replace(system, guard=program[0])
    state = facts.gather(system)
    request = _request(system, state, arguments, is_installed=len(program) == 1)
    with closing(request):
        return _install(system, state, request, arguments, program)


def _install(
    system: SystemPaths,
    state: Facts,
    request: MountRequest,
    arguments: Arguments,
    program: tuple[str, ...],
) -> int:
    first = plan_share.share_steps(system, state, request)
    # Plan everything before the first step: what is refused later would have to be undone.
    spec, second = _foresee(system, state, request, first, program)
    if arguments.dry_run or arguments.asks:
        _print(report.preview(state, spec, first, second))
        if arguments.dry_run:
            changed = bool(first or second)
            _print_result(state, request, spec, changed=changed, would=True)
            return Exit.OK
        _confirm(bool(first or second))
        state = facts.gather(system)  # it may have changed while the user was asked
        first = plan_share.share_steps(system, state, request)
        spec, second = _foresee(system, state, request, first, program)
    with Transaction(print_progress) as transaction:
        if first:
            transaction.apply(first)
            state = facts.gather(system)
            spec = _spec(state, request)
            second = plan_guard.guard_steps(system, state, request, spec, program)
        _print(report.lost_options(state, spec))
        transaction.apply(second)
    if second and request.policy is GitMode.PRIVATE:
        _print(seeding.seed(spec.map_mount))
        _print(seeding.unnamed(find_user(str(request.user[0]))))
    _print_result(state, request, spec, changed=bool(first or second))
    return Exit.OK


def _print_result(
    state: Facts, request: MountRequest, spec: GuardedShare, *, changed: bool, would: bool = False
) -> None:
    """Print what is mounted and guarded, and how the owner of the view can get round the guard."""
    _print(report.result(state, request, spec, changed=changed, would=would))
    if request.policy is not GitMode.OFF:
        owner = find_user(str(request.user[0]))
        _print(report.warnings(privilege_checks.ways_to_root(owner, CheckedSystem())))


def load_modules() -> None:
    """Load the kernel modules that make mount tags visible. Errors are ignored."""
    command = ["modprobe", "--quiet", "--all", *MODULES]
    try:
        subprocess.run(command, check=False, env=ENVIRONMENT, capture_output=True)
    except FileNotFoundError:  # a kernel without modules
        return


def _program(system: SystemPaths) -> tuple[str, ...]:
    """Return the command that runs gitguardfs: the installed program, or else this code."""
    installed = facts.guard_command(system)
    return tuple(this_gitguardfs()) if installed is None else (installed,)


def _request(
    system: SystemPaths, state: Facts, arguments: Arguments, *, is_installed: bool
) -> MountRequest:
    tag = arguments.tag or _ask_tag(state, arguments)
    place = arguments.map_mount or _ask(arguments, "Where should the guarded view be mounted?")
    if place is None:
        raise UserError("no mount point for the view", "--map-mount /home/agent/projects")
    if arguments.style == "systemd" and arguments.persist and not state.has_systemd:
        raise UserError("systemd does not run here", "--style fstab")
    if arguments.persist and not is_installed:
        raise UserError(
            "gitguardfs is not installed, so nothing could mount the view at boot",
            "guest-setup/install.sh, or --no-persist",
            Exit.SYSTEM,
        )
    paths = arguments.mount or _mount_of(system, state, tag), place
    mount, map_mount = mountpoint.resolve_all(paths, state.mounts)
    plan_share.check_not_of_the_system(map_mount.path)  # a home itself lies in no home
    style = arguments.style or plan_boot.style_of(state, map_mount.path)
    return MountRequest(
        tag=tag,
        mount=mount,
        map_mount=map_mount,
        user=facts.owner_of_view(map_mount.path, arguments.user),
        style=style if arguments.persist else "none",
        transport=arguments.transport,
        options=("git=off", *arguments.options) if arguments.git_off else arguments.options,
        git_off=arguments.git_off,
    )


def _mount_of(system: SystemPaths, state: Facts, tag: str) -> str:
    """Return where the share is mounted by us already, or the default mount point."""
    found = [one.mount for one in plan_removal.everything(state) if one.tag == tag]
    return found[0] if found else plan_share.default_mount(system, tag)


def _spec(state: Facts, request: MountRequest) -> GuardedShare:
    share = state.share_at(request.mount.path)
    if share is None:
        raise UserError(
            f"no share is mounted at {request.mount.path}, although mount succeeded",
            code=Exit.MOUNT,
        )
    owner = facts.owner_of_share(state, request.mount.path)
    return plan_share.with_owner(request, share.fstype, owner_map(owner, request.user))


def _foresee(
    system: SystemPaths,
    state: Facts,
    request: MountRequest,
    first: list[Step],
    program: tuple[str, ...],
) -> tuple[GuardedShare, list[Step]]:
    """Return the spec of the guarded share, and the steps of the second plan. Raises UserError.

    The share's owner is not known before it is mounted; until then it is assumed to be the user.
    """
    if first:
        state = plan_share.without_unmounted(state, request)
        transport = next(m.fstype for m in state.shares() if m.source == request.tag)
        spec = plan_share.with_owner(request, transport, owner_map(request.user, request.user))
    else:
        spec = _spec(state, request)
    return spec, plan_guard.guard_steps(system, state, request, spec, program)


# Removing


def remove(system: SystemPaths, arguments: Arguments) -> int:
    """Unmount view and share, and delete their entries. Returns the exit code.

    Raises UserError; then all finished steps are undone.
    """
    state = facts.gather(system)
    mount = arguments.mount and _resolved(arguments.mount)
    map_mount = arguments.map_mount and _resolved(arguments.map_mount)
    found = plan_removal.find(state, arguments.tag, mount, map_mount)
    steps = (
        [] if found is None else plan_removal.remove_steps(system, state, found, _program(system))
    )
    if found is None or not steps:
        there = ", ".join(map(str, plan_removal.everything(state)))
        print_progress(f"Nothing to remove{f': there is only {there}' if there else ''}.")
        return Exit.OK
    if arguments.dry_run or arguments.asks:
        _print(report.steps(steps))
        if arguments.dry_run:
            return Exit.OK
        _confirm(bool(steps))
    with Transaction(print_progress) as transaction:
        transaction.apply(steps)
    for path in found.map_mounts:
        _print(report.kept(plan_guard.options_of(state, path)))
    if why := plan_removal.left(system, state, found):
        print_progress(
            f"The share stays mounted at {found.mount}, open now to all who can enter it: {why}."
        )
    return Exit.OK


def _resolved(path: str) -> str:
    with closing(mountpoint.resolve(path)) as found:
        return found.path


# Output and questions


def print_progress(text: str) -> None:
    """Print lines, with unprintable characters escaped.

    Never raises: a closed pipe, a full disk or an ASCII locale must not stop a change halfway.
    """
    try:
        _echo(shown(text, keep="\n\t"))
    except (OSError, ValueError):  # ValueError: standard output is closed
        _discard_output()


def _echo(text: str) -> None:
    try:
        click.echo(text)
    except UnicodeEncodeError:
        click.echo(text.encode("ascii", "backslashreplace").decode())


def _discard_output() -> None:
    """Send all further output to /dev/null; otherwise Python reports an error when it exits."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print_progress(line)


def _confirm(changes: bool) -> None:
    if changes:
        click.confirm("Go on?", default=True, abort=True)


def _ask(arguments: Arguments, question: str, default: str | None = None) -> str | None:
    if not arguments.interactive:
        return default
    return str(click.prompt(question, default=default))


def _ask_tag(state: Facts, arguments: Arguments) -> str:
    try:
        return plan_share.default_tag(state)
    except UserError:
        if not arguments.interactive:
            raise
    print_progress(f"The kernel sees these shares: {state.tags.listing()}")
    return str(click.prompt("Tag of the share"))
