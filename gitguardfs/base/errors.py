"""User errors and warnings: one line each, and the exit codes."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

_BLANKS = re.compile("(?<= ) |[\u115f\u1160\u2800\u3164\uffa0]")
"""A blank after another one, and characters that count as printable and look like blanks."""


class Exit(IntEnum):
    """Exit codes of gitguardfs, of mount helpers and of vm-mount, as in mount(8)."""

    OK = 0
    USAGE = 1
    SYSTEM = 2
    MOUNT = 32


class GitguardExit(IntEnum):
    """Exit codes of ``gitguard …``."""

    OK = 0
    FINDINGS = 1
    USAGE = 2
    FAILED = 3


class UserError(Exception):
    """An error that the user can correct; shown as one line, never with a traceback."""

    def __init__(self, message: str, hint: str = "", code: Exit = Exit.USAGE) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code

    def __str__(self) -> str:
        """Return one line: what is wrong, then what to do."""
        return f"{self.message} ({self.hint})" if self.hint else self.message


@contextmanager
def failing(what: str, hint: str = "", code: Exit = Exit.SYSTEM) -> Iterator[None]:
    """Turn an OSError of the body into a UserError: ``what`` cannot be done, and its reason."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{what}: {error.strerror}", hint, code) from None


def os_error(number: int, path: str | None = None) -> OSError:
    """Return an OSError with errno ``number``, its text, and the path that it is about."""
    return OSError(number, os.strerror(number), path)


def warn(text: str) -> None:
    """Print a warning to stderr."""
    print(f"gitguardfs: warning: {shown(text)}", file=sys.stderr)


def shown(text: str | bytes, keep: str = "") -> str:
    """Return ``text`` safe for a terminal: characters that are not printable are escaped.

    Other users choose the names of files, mounts, tags and processes. ESC, newlines, bidirectional
    controls and bytes that are not UTF-8 would alter what root sees, or control the terminal. So
    would many blanks: what follows them seems to be a row of its own. Of several blanks all but the
    first are escaped. Characters in ``keep`` are kept, and with them all blanks.
    """
    if isinstance(text, bytes):
        text = text.decode(errors="surrogateescape")
    text = "".join(c if c.isprintable() or c in keep else _escaped(c) for c in text)
    return text if keep else _BLANKS.sub(lambda found: _escaped(found[0]), text)


def word(text: str) -> str:
    """Return ``text``, which has no blanks as a rule, safe for a terminal; blanks are escaped."""
    return shown(text).replace(" ", "\\x20")


def ascii_shown(text: str) -> str:
    """Return ``text`` safe for a terminal, with one column for each character."""
    return shown(text).encode("ascii", "backslashreplace").decode()


def counted(number: int, what: str) -> str:
    """Return a number with its noun, such as "1 check", "2 checks" or "no checks"."""
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


def _escaped(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # a byte that is not UTF-8
        return f"\\x{ord(character) - 0xDC00:02x}"
    if character == " ":
        return "\\x20"
    return character.encode("unicode_escape").decode()
