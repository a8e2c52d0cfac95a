"""``gitguard lima``: writes the file of a Lima instance that guards the project for an agent."""

from __future__ import annotations

import os
import platform
import shlex
from typing import Any

import click

from gitguardfs.base import installation, quote
from gitguardfs.base.errors import Exit, UserError
from gitguardfs.commands.command_line import Command
from gitguardfs.host.commands.shared_options import (
    PROJECT,
    choice,
    of_guard,
    of_machine,
    size,
    warn_of_secrets,
)
from gitguardfs.host.share import lima_yaml as lima
from gitguardfs.host.share import selinux, state
from gitguardfs.host.share.directory import existing_directory
from gitguardfs.host.share.lima_yaml import Distribution, LimaSpec, Tool
from gitguardfs.host.share.share_spec import Transport
from gitguardfs.host.share.template import fill
from gitguardfs.host.share.this_host import this_host
from gitguardfs.options import config_files

STDOUT = "-"

EPILOG = """\b
Examples:
  gitguard lima --project ~/projects/shop
      an Ubuntu with Claude's command line program, and the limactl lines
  gitguard lima --image fedora --tool node --tool python --memory 16G
      the current directory in a Fedora with other tools
  gitguard lima -o git=readonly,protect=.github --output -
      .git can be read but not changed; print the file

docs/lima.md of the source says how the instance is built, and what stays open.

\b
Exit codes: 0 done, 2 wrong usage, 3 anything else.
"""


@click.command(cls=Command, epilog=EPILOG)
@PROJECT
@click.option(
    "--name", metavar="NAME", help="The instance's name.  [default: agent-, and the project's]"
)
@of_machine
@size("--disk", "The greatest size of its disk.", "60G")
@choice("--image", "distribution", kind=Distribution, default=Distribution.UBUNTU,
        text="The guest's distribution: its cloud image, pinned by its checksum.")  # fmt: skip
@choice("--transport", kind=Transport,
        text="What carries the project.  [default: virtiofs on a Mac, otherwise 9p]")  # fmt: skip
@click.option("--tool", "tools", type=click.Choice([tool.value for tool in Tool]), multiple=True,
              help="What to install for the agent; repeatable, replaces the default.  "
              "[default: claude]")  # fmt: skip
@click.option("--no-tools", is_flag=True, help="Install nothing but gitguardfs.")
@click.option("--proxy", metavar="URL", help="The proxy that the guest's programs are set to use.")
@of_guard
@click.option(
    "--output",
    metavar="FILE",
    help="Write the instance's file there; - prints it.  [default: in ~/.local/share/gitguardfs]",
)
def command(
    project: str,
    name: str | None,
    transport: Transport | None,
    tools: tuple[str, ...],
    no_tools: bool,
    output: str | None,
    **given: Any,
) -> int:
    """Write the file of a Lima instance for the project, and print the lines that start it.

    The agent gets its own user without sudo, which sees the project through the guard. Nothing is
    started. The guest installs the same gitguardfs that runs here, from a read-only copy.
    """
    if tools and no_tools:
        raise UserError("--tool and --no-tools contradict one another", "give one of them")
    is_mac = platform.system() == "Darwin"
    real = existing_directory(project)
    spec = LimaSpec(
        project=real,
        name=name if name is not None else lima.instance_name(real),
        setup=state.directory("guest-files"),
        transport=transport or (Transport.VIRTIOFS if is_mac else Transport.P9),
        is_mac=is_mac,
        tools=() if no_tools else tuple(Tool(tool) for tool in tools) or (Tool.CLAUDE,),
        **given,
    )
    file = _file(spec, output)
    state.check_apart(spec.setup, real)
    if file != STDOUT:
        state.check_apart(file, real)
    text = lima.render(spec)
    state.make_directory(state.directory())
    installation.copy_to(spec.setup)
    if file == STDOUT:
        click.echo(text, nl=False)
    else:
        _write(file, text, real)
        click.echo(_next_steps(spec, file), nl=False)
    warn_of_secrets(real)
    return Exit.OK


def _file(spec: LimaSpec, output: str | None) -> str:
    if output is None:
        return state.directory("lima", f"{spec.name}.yaml")
    return output if output == STDOUT else os.path.abspath(output)


def _write(file: str, text: str, project: str) -> None:
    change = config_files.plan(file, text)
    if change.before is not None and not change.before.startswith(lima.HEADER.encode()):
        raise UserError(
            f"{file} was not written by gitguardfs", "move it away, or another --output"
        )
    if change.before is not None and lima.location_of(project).encode() not in change.before:
        raise UserError(f"{file} is the instance of another project", "another --name or --output")
    if os.path.dirname(file) == state.directory("lima"):
        state.make_directory(os.path.dirname(file))
    config_files.write(change)


def _next_steps(spec: LimaSpec, file: str) -> str:
    """Return the commands to run, and what stays open."""
    holds = {"mac": spec.is_mac, "selinux": this_host().selinux, "proxy": spec.proxy is not None}
    values = {
        "file": shlex.quote(file),
        "label": "\n".join(map(quote.shell, selinux.label(spec.project))),
        "name": spec.name,
        "project": spec.project,
        "quoted_project": shlex.quote(spec.project),
        "proxy": spec.proxy,
        "view": shlex.quote(spec.view),
    }
    return fill(
        installation.text("host/share/files/lima.txt"), [f for f in holds if holds[f]], values
    )
