"""The command ``gitguard`` with its subcommands: tools around a guarded mount."""

from __future__ import annotations

import importlib
import importlib.util
import platform
from typing import NamedTuple

import click

from gitguardfs import __version__
from gitguardfs.base.constants import FSTYPE, SUBTYPE
from gitguardfs.base.errors import Exit, UserError
from gitguardfs.commands.command_line import CommandGroup
from gitguardfs.commands.run import of_gitguard, run

HOST = "gitguardfs.host"
"""The package of the host's tools, which copies for guests do not have."""


class Subcommand(NamedTuple):
    """A subcommand: the module that holds its ``command``, imported on demand, and a summary."""

    module: str
    summary: str
    needs_linux: bool = False


COMMANDS = {
    "share": Subcommand(
        "gitguardfs.host.commands.share", "Print how to share a directory with a guest."
    ),
    "units": Subcommand(
        "gitguardfs.commands.units", "Print what mounts and guards a share at boot."
    ),
    "audit": Subcommand(
        "gitguardfs.host.commands.audit", "Find what an agent could use on the host without .git."
    ),
    "fetch": Subcommand("gitguardfs.host.commands.fetch", "Take what an agent committed, checked."),
    "watch": Subcommand(
        "gitguardfs.host.commands.watch", "Tell a guest at once of changes on the host."
    ),
    "lima": Subcommand(
        "gitguardfs.host.commands.lima", "Write the file of a Lima VM that guards a project."
    ),
    "krun": Subcommand(
        "gitguardfs.host.commands.krun", "Run an agent in a microVM of podman and krun."
    ),
    "doctor": Subcommand(
        "gitguardfs.commands.doctor", "Check that a project is guarded.", needs_linux=True
    ),
    "private": Subcommand(
        "gitguardfs.commands.private",
        "List and delete the agent's own repositories.",
        needs_linux=True,
    ),
    "local": Subcommand(
        "gitguardfs.commands.local",
        "List, remove and move directories of the guest's own.",
        needs_linux=True,
    ),
    "changes-in": Subcommand(
        "gitguardfs.commands.changes_in",
        "Tell guards of changes that the host makes.",
        needs_linux=True,
    ),
    "vm": Subcommand(
        "gitguardfs.host.commands.vm.group", "Run an agent in a VM without direct internet."
    ),
}


def is_missing(module: str) -> bool:
    """Return whether a module is of the host alone, and this copy of gitguardfs a guest's."""
    return module.startswith(HOST) and importlib.util.find_spec(HOST) is None


class _Lazy(CommandGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, one in COMMANDS.items() if not is_missing(one.module)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name.startswith("/"):  # by hand, or by mount(8) for fuse.gitguard
            hint = f"{SUBTYPE} SOURCE MOUNTPOINT does; in fstab and for mount -t: {FSTYPE}"
            raise UserError(f"{cmd_name} is no command: gitguard mounts nothing", hint)
        found = COMMANDS.get(cmd_name)
        if found is None:
            return None
        if found.needs_linux and platform.system() != "Linux":
            hint = "run it in the guest"
            if cmd_name == "doctor":
                hint += "; gitguard vm doctor does, for a VM of gitguard vm"
            raise UserError(f"{cmd_name} runs on Linux only", hint, Exit.SYSTEM)
        if is_missing(found.module):
            what = f"{cmd_name} runs on the host, and this is the copy of gitguardfs for guests"
            raise UserError(what, f"run gitguard {cmd_name} on the host", Exit.SYSTEM)
        command = importlib.import_module(found.module).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # From the table: click would import every module, and shorten the summaries.
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name].summary) for name in self.list_commands(ctx)])


EPILOG = """\b
Examples:
  gitguard share ~/projects --tag projects    on the host
  sudo gitguard doctor /home/agent/projects   in the guest
  gitguard audit                              on the host, before git
  gitguard doctor --help                      the same for each command

--project DIR names the project in every command that is about one; most take the current
directory without it. README.md and docs/ of the source say more.

\b
Exit codes: 0 done, 1 findings, 2 wrong usage, 3 anything else.
"""


@click.command(
    cls=_Lazy,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=EPILOG,
)
@click.version_option(__version__, prog_name="gitguard", message="%(prog)s %(version)s")
def group() -> None:
    """Share a project with a virtual machine, guard it there, and check that it is guarded."""


def main() -> None:
    """Run ``gitguard``."""
    run(group, "gitguard", of_gitguard)
