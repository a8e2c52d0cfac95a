"""Refusals: counted always, written as JSON lines when asked for, never in anybody's way."""

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
"""What one mount writes at most; an agent that floods is told of by a count instead."""
BURST = 200
QUEUE_LENGTH = 1000
"""Lines that may wait for a slow disk; further ones are counted as dropped."""

log = logging.getLogger(__name__)


class AuditLog:
    """Counts refusals and hands lines to a thread that writes them."""

    def __init__(self, fd: int | None) -> None:
        """Append to the file behind ``fd``, which is closed at the end; None only counts."""
        self.refused: Counter[str] = Counter()
        self._allowance = float(BURST)
        self._refilled = time.monotonic()
        self._dropped = 0
        self._spool: Spool[dict[str, Any]] | None = None
        self._fd = -1 if fd is None else fd

    def start(self) -> None:
        """Start the writer; after fork, since threads do not survive it."""
        if self._fd >= 0:
            self._spool = Spool("audit", self._write, QUEUE_LENGTH)

    def refuse(self, operation: str, refused: Refused, uid: int, pid: int) -> None:
        """Note one refusal; ``pid`` 0 means unknown."""
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
        """Write what waits, and end."""
        if self._spool is not None:
            if self._dropped:
                log.warning("the audit log is short of %d refusals", self._dropped)
            self._spool.close(room=1, patience=5)
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
