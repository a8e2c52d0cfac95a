"""The audit log: counts every refusal and, with ``--audit-log``, writes them as JSON lines.

Requests never wait for the log: a thread writes it, and lines that come too fast are dropped.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import Any, Protocol

from gitguardfs.base.errors import UserError
from gitguardfs.base.spool import Spool
from gitguardfs.names.rules import Refused

BYTES_PER_SECOND = 16 << 10
"""Most bytes per second that one mount writes, so that an agent cannot fill the disk. The next
written line has the number of dropped lines."""
BURST = 64 << 10
"""Bytes that may be written at once, after a time with few refusals. A line that begins below the
limit is written whole; its excess delays the next line."""
SHOWN_END = 300
"""Characters that are written of a long path's beginning, and of its end. With long paths an agent
could use up the allowance, so that its next refusals would not be logged."""
QUEUE_LENGTH = 1000
"""Lines that may wait for a slow disk; further ones are counted as dropped."""

log = logging.getLogger(__name__)


class LogFile(Protocol):
    """A file that lines are appended to."""

    def write(self, line: bytes) -> None:
        """Append a line. Raises OSError and UserError."""

    def close(self) -> None:
        """Close it."""


class AuditLog:
    """Counts refusals and hands lines to a thread that writes them."""

    def __init__(self, file: LogFile | None) -> None:
        """Own ``file``, which is closed at the end; None only counts."""
        self.refused: Counter[str] = Counter()
        self._allowance = float(BURST)
        self._refilled = time.monotonic()
        self._dropped = 0
        self._spool: Spool[bytes] | None = None
        self._file = file

    def start(self) -> None:
        """Start the writing thread. Call this after fork(2), which threads do not survive."""
        if self._file is not None:
            self._spool = Spool("audit", self._write, QUEUE_LENGTH)

    def refuse(self, operation: str, refused: Refused, uid: int, pid: int) -> None:
        """Count one refusal and queue its line; ``pid`` 0 means unknown."""
        self.refused[refused.rule] += 1
        if self._spool is None:
            return
        if not self._may_write():
            self._dropped += 1
            return
        import json

        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "operation": operation,
            "path": _shortened(refused.where().decode(errors="backslashreplace")),
            "uid": uid,
            "pid": pid,
            "command": _command(pid),
            "rule": refused.rule,
        }
        if self._dropped:
            line["dropped"] = self._dropped
        text = json.dumps(line).encode() + b"\n"
        self._allowance -= len(text)
        self._dropped = 0 if self._spool.put(text) else self._dropped + 1

    def _may_write(self) -> bool:
        now = time.monotonic()
        self._allowance += (now - self._refilled) * BYTES_PER_SECOND
        self._allowance = min(self._allowance, BURST)
        self._refilled = now
        return self._allowance > 0

    def _write(self, line: bytes) -> None:
        assert self._file is not None
        try:
            self._file.write(line)
        except OSError as error:
            log.error("audit log: %s", error.strerror)
        except UserError as error:
            log.error("audit log: %s", error)

    def close(self) -> None:
        """Write the lines that wait, close the file, and log how many requests were refused."""
        if self._spool is not None:
            if self._dropped:
                log.warning("the audit log is short of %d refusals", self._dropped)
            self._spool.close(queue_limit=1, write_limit=5)
        if self._file is not None:
            self._file.close()
            self._file = None
        if self.refused:
            counts = ", ".join(f"{rule}: {times}" for rule, times in self.refused.most_common())
            log.info("refused %d requests (%s)", self.refused.total(), counts)


def _shortened(path: str) -> str:
    if len(path) <= 2 * SHOWN_END:
        return path
    return f"{path[:SHOWN_END]}...{path[-SHOWN_END:]}"


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read(64).decode(errors="backslashreplace").rstrip("\n")
    except OSError:
        return ""
