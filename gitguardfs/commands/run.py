"""Runs a command: a mistake or a failure becomes one line and an exit code."""

from __future__ import annotations

import io
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from gitguardfs.base.errors import Exit, GitguardExit, UserError, shown
from gitguardfs.base.similar import similar

ALIKE = 0.8
"""How like two options must be for one to be offered for the other: --protct for --protect."""
DIRECTORIES = ("DIR", "PROJECT", "SOURCE", "MOUNTPOINT", "PATH", "PATH...", "FROM", "TO")
FILES = ("FILE", "IMAGE")
"""Metavars of values that a shell completes: directories, files."""


def run(command: click.Command, name: str, code_of: Callable[[Exit], int] = int) -> NoReturn:
    """Run ``command`` as the program ``name`` and exit; ``code_of`` gives an error's exit code.

    Without an error the exit code is the one that the command returns.
    """
    click.types.StringParamType.shell_complete = _complete_by_metavar  # type: ignore[method-assign]
    call(lambda: command.main(prog_name=name, standalone_mode=False), name, code_of)


def _complete_by_metavar(
    self: Any, ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem[Any]]:
    """Complete a value in click's completion: a choice such as ro|rw, a directory or a file."""
    metavar = (param.metavar or (param.name or "").upper()).strip("[]")
    if "|" in metavar:
        words = metavar.split("|")
        return [CompletionItem(word) for word in words if word.startswith(incomplete)]
    kind = "dir" if metavar in DIRECTORIES else "file" if metavar in FILES else None
    return [CompletionItem(incomplete, type=kind)] if kind else []


def call(
    function: Callable[[], object], name: str, code_of: Callable[[Exit], int] = int
) -> NoReturn:
    """Call ``function`` as ``run`` runs a command, for a program that reads its own arguments."""
    for stream in (sys.stdout, sys.stderr):  # names of files need not be in its encoding
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = function()
    except UserError as error:
        print(shown(f"{name}: {error}"), file=sys.stderr)
        code = code_of(error.code)
    except click.UsageError as error:
        code = code_of(Exit.USAGE)
        path = error.ctx.command_path if error.ctx is not None else name
        print(shown(f"{path}: {_message(error)} (see {path} --help)"), file=sys.stderr)
    except (click.Abort, KeyboardInterrupt):
        print(f"{name}: aborted", file=sys.stderr)
        code = code_of(Exit.SYSTEM)
    except SystemExit as error:
        if error.code != 1:
            raise
        code = code_of(Exit.SYSTEM)  # click ends so for a closed pipe; 1 would mean a finding
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(shown(f"{name}: {where}{error.strerror or error}"), file=sys.stderr)
        code = code_of(Exit.SYSTEM)
    except Exception:  # Python's exit code 1 for a bug would mean a finding
        traceback.print_exc()
        code = code_of(Exit.SYSTEM)
    sys.exit(code if isinstance(code, int) else Exit.OK)


def _message(error: click.UsageError) -> str:
    if isinstance(error, click.NoSuchOption):  # click offers --git for --uid
        near = similar(error.option_name, error.possibilities or (), ALIKE)
        error = click.NoSuchOption(error.option_name, None, near, error.ctx)
    return error.format_message()


def of_gitguard(code: Exit) -> int:
    """Return the exit code of ``gitguard`` for an error that has ``code`` for mount(8)."""
    return GitguardExit.USAGE if code is Exit.USAGE else GitguardExit.FAILED
