"""Lists the commands of every program, to generate manual pages and completion."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import NamedTuple

import click

PROGRAMS = {
    "gitguardfs": "gitguardfs.commands.gitguardfs:command",
    "gitguard": "gitguardfs.commands.gitguard:group",
    "vm-mount": "gitguardfs.commands.vm_mount:command",
}
"""By name of the program: module and attribute of its command, imported on demand."""


class NamedCommand(NamedTuple):
    """A command and the words that call it."""

    words: tuple[str, ...]
    command: click.Command
    context: click.Context


def load(program: str) -> click.Command:
    """Return the command of one of PROGRAMS."""
    module, _, attribute = PROGRAMS[program].partition(":")
    command = getattr(importlib.import_module(module), attribute)
    assert isinstance(command, click.Command)
    return command


def completion_variable(program: str) -> str:
    """Return click's environment variable by which a shell asks ``program`` for completions."""
    return f"_{program.replace('-', '_').replace('.', '_')}_COMPLETE".upper()


def every_command() -> Iterator[NamedCommand]:
    """Yield the commands of all programs, with all their subcommands."""
    for program in PROGRAMS:
        yield from _with_subcommands(load(program), (program,), None)


def _with_subcommands(
    command: click.Command, words: tuple[str, ...], parent: click.Context | None
) -> Iterator[NamedCommand]:
    context = command.context_class(
        command, info_name=words[-1], parent=parent, **command.context_settings
    )
    yield NamedCommand(words, command, context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            subcommand = command.get_command(context, name)
            assert subcommand is not None
            yield from _with_subcommands(subcommand, (*words, name), context)
