"""The audit log: counts every refusal and, with ``--audit-log``, writes them as JSON lines.

Requests never wait for the log: a thread writes it, and lines that come too fast are dropped.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections import Counter
from typing import Any

from gitguardfs.guard.rules import Refused
from gitguardfs.spool import Spool

LINES_PER_SECOND = 50
"""Lines that one mount writes at most, so that an agent cannot fill the disk. The next line that
is written has the count of those that were dropped."""
BURST = 200
"""Lines that may be written at once, after a time with few refusals."""
QUEUE_LENGTH = 1000
"""Lines that may wait for a slow disk; further ones are counted as dropped."""

log = logging.getLogger(__name__)


class AuditLog:
    """Counts refusals and hands lines to a thread that writes them."""

    def __init__(self, fd: int | None) -> None:
        """Own ``fd``, a file open for appending, which is closed at the end; None only counts."""
        self.refused: Counter[str] = Counter()
        self._allowance = float(BURST)
        self._refilled = time.monotonic()
        self._dropped = 0
        self._spool: Spool[dict[str, Any]] | None = None
        self._fd = -1 if fd is None else fd

    def start(self) -> None:
        """Start the writing thread. Call this after fork(2), which threads do not survive."""
        if self._fd >= 0:
            self._spool = Spool("audit", self._write, QUEUE_LENGTH)

    def refuse(self, operation: str, refused: Refused, uid: int, pid: int) -> None:
        """Count one refusal and queue its line; ``pid`` 0 means unknown."""
        self.refused[refused.rule] += 1
        if self._spool is None:
            return
        if not self._may_write():
            self._dropped += 1
            return
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "operation": operation,
            "path": refused.where().decode(errors="backslashreplace"),
            "uid": uid,
            "pid": pid,
            "command": _command(pid),
            "rule": refused.rule,
        }
        if self._dropped:
            line["dropped"] = self._dropped
        self._dropped = 0 if self._spool.put(line) else self._dropped + 1

    def _may_write(self) -> bool:
        now = time.monotonic()
        self._allowance += (now - self._refilled) * LINES_PER_SECOND
        self._allowance = min(self._allowance, BURST)
        self._refilled = now
        if self._allowance < 1:
            return False
        self._allowance -= 1
        return True

    def _write(self, line: dict[str, Any]) -> None:
        try:
            os.write(self._fd, json.dumps(line).encode() + b"\n")
        except OSError as error:
            log.error("audit log: %s", error.strerror)

    def close(self) -> None:
        """Write the lines that wait, close the file, and log how many requests were refused."""
        if self._spool is not None:
            if self._dropped:
                log.warning("the audit log is short of %d refusals", self._dropped)
            self._spool.close(queue_limit=1, write_limit=5)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self.refused:
            counts = ", ".join(f"{rule}: {times}" for rule, times in self.refused.most_common())
            log.info("refused %d requests (%s)", self.refused.total(), counts)


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read(64).decode(errors="backslashreplace").rstrip("\n")
    except OSError:
        return ""
