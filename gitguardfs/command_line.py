"""Parts that several click commands have in common."""

from __future__ import annotations

import click

from gitguardfs import findings
from gitguardfs.options.parsing import respelled


class RespelledCommand(click.Command):
    """A command that also accepts old and short spellings of options, such as ``-mm``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line with its present spellings."""
        return super().parse_args(ctx, respelled(args))


JSON = click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
FAIL_ON = click.option(
    "--fail-on",
    type=click.Choice(findings.SEVERITIES),
    default="medium",
    show_default=True,
    help="Exit with 1 for findings of this severity and above.",
)
