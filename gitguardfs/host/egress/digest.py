"""A digest of blocked requests as they come, in few rows: a client can ask thousands of times."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from gitguardfs.base.errors import ascii_shown, counted, word
from gitguardfs.host.egress import blocked
from gitguardfs.host.egress.addresses import PRIVATE_WORD
from gitguardfs.host.egress.blocked import BlockedRequest, Group, Groups, Key

MAX_AT_ONCE = 10
"""Groups that are shown at once; after these, one more each second."""
AGAIN_AFTER = 10.0
"""Seconds until a group is shown again, with the number of requests in between."""
_MIN_URL = 20
"""Characters of a URL that are shown at least."""
_MAX_REASON = 60


class Digest:
    """The choice of the groups to show, and of the moment for each."""

    def __init__(self) -> None:
        self._waiting: Groups = {}
        self._shown: dict[Key, float] = {}
        """The time at which each group that may not be shown again yet was shown."""
        self._budget = float(MAX_AT_ONCE)
        self._now = 0.0
        self._left_out = 0
        self._left_out_shown = float("-inf")

    def add(self, entries: Iterable[BlockedRequest], now: float) -> list[Group]:
        """Return the groups to show at the time ``now`` (seconds of a clock that never jumps)."""
        self._budget = min(MAX_AT_ONCE, self._budget + max(0.0, now - self._now))
        self._now = now
        for entry in entries:
            key = blocked.key_of(entry)
            if key in self._shown or key in self._waiting or self._has_budget():
                blocked.add(self._waiting, entry)
            else:
                self._left_out += 1
        due = []
        for key in list(self._waiting):
            if now - self._shown.get(key, float("-inf")) < AGAIN_AFTER:
                continue
            if key not in self._shown or self._has_budget():
                due.append(key)
            else:
                self._left_out += self._waiting.pop(key).count
        self._shown = {key: at for key, at in self._shown.items() if now - at < AGAIN_AFTER}
        self._shown.update(dict.fromkeys(due, now))
        return [self._waiting.pop(key) for key in due]

    def rows(self, groups: list[Group], width: int) -> list[str]:
        """Return a row for each group, and now and then one for the requests left out."""
        found = [row(group, width) for group in groups]
        if self._left_out and self._now - self._left_out_shown >= AGAIN_AFTER:
            others = counted(self._left_out, "other request")
            found.append(f"and {others}: gitguard vm blocked shows the latest"[: width - 1])
            self._left_out, self._left_out_shown = 0, self._now
        return found

    def _has_budget(self) -> bool:
        if self._budget < 1:
            return False
        self._budget -= 1
        return True


def row(group: Group, width: int) -> str:
    """Return a group in one row of ASCII.

    A client chooses most of the text. Newlines, blanks and wide characters are escaped in it,
    so that it cannot begin a row of its own.
    """
    last = group.last
    end = f" ({group.count} times)" if group.count > 1 else ""
    if not group.line or group.line.endswith(PRIVATE_WORD):
        end += f": {ascii_shown(last.reason)[:_MAX_REASON]}"
    begin = f"{_clock(last.time)} blocked {ascii_shown(word(last.method))[:_MIN_URL]} "
    url = ascii_shown(word(last.url))
    room = max(_MIN_URL, width - 1 - len(begin) - len(end))
    url = url if len(url) <= room else f"{url[: room - 3]}..."
    return f"{begin}{url}{end}"[: width - 1]


def _clock(time: str) -> str:
    try:
        return f"{datetime.fromisoformat(time).astimezone():%H:%M:%S}"
    except (ValueError, OverflowError):
        return "at some time"
