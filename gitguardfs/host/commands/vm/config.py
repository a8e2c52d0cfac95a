"""``gitguard vm config``: the user's file with a project's options for ``vm up``."""

from __future__ import annotations

import os

import click

from gitguardfs.base.errors import Exit, UserError, shown
from gitguardfs.commands.command_line import CommandGroup
from gitguardfs.host.commands.vm.common import PROJECT, NeedsExtra
from gitguardfs.host.vm.up_options import UP_OPTIONS

EPILOG = """\b
Examples:
  gitguard vm config edit    makes the file if there is none, and opens it
  gitguard vm config show    what the next vm up starts with, and from where

\b
An example of the file; its keys are the options of vm up:
  memory = "4G"
  hide = ["*.pem"]
  publish = ["3000"]
  allow = ["anthropic", "npm", "GET https://docs.example.org/*"]

\b
Keys:
""" + click.wrap_text(", ".join(one.key for one in UP_OPTIONS), 76, "  ", "  ")


@click.group(
    name="config",
    cls=CommandGroup,
    short_help="Show or edit the project's gitguard.toml.",
    epilog=EPILOG,
)
def config() -> None:
    """Show or edit gitguard.toml, with a project's options for `vm up`.

    The file is in your configuration directory, such as
    ~/.config/gitguardfs/projects/NAME/gitguard.toml. It is never read from the project, where the
    agent writes. An option on the command line counts before its key, and a key before what earlier
    options have set. `vm reset` keeps the file.
    """


@config.command(cls=NeedsExtra, short_help="Print what the next vm up starts with.")
@PROJECT
def show(project: str | None) -> None:
    """Print what the next `vm up` starts with, as TOML, and where each value is from."""
    from gitguardfs.host.vm import config_file, state

    where = state.find(project)
    if line := config_file.not_read(where):
        click.echo(line, err=True)
    click.echo(config_file.text(where), nl=False)


@config.command(cls=NeedsExtra, short_help="Open gitguard.toml in your editor.")
@PROJECT
def edit(project: str | None) -> None:
    """Open gitguard.toml in $VISUAL or $EDITOR, then check it. Makes it if there is none."""
    import shlex
    import subprocess

    from gitguardfs.host.vm import config_file, images, settings, state, trusted_programs
    from gitguardfs.options import config_files

    where = state.find(project)
    variable = next((name for name in ("VISUAL", "EDITOR") if os.environ.get(name)), "")
    try:
        name, *words = shlex.split(os.environ.get(variable, "vi"))
    except ValueError:
        raise UserError(f"${variable} is not a command", f"set it: {variable}=vi") from None
    own = settings.load(where)
    trusted_programs.check(own, name)
    images.refuse_in_project("gitguard.toml", where.config, where.project, *own.others_writable)
    if not os.path.lexists(where.config):
        config_files.put(where.config, config_file.new_content(where))
    # Not in the project, where some editors would read the agent's settings.
    directory = os.path.dirname(where.config)
    editor = [trusted_programs.path_of(name), *words, where.config]
    if status := subprocess.call(editor, cwd=directory):
        raise UserError(f"{shown(name)} ended with status {status}", code=Exit.SYSTEM)
    config_file.merged(config_file.read(where), settings.load_saved(where).remembered)
    click.echo(f"{shown(where.config)} counts from the next gitguard vm up on", err=True)
