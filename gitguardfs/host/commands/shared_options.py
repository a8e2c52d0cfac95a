"""Options that ``gitguard lima`` and ``gitguard krun init`` share."""

from __future__ import annotations

import click

from gitguardfs.commands.command_line import local_names
from gitguardfs.host.share.directory import secrets_in
from gitguardfs.options.guarded_share import DEFAULT_LOCAL, with_local
from gitguardfs.options.parsing import split_values

PROJECT = click.option(
    "--project", metavar="DIR", default=".", help="The project.  [default: the current directory]"
)
CPUS = click.option(
    "--cpus", metavar="N", type=int, default=4, show_default=True, help="Processors."
)
MEMORY = click.option("--memory", metavar="SIZE", default="8G", show_default=True,
                      help="Memory: 8G, 4096M, or a number of MiB.")  # fmt: skip


def guard_options(o: tuple[str, ...], local: tuple[str, ...], no_local: bool) -> tuple[str, ...]:
    """Return the options of the guard, those of ``--local`` included. Raises UserError."""
    names = local_names(local, no_local)
    return with_local(split_values(o), DEFAULT_LOCAL if names is None else names)


def warn_of_secrets(directory: str) -> None:
    """Warn of a project that holds keys or passwords."""
    if secrets := secrets_in(directory):
        program = click.get_current_context().command_path
        text = f"{program}: warning: {directory} holds {', '.join(secrets)}"
        click.echo(f"{text}: the agent can read it", err=True)
