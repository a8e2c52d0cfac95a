"""Which lines of the allowlist were used, and when: written by the proxy, read for the user."""

from __future__ import annotations

import json
import logging
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from gitguardfs.base.errors import UserError
from gitguardfs.options import config_files

log = logging.getLogger("gitguardfs.host.egress")

WRITE_EVERY = 60.0
"""Seconds until the file is written again for the same line: a client may ask all the time."""
MAX_LINES = 10_000
"""Lines that are kept, the latest; the allowlist changes, and the file must not grow for ever."""


@dataclass
class Usage:
    """The times of use, at most WRITE_EVERY seconds too early: UTC, as ISO 8601."""

    since: str
    """Lines that are not in ``used`` were not used since then."""
    used: dict[str, str] = field(default_factory=dict)


def read(path: Path) -> Usage | None:
    """Return the file's content; None if there is none, or it is damaged."""
    with suppress(
        OSError, UserError, ValueError, TypeError, KeyError, AttributeError, RecursionError,
        OverflowError,
    ):  # fmt: skip
        found = json.loads(config_files.read(str(path)) or b"")
        usage = Usage(str(found["since"]), {str(k): str(v) for k, v in found["used"].items()})
        for moment in (usage.since, *usage.used.values()):
            datetime.fromisoformat(moment).astimezone()
        return usage
    return None


class UsageLog:
    """Writes the file ``path``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._usage = read(path) or Usage(_now())
        self._written: dict[str, float] = {}
        self._write()

    def note(self, line: str) -> None:
        """Note that a line has allowed a request. A file that cannot be written is logged."""
        now = time.monotonic()
        if now - self._written.get(line, float("-inf")) < WRITE_EVERY:
            return
        used = self._usage.used
        used.pop(line, None)
        used[line] = _now()
        self._written[line] = now
        for kept in (used, self._written):
            while len(kept) > MAX_LINES:
                del kept[next(iter(kept))]
        self._write()

    def _write(self) -> None:
        text = json.dumps({"since": self._usage.since, "used": self._usage.used})
        try:
            config_files.put(self._path, f"{text}\n")
        except (OSError, UserError) as error:
            log.error("cannot write %s: %s", self._path, error)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
