"""The results of ``gitguard doctor`` and ``gitguard audit``, and their output."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TextIO

from gitguardfs.base import columns
from gitguardfs.base.errors import GitguardExit, ascii_shown, counted, shown


class Status(Enum):
    """The outcome of a check."""

    OK = "ok"
    FINDING = "finding"
    """The user can bypass the guard, or perhaps can."""
    NOTE = "note"
    """Worth knowing; it does not let the user bypass the guard."""


class Severity(IntEnum):
    """What a finding means."""

    LOW = 1
    """A setting that would help."""
    MEDIUM = 2
    """Perhaps the guard can be bypassed."""
    HIGH = 3
    """The guard can be bypassed."""


SEVERITIES = [severity.name.lower() for severity in Severity]
"""The names of severities on command lines and in JSON, lowest first."""


@dataclass(frozen=True)
class Result:
    """One row of a report: the check, its outcome, what was seen, and what to do."""

    id: str
    status: Status
    title: str
    detail: str = ""
    hint: str = ""
    severity: Severity | None = None
    """None unless the result is a finding."""


@dataclass(frozen=True)
class Row:
    """A check's id, and the titles of its results."""

    id: str
    passed: str
    """The title if the check passes; also used after the words "it is not known whether"."""
    failed: str

    def ok(self, detail: str = "") -> Result:
        """Return the result of a passed check."""
        return Result(self.id, Status.OK, self.passed, detail)

    def finding(self, detail: str, hint: str, severity: Severity = Severity.HIGH) -> Result:
        """Return a finding: the check failed."""
        return Result(self.id, Status.FINDING, self.failed, detail, hint, severity)

    def unknown(self, why: object, hint: str) -> Result:
        """Return a finding: the check could not be completed."""
        title = f"it is not known whether {self.passed}"
        return Result(self.id, Status.FINDING, title, str(why), hint, Severity.MEDIUM)

    def disturbed(self, why: object) -> Result:
        """Return a finding: the check was disturbed, perhaps by the agent's processes."""
        hint = "end the user's other processes (loginctl terminate-user), then run this again"
        return self.unknown(f"could not be checked: {why}", hint)

    def not_checked(self, why: str) -> Result:
        """Return a note: there was nothing to check, or it is not known what to check."""
        return self.note(why, title=f"not checked whether {self.passed}")

    def note(self, detail: str, hint: str = "", title: str = "") -> Result:
        """Return a note."""
        return Result(self.id, Status.NOTE, title or self.passed, detail, hint)


EVERY = 0.1
"""Seconds between two updates of the progress line: often enough to see it move."""
_CLEAR = "\r\033[K"
"""Returns to the start of the line and clears it."""


def as_json(results: Sequence[Result]) -> str:
    """Return a JSON list of objects with id, status, severity, title, detail and hint."""
    rows = [
        {
            "id": result.id,
            "status": result.status.value,
            "severity": result.severity.name.lower() if result.severity is not None else None,
            "title": result.title,
            "detail": result.detail,
            "hint": result.hint,
        }
        for result in results
    ]
    return json.dumps(rows, indent=2)


def as_text(results: Sequence[Result], width: int = columns.PIPED) -> str:
    """Return lines of status, id and title; below each its detail and hint; then the summary.

    They keep to ``width`` columns, but for a longer hint: it may be a command to be pasted.
    """
    longest = max((len(result.id) for result in results), default=0)
    indent = " " * (7 + 2 + longest + 2)
    lines = []
    for result in results:
        title = shown(result.title)
        if result.severity is not None:
            title += f" [{result.severity.name.lower()}]"
        if result.status is Status.OK and result.detail:
            title += f" ({shown(result.detail)})"
        begin = f"{result.status.value:<7}  {result.id:<{longest}}  "
        lines += columns.hanging(begin, title, width)
        if result.status is not Status.OK:
            lines += columns.hanging(indent, shown(result.detail), width)
            if result.hint:
                hint = f"-> {shown(result.hint)}"
                lines.append((indent if len(indent) + len(hint) <= width else "  ") + hint)
    return "\n".join([*lines, summary(results)])


class ProgressLine:
    """Shows on a terminal what a command does now, in one line that is overwritten."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_on = stream.isatty()

    def say(self, what: str) -> None:
        """Show the current check, by its object."""
        self.show(f"checking {ascii_shown(what)} ...")

    def show(self, text: str) -> None:
        """Show a plain text, cut to the terminal's width: only one row can be overwritten."""
        if self._is_on:
            self._stream.write(f"{_CLEAR}{text[: columns.width_of(self._stream) - 1]}")
            self._stream.flush()

    def clear(self) -> None:
        """Clear the line."""
        if self._is_on:
            self._stream.write(_CLEAR)
            self._stream.flush()


class ScanProgress:
    """A line on a terminal that shows how far the walk of a tree is."""

    def __init__(self, stream: TextIO) -> None:
        self.line = ProgressLine(stream)
        self._next = 0.0

    def say(self, names: int, directory: str) -> None:
        """Show the count and the directory, at most once in ``EVERY`` seconds."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + EVERY
            self.line.say(f"{names} names, {directory}")


def summary(results: Sequence[Result]) -> str:
    """Return the last line of a report: the numbers of checks, findings and notes."""
    findings = sum(result.status is Status.FINDING for result in results)
    notes = sum(result.status is Status.NOTE for result in results)
    numbers = {"check": len(results), "finding": findings, "note": notes}
    return ", ".join(counted(number, what) for what, number in numbers.items())


def exit_code(results: Iterable[Result], fail_on: str) -> GitguardExit:
    """Return the exit code; findings of severity ``fail_on`` and above are a failure."""
    limit = Severity[fail_on.upper()]
    found = any(result.severity is not None and result.severity >= limit for result in results)
    return GitguardExit.FINDINGS if found else GitguardExit.OK
