"""Tables, and the width that they keep to."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO

PIPED = 100
"""Columns of a table in a file or a pipe, which somebody reads on a screen later."""
_GAP = "  "
_BELOW = "    "
"""Comes before cells that have no room beside the others."""


def width_of(stream: TextIO) -> int:
    """Return how many columns a table takes: those of the terminal, or ``PIPED``."""
    if not stream.isatty():
        return PIPED
    with suppress(OSError, ValueError):
        if columns := os.get_terminal_size(stream.fileno()).columns:
            return columns
    return shutil.get_terminal_size().columns


def table(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return the lines of a table; cells that do not fit into ``width`` go on below their row."""
    sizes = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        line = ""
        for cell, size in zip(row, sizes, strict=True):
            if line and len(line) + len(cell) > width:
                lines.append(line.rstrip())
                line = _BELOW
            line += f"{cell:<{size}}{_GAP}"
        lines.append(line.rstrip())
    return lines


def hanging(begin: str, text: str, width: int) -> list[str]:
    """Return ``text`` in lines: the first after ``begin``, the others below its first word."""
    return textwrap.wrap(
        text, width, initial_indent=begin, subsequent_indent=" " * len(begin),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
