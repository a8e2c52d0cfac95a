"""Parts that several click commands have in common."""

from __future__ import annotations

import click

from gitguardfs import findings
from gitguardfs.errors import GitguardExit
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


JSON = click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
FAIL_ON = click.option(
    "--fail-on",
    type=click.Choice(findings.SEVERITIES),
    default="medium",
    show_default=True,
    help="Exit with 1 for findings of this severity and above.",
)
