"""What a user may do wrong, as one line and an exit code."""

from __future__ import annotations

import os
import sys
from enum import IntEnum


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
    """A mistake or an obstacle that the user can mend; never shown with a traceback."""

    def __init__(self, message: str, hint: str = "", code: Exit = Exit.USAGE) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code

    def __str__(self) -> str:
        """One line: what is wrong, then what to do about it."""
        return f"{self.message} ({self.hint})" if self.hint else self.message


def os_error(number: int) -> OSError:
    """Return the OSError with an errno and its text."""
    return OSError(number, os.strerror(number))


def warn(text: str) -> None:
    """Say something that the user should know, and go on."""
    print(f"gitguardfs: warning: {shown(text)}", file=sys.stderr)


def shown(text: str | bytes, keep: str = "") -> str:
    """Return ``text`` as it may go to a terminal: what is not printable is escaped.

    Names of files, mounts, tags and processes are chosen by others. ESC, newlines, bidirectional
    controls and bytes that are no UTF-8 would alter what root sees, or what the terminal does.
    Characters in ``keep`` stay.
    """
    if isinstance(text, bytes):
        text = text.decode(errors="surrogateescape")
    return "".join(c if c.isprintable() or c in keep else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # a byte that is no UTF-8
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()
