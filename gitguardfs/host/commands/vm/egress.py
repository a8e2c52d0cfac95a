"""Commands about the proxy and its allowlist: ``blocked``, ``watch``, ``allow`` and ``proxy``."""

from __future__ import annotations

from contextlib import suppress

import click

from gitguardfs.base.errors import Exit, UserError
from gitguardfs.host.commands.vm.common import PROJECT, NeedsExtra

WATCH_EPILOG = """\b
Examples:
  gitguard vm watch                 in a second terminal, beside the agent's
  gitguard vm watch >blocked.log    only writes, and takes no keys
"""

ALLOW_EPILOG = """\b
Examples:
  gitguard vm allow 'GET https://example.org/docs/*'
  gitguard vm allow 'POST https://api.example.org/v1/messages'
"""


@click.command(cls=NeedsExtra, short_help="Show what was blocked, and what would allow it.")
@PROJECT
def blocked(project: str | None) -> None:
    """Show the requests that the proxy has blocked, and the line that would allow each."""

    from gitguardfs.host.egress import reports
    from gitguardfs.host.vm import state

    click.echo(reports.blocked_text(state.existing(project).files.directory))


@click.command(cls=NeedsExtra, short_help="Show what is blocked as it comes.", epilog=WATCH_EPILOG)
@PROJECT
def watch(project: str | None) -> None:
    """Show requests as the proxy blocks them, and allow lines for this VM by one key.

    In a terminal it offers the line that would allow the last one: a allows it, s skips it, q
    quits. The line that is on the screen is the one that is allowed.
    """
    from gitguardfs.host.vm import state, watching

    with suppress(KeyboardInterrupt):
        watching.watch(state.existing(project))


@click.command(cls=NeedsExtra, short_help="Add a line to the allowlist.", epilog=ALLOW_EPILOG)
@PROJECT
@click.argument("line", nargs=-1, required=True)
def allow(project: str | None, line: tuple[str, ...]) -> None:
    """Add LINE to the allowlist. It counts from the next request on.

    A line is METHOD https://host/path, with * in the path only. Be specific: a GET can carry data
    out too. WS instead of METHOD allows a WebSocket; the proxy does not see what passes in it.
    """

    from gitguardfs.host.egress import files
    from gitguardfs.host.vm import state

    click.echo(files.allow(state.existing(project).files.directory, " ".join(line)))


@click.command(cls=NeedsExtra, short_help="Run the VM's proxy alone, until Ctrl-C.")
@PROJECT
def proxy(project: str | None) -> None:
    """Run the VM's proxy alone, until Ctrl-C: to replace one that has ended."""

    from gitguardfs.host.egress import proxy as egress
    from gitguardfs.host.vm import settings, state, trusted_programs
    from gitguardfs.host.vm.status import running_proxy

    where = state.existing(project)
    trusted_programs.check(settings.load(where))
    if (found := running_proxy(where)) is not None:
        raise UserError(f"the proxy runs already (process {found['pid']})", code=Exit.SYSTEM)
    click.echo(f"its files are in {where.directory}; Ctrl-C ends it", err=True)
    egress.run(where.files.directory)
