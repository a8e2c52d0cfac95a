"""Parts that several click commands have in common."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from gitguardfs.base import findings
from gitguardfs.base.errors import GitguardExit, UserError
from gitguardfs.options.parsing import respelled


class Command(click.Command):
    """A command that refuses an empty value: usually that of a variable that is not set."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line. Raises BadParameter for an empty value."""
        rest = super().parse_args(ctx, args)
        for param in self.params:
            if ctx.params.get(param.name or "") == "":
                raise click.BadParameter("it is empty", ctx, param)
        return rest


class RespelledCommand(Command):
    """A command that also accepts old and short spellings of options, such as ``-mm``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line with its present spellings."""
        return super().parse_args(ctx, respelled(args))


class CommandGroup(click.Group):
    """A group of commands whose wrong usage never counts as success.

    click before 8.2 prints the help and exits with 0 if the command is missing, or is a path.
    """

    command_class = Command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line; without any argument print the help, as wrong usage."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help())
            ctx.exit(GitguardExit.USAGE)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that ``args`` name. Raises UsageError if there is none."""
        if not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"no such command: {args[0]!r}")
        return super().resolve_command(ctx, args)


Function = Callable[..., Any]
Decorator = Callable[[Function], Function]
CURRENT = "the current directory"


def in_project(default: str = "") -> Decorator:
    """Return a decorator that adds ``PROJECT`` and ``--project DIR``, which say the same.

    They give the argument ``project``: None if neither was given, for which ``default`` says in
    words what counts then. Without ``default`` the command needs one of them.
    """
    text = "The same as PROJECT." + (f"  [default: {default}]" if default else "")

    def decorated(function: Function) -> Function:
        @click.argument("place", metavar="[PROJECT]" if default else "PROJECT", required=False)
        @click.option("--project", metavar="DIR", help=text)
        @functools.wraps(function)
        def called(*context: Any, place: str | None, project: str | None, **given: Any) -> Any:
            if place is not None and project is not None:
                raise click.UsageError("PROJECT and --project say the same: give one of them")
            found = project if place is None else place
            if not (found or default):
                raise click.UsageError("Missing argument 'PROJECT'.")
            return function(*context, project=found, **given)

        return called

    return decorated


JSON = click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
FAIL_ON = click.option(
    "--fail-on",
    type=click.Choice(findings.SEVERITIES),
    default="medium",
    show_default=True,
    help="Exit with 1 for findings of this severity and above.",
)
_LOCAL_HELP = (
    "Keep directories whose names match GLOB on the guest's own disk, not in the project. "
    "Repeatable. deps, which suits most projects, stands for node_modules, .venv, target and "
    "others."
)
LOCAL = click.option("--local", metavar="GLOB", multiple=True, help=_LOCAL_HELP)
LOCAL_OR_DEPS = click.option(
    "--local", metavar="GLOB", multiple=True, help=f"{_LOCAL_HELP}  [default: deps]"
)
NO_LOCAL = click.option(
    "--no-local", is_flag=True, help="Keep all directories in the project: no --local deps."
)


GUARD_OPTIONS = click.option(
    "-o", "o", metavar="OPTS", multiple=True, help="Further options for the guard: git=deny"
)


def local_names(globs: tuple[str, ...], no_local: bool) -> tuple[str, ...] | None:
    """Return what --local and --no-local ask for; None if neither was given. Raises UserError."""
    if globs and no_local:
        raise UserError("--local and --no-local contradict one another", "give one of them")
    return globs or (() if no_local else None)
