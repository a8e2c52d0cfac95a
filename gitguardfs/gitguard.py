"""The command ``gitguard``: what belongs around a guarded mount."""

from __future__ import annotations

import importlib
import sys

import click

from gitguardfs import __version__
from gitguardfs.errors import Exit, UserError

COMMANDS = {
    "share": "gitguardfs.host.share",
    "units": "gitguardfs.host.units",
    "doctor": "gitguardfs.guest.doctor",
}
"""Subcommands and the modules whose ``command`` they are; imported when they are called."""


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(COMMANDS[cmd_name]).command
        assert isinstance(command, click.Command)
        return command


@click.command(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gitguard", message="%(prog)s %(version)s")
def group() -> None:
    """Share a project with a virtual machine, guard it there, and check that it is guarded."""


def run(command: click.Command, name: str) -> None:
    """Run a command; every mistake of the user's is one line and an exit code."""
    try:
        code = command.main(prog_name=name, standalone_mode=False)
    except UserError as error:
        print(f"{name}: {error}", file=sys.stderr)
        code = error.code
    except click.UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # since click 8.2; its text is the help
            print(error.format_message())
            sys.exit(Exit.USAGE)
        path = error.ctx.command_path if error.ctx is not None else name
        print(f"{path}: {error.format_message()} (see {path} --help)", file=sys.stderr)
        code = Exit.USAGE
    except click.Abort:
        code = Exit.SYSTEM
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"{name}: {where}{error.strerror}", file=sys.stderr)
        code = Exit.SYSTEM
    sys.exit(code if isinstance(code, int) else Exit.OK)


def main() -> None:
    """Run ``gitguard``."""
    run(group, "gitguard")
