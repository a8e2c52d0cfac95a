"""What a user may do wrong, as one line and an exit code."""

from __future__ import annotations

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


def warn(text: str) -> None:
    """Say something that the user should know, and go on."""
    print(f"gitguardfs: warning: {text}", file=sys.stderr)
