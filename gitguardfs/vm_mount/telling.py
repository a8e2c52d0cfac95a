"""Prints progress. A closed pipe or a full disk must not stop a change halfway."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

import click

from gitguardfs.errors import shown


def tell(text: str, *, newline: bool = True) -> None:
    """Print lines, with unprintable characters escaped.

    Never raises: the reader of a pipe may be gone, the disk full, the locale ASCII.
    """
    try:
        _print(shown(text, keep="\n\t"), newline)
    except (OSError, ValueError):  # ValueError: standard output is closed
        _hush()


def _print(text: str, newline: bool) -> None:
    try:
        click.echo(text, nl=newline)
    except UnicodeEncodeError:
        click.echo(text.encode("ascii", "backslashreplace").decode(), nl=newline)


def _hush() -> None:
    """Send all further output to /dev/null; otherwise Python reports an error when it exits."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
