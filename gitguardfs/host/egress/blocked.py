"""The log of blocked requests: written by the proxy, read and grouped for the user."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from gitguardfs.host.egress.addresses import PRIVATE_WORD
from gitguardfs.host.egress.allowlist import BadLineError, BlockKind, parse_line
from gitguardfs.host.egress.urls import MAX_TARGET

MAX_BYTES = 10 << 20
"""The size of the log, and of its older part: requests in a loop must not fill the disk."""
MAX_RECENT = 200
"""Requests that the proxy keeps in memory, the latest: at most some MiB."""
PLACEHOLDER_ADVICE = (
    "A line of the allowlist does not change that. Use a secret by its variable, and send it as its"
    " service expects it; on the host, `gitguard vm secret list` names hosts and places."
)
MISLED_ADVICE = (
    "This is a name of the public internet, so its address should be public. A DNS filter or a VPN"
    " may block the name: unblock it there. Or the network wants a sign-in first: open the URL in a"
    " browser on the host. A line would send the request to whoever has that address."
)
SINKHOLE_ADVICE = (
    "No line can allow that address, which DNS filters give for names that they block. Unblock the"
    " name there, or in /etc/hosts, on the host. For a server on the host itself, use its address."
)
MAX_URL = MAX_TARGET + 300
"""Characters of a URL that are logged; no URL that can be allowed has more."""


class BlockedRequest(NamedTuple):
    """A request that was blocked."""

    time: str
    """UTC, as ISO 8601."""
    method: str
    url: str
    reason: str
    kind: BlockKind


class BlockedLog:
    """The log of blocked requests at ``path``; the latest are in memory, too."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.recent: deque[BlockedRequest] = deque(maxlen=MAX_RECENT)
        """Requests that were added here, oldest first."""

    def add(self, method: str, url: str, reason: str, kind: BlockKind) -> None:
        """Append a request. Raises OSError if the file cannot be written."""
        time = datetime.now(UTC).isoformat(timespec="seconds")
        entry = BlockedRequest(time, method[:MAX_URL], url[:MAX_URL], reason[:MAX_URL], kind)
        self.recent.append(entry)
        fields = {**entry._asdict(), "kind": kind.value}
        line = json.dumps(fields).encode() + b"\n"  # ASCII: no control character of the client's
        with suppress(FileNotFoundError):
            if self._path.stat().st_size + len(line) > MAX_BYTES:
                os.replace(self._path, rotated(self._path))
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(self._path, flags, 0o600), "ab", buffering=0) as file:
            file.write(line)


def rotated(path: Path) -> Path:
    """Return the path of a log's older part."""
    return path.with_name(f"{path.name}.1")


def read(path: Path) -> Iterator[BlockedRequest]:
    """Yield blocked requests, oldest first; skip lines that cannot be read. Raises OSError."""
    for part in (rotated(path), path):
        with suppress(FileNotFoundError):
            with open(part, "rb") as file:
                yield from parsed(file)


def parsed(lines: Iterable[bytes]) -> Iterator[BlockedRequest]:
    """Yield the blocked requests in lines of the log; skip lines that cannot be read."""
    return filter(None, map(_entry, lines))


def _entry(line: bytes) -> BlockedRequest | None:
    try:
        found = json.loads(line)
        texts = [found[name] for name in ("time", "method", "url", "reason")]
        kind = BlockKind(found["kind"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not all(isinstance(text, str) for text in texts):
        return None
    time, method, url, reason = texts
    return BlockedRequest(time, method, url, reason, kind)


@dataclass
class Group:
    """Blocked requests with the same method, reason and URL; their queries may differ."""

    last: BlockedRequest
    count: int = 0
    is_one_url: bool = True
    """Whether all its requests have one URL, with one query."""

    def add(self, entry: BlockedRequest) -> None:
        """Count one more request."""
        self.is_one_url = self.is_one_url and entry.url == self.last.url
        self.last = entry
        self.count += 1

    @property
    def line(self) -> str:
        """The line that would allow all requests of the group; "" if no line can."""
        return self._line()[0]

    @property
    def is_misled(self) -> bool:
        """Whether its host should have a public address, so that a line is the wrong remedy."""
        return self.last.kind is BlockKind.MISLED

    @property
    def why_none(self) -> str:
        """The reason why no line can allow them; "" if one can."""
        return self._line()[1]

    def _line(self) -> tuple[str, str]:
        kind, url = self.last.kind, self.last.url
        if why := _UNCHANGED_BY_LINES.get(kind):
            return "", why
        if len(url) >= MAX_URL:
            return "", _UNCHANGED_BY_LINES[BlockKind.REQUEST]
        url = url if self.is_one_url else f"{url.partition('?')[0]}?*"
        return line_for(self.last.method, url, is_private=kind in _NOT_PUBLIC)


_NOT_PUBLIC = (BlockKind.ADDRESS, BlockKind.MISLED)
_UNCHANGED_BY_LINES = {
    BlockKind.ALLOWLIST: "correct the allowlist first",
    BlockKind.PLACEHOLDER: PLACEHOLDER_ADVICE,
    BlockKind.SINKHOLE: SINKHOLE_ADVICE,
    BlockKind.BUSY: "no line changes that",
    BlockKind.REQUEST: "no line can allow such a request",
    BlockKind.FAULT: "no line can allow such a request",
}

Key = tuple[str, ...]
"""The key of a group: method, URL without its query, reason."""
Groups = dict[Key, Group]
"""Groups, the one with the latest request last. Their number grows with clients' URLs."""


def key_of(entry: BlockedRequest) -> Key:
    """Return the key of a request's group."""
    return (entry.method, *entry.url.partition("?")[:2], entry.reason)


def add(groups: Groups, entry: BlockedRequest) -> None:
    """Add a request to its group, which is the last one then."""
    key = key_of(entry)
    group = groups.pop(key, None) or Group(entry)
    group.add(entry)
    groups[key] = group


def grouped(entries: Iterable[BlockedRequest], most: int | None = None) -> list[Group]:
    """Group blocked requests; return the last ``most`` groups, the latest at the end."""
    groups: Groups = {}
    for entry in entries:
        add(groups, entry)
    return list(groups.values())[-most if most else None :]


def line_for(method: str, url: str, *, is_private: bool = False) -> tuple[str, str]:
    """Return the line that would allow a request, and ""; or "" and why no line can."""
    end = f" {PRIVATE_WORD}" if is_private else ""
    path, mark, _ = url.partition("?")
    try:
        return parse_line(f"{method} {url}{end}").line, ""
    except BadLineError as error:
        why = str(error)
    if mark:  # a query with a % that is no escape cannot be spelled in a line; a * spans it
        with suppress(BadLineError):
            return parse_line(f"{method} {path}?*{end}").line, ""
    return "", why
