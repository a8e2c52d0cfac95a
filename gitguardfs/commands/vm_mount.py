"""The program ``vm-mount``: mounts and guards a host's share, now and at every boot."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import Any

import click

import gitguardfs
from gitguardfs.base.errors import Exit, UserError
from gitguardfs.commands.command_line import LOCAL, RespelledCommand
from gitguardfs.commands.run import run
from gitguardfs.doctor import privilege_checks
from gitguardfs.doctor.context import CheckedSystem, find_user
from gitguardfs.guest import facts, report
from gitguardfs.guest import run as vm_mount
from gitguardfs.guest.facts import SystemPaths
from gitguardfs.guest.request import default_tag
from gitguardfs.guest.run import Arguments
from gitguardfs.names.rules import GitMode
from gitguardfs.options.guarded_share import with_local
from gitguardfs.options.parsing import split_values

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
    takes_away: bool,
    no_persist: bool,
    o: tuple[str, ...],
    local: tuple[str, ...],
    interactive: bool,
    yes: bool,
    **given: Any,
) -> int:
    """Mount a directory of the host, with mapped owners and .git out of reach.

    The share is mounted where only root can reach it. Its owner is shown as the owner of the home
    that the view is in. In place of .git the agent gets a git repository of its own, if git is
    installed here; -o git=deny leaves it without. Entries in fstab or systemd units mount both at
    each boot. Run it again to change something. If a step fails, all finished steps are undone.
    """
    if os.geteuid() != 0:
        raise UserError("only root can mount and unmount shares", "sudo vm-mount ...", Exit.SYSTEM)
    arguments = Arguments(
        options=with_local(split_values(o), local),
        persist=not no_persist,
        confirm=_confirm if interactive and not yes else None,
        **given,
    )
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)  # by an exception, so that finished changes are undone
    if takes_away:
        vm_mount.remove(SystemPaths(), arguments)
    else:
        if not arguments.dry_run:
            vm_mount.load_modules()
        install(SystemPaths(), _completed(SystemPaths(), arguments, interactive))
    return Exit.OK


def install(system: SystemPaths, arguments: Arguments) -> None:
    """Install a guarded share; print how the owner of the view can get round the guard.

    Raises UserError; then all finished changes are undone.
    """
    request = vm_mount.install(system, arguments)
    if request.policy is not GitMode.OFF:
        owner = find_user(str(request.user[0]))
        for line in report.warnings(privilege_checks.ways_to_root(owner, CheckedSystem())):
            report.say(line)


def _completed(system: SystemPaths, arguments: Arguments, interactive: bool) -> Arguments:
    """Return the arguments with the tag and the view's place, asked for if interactive."""
    tag, view = arguments.tag, arguments.map_mount
    if not tag:
        tags = facts.tags(system.sys)
        try:
            tag = default_tag(tags)
        except UserError:
            if not interactive:
                raise
            report.say(f"The kernel sees these shares: {tags.listing()}")
            tag = str(click.prompt("Tag of the share"))
    if not view and interactive:
        view = str(click.prompt("Where should the guarded view be mounted?"))
    return replace(arguments, tag=tag, map_mount=view)


def _confirm() -> None:
    click.confirm("Go on?", default=True, abort=True)


def _leave(number: int, _frame: object) -> None:
    raise UserError(f"ended by {signal.Signals(number).name}", code=Exit.SYSTEM)


def main() -> None:
    """Run ``vm-mount``. A user's mistake becomes one line and an exit code."""
    run(command, "vm-mount")
