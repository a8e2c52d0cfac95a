"""Parts that several click commands have in common."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from gitguardfs.base import findings
from gitguardfs.base.errors import GitguardExit, UserError
from gitguardfs.base.similar import similar
from gitguardfs.options.guarded_share import LOCAL_HELP
from gitguardfs.options.parsing import respelled


class Command(click.Command):
    """A command that refuses an empty value: usually that of a variable that is not set."""

    may_be_empty: tuple[str, ...] = ()
    """Names of parameters for which an empty value means something."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line. Raises UsageError, for an empty value too."""
        try:
            rest = super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # click's BadOptionUsage does not know its command
            raise
        for param in self.params:
            name = param.name or ""
            if ctx.params.get(name) == "" and name not in self.may_be_empty:
                raise click.BadParameter("it is empty", ctx, param)
        return rest


class RespelledCommand(Command):
    """A command that also accepts old and short spellings of options, such as ``-mm``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line with its present spellings."""
        return super().parse_args(ctx, respelled(args))


ALIASES = {"ls": "list", "rm": "remove", "delete": "remove"}
"""Other names of commands, in each group that has these."""


class CommandGroup(click.Group):
    """A group of commands whose wrong usage never counts as success.

    click before 8.2 prints the help and exits with 0 if the command is missing, or is a path.
    """

    command_class = Command

    def __init__(self, *args: Any, aliases: dict[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.aliases = ALIASES | (aliases or {})

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line; without any argument print the help, as wrong usage."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help())
            ctx.exit(GitguardExit.USAGE)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that ``args`` name, also by an alias. UsageError if there is none."""
        names = self.list_commands(ctx)
        aliases = {name: meant for name, meant in self.aliases.items() if meant in names}
        word = aliases.get(args[0], args[0])
        if not ctx.resilient_parsing and self.get_command(ctx, word) is None:
            ctx.fail(f"no such command: {word!r}{_offer(word, names, aliases)}")
        return super().resolve_command(ctx, [word, *args[1:]])


def _offer(word: str, names: list[str], aliases: dict[str, str]) -> str:
    """Return the question whether a command was meant that is spelled nearly like ``word``."""
    offers: dict[str, str] = {}
    for name in similar(word, [*names, *aliases]):
        offers.setdefault(aliases.get(name, name), name)  # the best name of each command
    return f". Did you mean {' or '.join(map(repr, offers.values()))}?" if offers else ""


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
_LOCAL_HELP = f"{LOCAL_HELP} Repeatable."
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
