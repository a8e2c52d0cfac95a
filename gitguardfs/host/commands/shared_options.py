"""Options that several commands of the host share."""

from __future__ import annotations

import functools
from enum import StrEnum
from typing import Any

import click

from gitguardfs.base.size import mebibytes
from gitguardfs.commands.command_line import (
    CURRENT,
    GUARD_OPTIONS,
    LOCAL_OR_DEPS,
    NO_LOCAL,
    Decorator,
    Function,
    local_names,
)
from gitguardfs.host.share.directory import secrets_in
from gitguardfs.options.guarded_share import DEFAULT_LOCAL, with_local
from gitguardfs.options.parsing import split_values


def _converted(convert: Function) -> Function:
    """Return a callback of an option that converts its value, if it has one."""
    return lambda _context, _option, value: None if value is None else convert(value)


def choice(*names: str, kind: type[StrEnum], text: str, default: str = "") -> Decorator:
    """Return an option whose value is a member of ``kind``, with the help ``text``."""
    values = click.Choice([one.value for one in kind])
    return click.option(
        *names, type=values, default=str(default) or None, show_default=True, help=text,
        callback=_converted(kind),
    )  # fmt: skip


def size(name: str, text: str, default: str | None = None) -> Decorator:
    """Return an option whose value is a size in MiB, with the help ``text``."""
    return click.option(
        name, metavar="SIZE", default=default, show_default=True, help=text,
        callback=_converted(lambda given: mebibytes(given, name)),
    )  # fmt: skip


def cpus(text: str, default: int | None = None) -> Decorator:
    """Return the option ``--cpus`` with the help ``text``."""
    return click.option(
        "--cpus", metavar="N", type=int, default=default, show_default=True, help=text
    )


PROJECT = click.option(
    "--project", metavar="DIR", default=".", help=f"The project.  [default: {CURRENT}]"
)


def of_machine(function: Function) -> Function:
    """Add ``--cpus`` and ``--memory`` of a machine that an agent works in."""
    memory = size("--memory", "Memory: 8G, 4096M, or a number of MiB.", "8G")
    return cpus("Processors.", 4)(memory(function))


def of_guard(function: Function) -> Function:
    """Add ``-o``, ``--local`` and ``--no-local``; they give the argument ``options``, unquoted."""

    @GUARD_OPTIONS
    @LOCAL_OR_DEPS
    @NO_LOCAL
    @functools.wraps(function)
    def called(o: tuple[str, ...], local: tuple[str, ...], no_local: bool, **given: Any) -> Any:
        names = local_names(local, no_local)
        options = with_local(split_values(o), DEFAULT_LOCAL if names is None else names)
        return function(options=options, **given)

    return called


def warn_of_secrets(directory: str) -> None:
    """Warn of a project that holds keys or passwords."""
    if secrets := secrets_in(directory):
        program = click.get_current_context().command_path
        text = f"{program}: warning: {directory} holds {', '.join(secrets)}"
        click.echo(f"{text}: the agent can read it", err=True)
