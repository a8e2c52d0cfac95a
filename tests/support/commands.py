"""All commands of all programs, as click knows them."""

import importlib
from collections.abc import Iterator
from typing import NamedTuple

import click

PROGRAMS = {
    "gitguardfs": "gitguardfs.commands.gitguardfs:command",
    "gitguard": "gitguardfs.commands.gitguard:group",
    "vm-mount": "gitguardfs.commands.vm_mount:command",
}


class NamedCommand(NamedTuple):
    """A command and the words that call it."""

    words: tuple[str, ...]
    command: click.Command
    context: click.Context


def every_command() -> Iterator[NamedCommand]:
    """Yield the commands of all programs, with all their subcommands but for hidden ones."""
    for program, place in PROGRAMS.items():
        module, _, attribute = place.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        yield from _with_subcommands(command, (program,), None)


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
            if subcommand.hidden:  # for programs; it has no page
                continue
            yield from _with_subcommands(subcommand, (*words, name), context)
