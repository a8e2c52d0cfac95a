"""What a check or an audit finds, as text or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TextIO

from gitguardfs.errors import GitguardExit, shown


class Status(Enum):
    """How a check came out."""

    OK = "ok"
    FINDING = "finding"
    """The user has a way round the guard, or it cannot be excluded."""
    NOTE = "note"
    """Worth knowing; no way round the guard."""


class Severity(IntEnum):
    """How bad a finding is."""

    LOW = 1
    """A setting that would help."""
    MEDIUM = 2
    """A way round the guard cannot be excluded."""
    HIGH = 3
    """There is a way round the guard."""


SEVERITIES = [severity.name.lower() for severity in Severity]
"""Their names, the least one first, as on command lines and in JSON."""


@dataclass(frozen=True)
class Result:
    """One row: which check, how it came out, what was seen and what to do about it."""

    id: str
    status: Status
    title: str
    detail: str = ""
    hint: str = ""
    severity: Severity | None = None
    """Of a finding."""


@dataclass(frozen=True)
class Row:
    """What a check is about: its id, and a sentence for each way in which it can come out."""

    id: str
    passed: str
    """What holds if all is well; a sentence that can follow "it is not known whether"."""
    failed: str

    def ok(self, detail: str = "") -> Result:
        """All is well."""
        return Result(self.id, Status.OK, self.passed, detail)

    def finding(self, detail: str, hint: str, severity: Severity = Severity.HIGH) -> Result:
        """Something is to be mended."""
        return Result(self.id, Status.FINDING, self.failed, detail, hint, severity)

    def unknown(self, why: object, hint: str) -> Result:
        """A finding: whether all is well could not be found out."""
        title = f"it is not known whether {self.passed}"
        return Result(self.id, Status.FINDING, title, str(why), hint, Severity.MEDIUM)

    def disturbed(self, why: object) -> Result:
        """A finding: the user's processes were kept from trying, perhaps by the agent."""
        hint = "end what else the user has running (loginctl terminate-user), and run this again"
        return self.unknown(f"could not be tried: {why}", hint)

    def note(self, detail: str, hint: str = "", title: str = "") -> Result:
        """Something to know."""
        return Result(self.id, Status.NOTE, title or self.passed, detail, hint)


_CLEAR = "\r\033[K"
"""Back to the line's begin, and clear it."""


def as_json(results: Sequence[Result]) -> str:
    """A list of objects with id, status, severity, title, detail and hint."""
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


def as_text(results: Sequence[Result]) -> str:
    """Aligned columns: status, id, what; below it what was seen and what to do."""
    width = max((len(result.id) for result in results), default=0)
    lines = []
    for result in results:
        line = f"{result.status.value:<7}  {result.id:<{width}}  {shown(result.title)}"
        if result.severity is not None:
            line += f" [{result.severity.name.lower()}]"
        if result.status is Status.OK and result.detail:
            line += f" ({shown(result.detail)})"
        lines.append(line)
        indent = " " * (7 + 2 + width + 2)
        if result.status is not Status.OK:
            lines += [f"{indent}{shown(text)}" for text in (result.detail,) if text]
            lines += [f"{indent}-> {shown(text)}" for text in (result.hint,) if text]
    return "\n".join([*lines, summary(results)])


class Progress:
    """Says on a terminal what is looked at, in one line that the next one replaces."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_on = stream.isatty()

    def say(self, what: str) -> None:
        """Show that ``what`` is looked at now."""
        if self._is_on:
            self._stream.write(f"{_CLEAR}looking at {shown(what)} ...")
            self._stream.flush()

    def clear(self) -> None:
        """Take the line away."""
        if self._is_on:
            self._stream.write(_CLEAR)
            self._stream.flush()


def summary(results: Sequence[Result]) -> str:
    """The last line."""
    findings = sum(result.status is Status.FINDING for result in results)
    notes = sum(result.status is Status.NOTE for result in results)
    parts = [f"{len(results)} checks", _counted(findings, "finding"), _counted(notes, "note")]
    return ", ".join(parts)


def _counted(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


def exit_code(results: Iterable[Result], fail_on: str) -> GitguardExit:
    """Return what a command exits with that is to fail from this severity on."""
    limit = Severity[fail_on.upper()]
    found = any(result.severity is not None and result.severity >= limit for result in results)
    return GitguardExit.FINDINGS if found else GitguardExit.OK
