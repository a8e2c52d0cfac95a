"""``gitguard vm up``."""

from __future__ import annotations

import os
from typing import Any

import click
from click.shell_completion import CompletionItem

from gitguardfs.base.errors import GitguardExit, shown
from gitguardfs.base.size import mebibytes
from gitguardfs.commands.command_line import NO_LOCAL, local_names
from gitguardfs.host.commands.vm.common import PROJECT, WORDS, NeedsExtra
from gitguardfs.host.egress.presets import PRESETS
from gitguardfs.host.vm.shares import absolute
from gitguardfs.host.vm.up_options import LISTS, UP_OPTIONS, Kind, UpOption, allowed

UP_EPILOG = """\b
Examples:
  gitguard vm up --agent claude                 an agent, with its part of the allowlist
  gitguard vm up --allow openai --allow 'GET https://docs.example.org/*'
  gitguard vm up --hide '*.pem' --hide data     hides these names too, from now on
  gitguard vm up --show .env.test               shows a name that is hidden by default
  gitguard vm up --local deps --local .cache    keeps these on the guest's own disk
  gitguard vm up --share ../lib:ro              shares this directory too, to be read
  gitguard vm up --publish 3000                 127.0.0.1:3000 is the guest's port 3000;
                                                of a VM that runs, too
  gitguard vm up --image ~/my-image.qcow2       instead of the pinned cloud image
  gitguard vm up --guard host                   guards .git against the guest's root too
  gitguard vm up --upstream-proxy http://me@proxy.corp:8080     asks for the password

Options are remembered for the next start; vm status shows them, vm reset deletes them. Each has
its key in a file of yours: gitguard vm config edit opens it.
"""


class _Up(NeedsExtra):
    may_be_empty = ("upstream_proxy",)


def _of_table(option: UpOption) -> Any:
    """Return click's option for a row of the table."""
    flag = f"/--no-{option.key}" if option.kind is Kind.FLAG else ""
    more: dict[str, Any] = {}
    match option.kind:
        case Kind.SIZE:
            more["callback"] = lambda _context, param, value: (
                None if value is None else mebibytes(value, param.opts[0])
            )
        case Kind.NUMBER:
            more["type"] = int
        case Kind.CHOICE:
            more["type"] = click.Choice(option.choices)
        case Kind.DIRECTORIES:
            more["type"] = click.Path(file_okay=False)
            more["callback"] = lambda _context, _param, values: tuple(
                value and absolute(value, os.getcwd()) for value in values
            )
        case Kind.FILE:
            more["type"] = click.Path(exists=True, dir_okay=False)
        case Kind.TEXT if option.choices:  # or a file
            more["shell_complete"] = lambda _context, _param, begin: (
                [CompletionItem(name) for name in option.choices if name.startswith(begin)]
                or [CompletionItem(begin, type="file")]
            )
        case Kind.ALLOWED:
            more["callback"] = lambda _context, _param, values: tuple(map(allowed, values))
            more["shell_complete"] = lambda _context, _param, begin: [
                name for name in PRESETS if name.startswith(begin)
            ]
    return click.option(
        f"--{option.key}{flag}", help=option.command_help, default=None,
        metavar=option.metavar or None, multiple=option.kind in LISTS, **more,
    )  # fmt: skip


def of_up(function: Any) -> Any:
    """Add the options of `vm up` to a command."""
    for option in reversed(UP_OPTIONS):
        if option.key == "local":
            function = NO_LOCAL(function)
        function = _of_table(option)(function)
    return function


@click.command(
    cls=_Up,
    short_help="Start the VM and open a shell in the project.",
    epilog=UP_EPILOG,
    context_settings=WORDS,
)
@PROJECT
@of_up
@click.argument("words", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
def up(project: str | None, words: tuple[str, ...], no_local: bool, **given: Any) -> int:
    """Start the VM and open a shell in the project; leaving the shell stops the VM.

    For a VM that runs, --publish alone opens the port, and returns.
    """
    import shutil

    from gitguardfs.host.audit import trust
    from gitguardfs.host.vm import (
        agents,
        config_file,
        driver,
        exposed_files,
        forwarding,
        git_place,
        images,
        running,
        settings,
        state,
        trusted_programs,
    )

    driver.refuse_root()
    # A shell tells by which path it has come here.
    here = os.environ.get("PWD", "") if project is None else os.path.join(os.getcwd(), project)
    if os.path.isabs(here) and os.path.realpath(here) == os.path.realpath(project or os.getcwd()):
        settings.refuse_led_project(here)
    where = state.find(project)
    if running.is_in_session(where) and _only_publishes(given, words, no_local):
        forwarding.publish(where, given["publish"])
        return GitguardExit.OK
    if project is None and where.project != os.path.realpath(os.getcwd()):
        why = "which has a VM" if where.has_disk else "for which you have a gitguard.toml"
        click.echo(f"sharing {shown(where.project)}, {why}", err=True)
    given["local"] = local_names(given["local"], no_local)
    if given["agent"] is not None:
        given["agent"] = agents.resolved(given["agent"])
    if given["image"] is not None:
        given["image"] = images.resolved(given["image"])
    if ignored := config_file.not_read(where):
        click.echo(ignored, err=True)
    arguments = driver.up_arguments(where, given, words)
    own = arguments.settings
    trusted_programs.check(own, *(["git"] if shutil.which("git") else []))
    is_first = not (where.has_disk and settings.load(where).hide_secrets)
    names, texts = exposed_files.at_start(own, is_first)
    for text in texts:
        click.echo(text, err=True)
    for line in filter(None, (trust.line(), git_place.line(own))):
        click.echo(line, err=True)
    return driver.up(where, arguments.showing(names))


def _only_publishes(given: dict[str, Any], words: tuple[str, ...], no_local: bool) -> bool:
    """Return whether the command opens ports and does nothing else."""
    chosen = [name for name, value in given.items() if value not in (None, ())]
    return chosen == ["publish"] and "" not in given["publish"] and not (words or no_local)
