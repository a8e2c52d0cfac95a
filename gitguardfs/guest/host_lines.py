"""Brings the host's lines about its changes to the daemons of the views that they are about.

A share is known by its mount tag; a source that lies on no share, by its directory's name.
TAG=MOUNTPOINT overrides both. A view of a directory in a share gets the lines on that directory.
Daemons come and go: a new one is told to look at all again.
"""

from __future__ import annotations

import glob
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from gitguardfs.base.constants import CHANGES_PORT, SHARE_TYPES
from gitguardfs.base.errors import Exit, UserError
from gitguardfs.base.paths import is_inside
from gitguardfs.base.signals import CHANGES
from gitguardfs.linux import mountinfo
from gitguardfs.live.lines import LONGEST, ON_NAMES, VERSION
from gitguardfs.mounting import guards

PORT = f"/dev/virtio-ports/{CHANGES_PORT}"
"""The port by which the host of a VM tells of its changes."""
STATUS = ".told"
"""The end of the names of files in ``RECORDS`` that say who is told, by process id."""
SEND_LIMIT = 0.5
"""Seconds that a daemon has to take a line; then it is connected anew, and looks at all again."""
STALE = 3.0
"""Seconds after which a status counts no more; it is written each second."""
MOST_SHARES = 64
"""Shares of which the host may tell."""
ROOM = 1 << 20
"""Bytes of lines that may wait for a daemon."""

Object = dict[str, Any]


@dataclass
class _Target:
    """A view that is told."""

    mountpoint: str
    tag: str | None
    """The share's tag; None for a view that is told everything."""
    prefix: str
    """Where its source lies in the share; empty for the share itself."""
    pid: int
    connection: socket.socket
    lines: int = 0


@dataclass
class _Share:
    """State of a share, as the host tells it."""

    whole: bool = False
    why: str = ""
    watched: int = 0
    last: float | None = None
    """When the last change came (time.monotonic)."""


@dataclass(frozen=True)
class Route:
    """A view, and the lines that it gets."""

    mountpoint: str
    tag: str | None
    prefix: str
    pid: int


def routes(named: Iterable[str]) -> list[Route]:
    """Return the views that are told: ``[TAG=]MOUNTPOINT`` each, or all that have a share."""
    wanted: dict[str, str | None] = {}
    for word in named:
        tag, found, given = word.partition("=")
        has_tag = bool(found) and "/" not in tag
        wanted[os.path.realpath(given if has_tag else word)] = tag if has_tag else None
    mounts = mountinfo.listed()
    places = {mount.identity: mount.path for mount in mounts}
    shares = [mount for mount in mounts if mount.fstype in SHARE_TYPES]
    all_routes = []
    for daemon in guards.servers():
        path = places.get(daemon.view)
        if path is None or (wanted and path not in wanted):
            continue
        share = max(
            (one for one in shares if is_inside(daemon.source, one.path)),
            key=lambda one: len(one.path), default=None,
        )  # fmt: skip
        own_tag: str | None = os.path.basename(daemon.source)
        prefix = ""
        if share is not None:
            own_tag, prefix = share.source, os.path.relpath(daemon.source, share.path)
            prefix = "" if prefix == "." else prefix
        if len(wanted) == 1 or wanted.get(path) is not None:
            own_tag = wanted.get(path)
        if share is None or own_tag != share.source:
            prefix = ""  # the host watches what the view shows
        all_routes.append(Route(path, own_tag, prefix, daemon.pid))
    return all_routes


@dataclass
class Bridge:
    """The connections to daemons. ``named`` is as for ``routes``."""

    named: tuple[str, ...]
    _targets: dict[int, _Target] = field(default_factory=dict)
    """By process id of the daemon."""
    _shares: dict[str, _Share] = field(default_factory=dict)

    def take(self, line: bytes) -> None:
        """Pass a line on. Raises ValueError for what is no line, and for another version."""
        try:
            found = json.loads(line) if len(line) <= LONGEST else None
        except RecursionError:
            found = None
        if not isinstance(found, dict):
            raise ValueError("the host sends no lines about changes")
        if "gitguard-changes" in found:
            if found["gitguard-changes"] != VERSION:
                raise ValueError(
                    f"the host's gitguardfs tells in version {found['gitguard-changes']!r:.20},"
                    f" and this one is told in version {VERSION}"
                )
            self._shares = {}
            self._connect()
            for target in list(self._targets.values()):
                self._send(target, {"gitguard-changes": VERSION})
                self._send(target, {"again": ""})
        elif "beat" in found:
            watched = found.get("watched")
            told = watched if isinstance(watched, dict) else {}
            for tag, number in told.items():
                self._share(tag).watched = number if isinstance(number, int) else 0
            self._connect()
            for target in list(self._targets.values()):
                if target.tag is None or target.tag in told:
                    number = self._share(target.tag).watched
                    self._send(target, {"beat": found["beat"], "watched": {"": number}})
            self._write_status()
        else:
            self._pass_on(found)

    def _pass_on(self, found: Object) -> None:
        tag = found.pop("in", None)
        if not isinstance(tag, str):
            raise ValueError("a line without a share")
        share = self._share(tag)
        if "whole" in found:
            share.whole, share.why = found["whole"] is True, str(found.get("why", ""))[:200]
        elif "again" not in found:
            share.last = time.monotonic()
        for target in list(self._targets.values()):
            if target.tag in (tag, None):
                inside = _inside(found, target.prefix)
                if inside is not None:
                    target.lines += 1
                    self._send(target, inside)

    def _share(self, tag: str | None) -> _Share:
        if tag is None:  # a single view that is told everything
            return next(iter(self._shares.values()), _Share())
        if tag not in self._shares and len(self._shares) >= MOST_SHARES:
            raise ValueError("the host tells of too many shares")
        return self._shares.setdefault(tag, _Share())

    def _connect(self) -> None:
        """Connect to daemons that are new, and let go of those that have ended."""
        found = {route.pid: route for route in routes(self.named)}
        for pid in self._targets.keys() - found.keys():
            self._drop(self._targets[pid])
        for pid, route in found.items():
            if pid in self._targets:
                continue
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.settimeout(SEND_LIMIT)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ROOM)
                connection.connect(guards.changes_socket(pid))
                process = os.pidfd_open(pid)
                try:
                    signal.pidfd_send_signal(process, CHANGES)
                finally:
                    os.close(process)
            except OSError:
                connection.close()
                continue
            target = _Target(route.mountpoint, route.tag, route.prefix, pid, connection)
            self._targets[pid] = target
            self._send(target, {"gitguard-changes": VERSION})
            self._send(target, {"again": ""})
            share = self._share(route.tag)
            if share.whole or share.why:
                self._send(target, {"whole": share.whole, "why": share.why})

    def _send(self, target: _Target, line: Object) -> None:
        try:
            target.connection.sendall(json.dumps(line).encode() + b"\n")
        except OSError:
            self._drop(target)

    def _drop(self, target: _Target) -> None:
        target.connection.close()
        self._targets.pop(target.pid, None)

    def close(self) -> None:
        """Tell nobody any more."""
        for target in list(self._targets.values()):
            self._drop(target)
        with suppress(FileNotFoundError):
            os.unlink(_status_of(os.getpid()))

    def _write_status(self) -> None:
        now = time.monotonic()
        views = []
        for target in self._targets.values():
            share = self._share(target.tag)
            last = None if share.last is None else round(now - share.last, 1)
            views.append(
                {"mountpoint": target.mountpoint, "arrives": True, "whole": share.whole,
                 "why": share.why, "watched": share.watched, "lines": target.lines,
                 "last_change": last}
            )  # fmt: skip
        path = _status_of(os.getpid())
        with suppress(OSError):
            with open(f"{path}.new", "w", encoding="utf-8", opener=_private) as file:
                json.dump({"at": now, "views": views}, file)
            os.rename(f"{path}.new", path)


def _status_of(pid: int) -> str:
    return f"{guards.RECORDS}/{pid}{STATUS}"


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _inside(line: Object, prefix: str) -> Object | None:
    """Return a line with paths relative to a directory of the share; None if it is not about it."""
    if not prefix or "whole" in line:
        return line
    kind = next((kind for kind in (*ON_NAMES, "moved") if kind in line), "")
    given = line.get(kind)
    old_and_new = given if kind == "moved" and isinstance(given, list) else [given]
    if kind in ("made", "gone", "moved") and any(
        isinstance(path, str) and is_inside(f"/{prefix}", f"/{path}") for path in old_and_new
    ):
        return {"whole": False, "why": "the directory, or one above it, is another one now"}
    paths = [_below(path, prefix) for path in old_and_new if isinstance(path, str)]
    if kind == "moved" and len(paths) == 2:
        old, new = paths
        if old and new:
            return {"moved": [old, new]}
        return {"gone": old} if old else {"made": new} if new else None
    if kind == "again" and isinstance(given, str) and is_inside(f"/{prefix}", f"/{given}"):
        return {"again": ""}
    if kind in ("attributes", "listing") and given == prefix:
        return {kind: ""}
    return {kind: paths[0]} if paths and paths[0] else None


def _below(path: str, prefix: str) -> str:
    return path.removeprefix(f"{prefix}/") if path.startswith(f"{prefix}/") else ""


def status(named: Iterable[str]) -> list[Object]:
    """Return what is known of each view, as ``gitguard changes-in --status --json`` prints it."""
    told: dict[str, Object] = {}
    for path in glob.glob(f"{guards.RECORDS}/*{STATUS}"):
        with suppress(OSError, ValueError), open(path, "rb") as file:
            found = json.load(file)
            if time.monotonic() - found["at"] < STALE:
                told |= {one["mountpoint"]: one for one in found["views"]}
    silent = {"arrives": False, "whole": False, "why": "", "watched": 0, "lines": 0,
              "last_change": None}  # fmt: skip
    return [
        told.get(route.mountpoint, {"mountpoint": route.mountpoint, **silent})
        for route in routes(named)
    ]


def read_lines(read: Callable[[], bytes], take: Callable[[bytes], None]) -> None:
    """Take the lines of a stream until it ends; those before its first line are dropped."""
    text, has_begun = b"", False
    while data := read():
        *whole, text = (text + data).split(b"\n")
        if len(text) > LONGEST:
            raise ValueError("a line that is too long")
        for line in whole:
            has_begun = has_begun or line.startswith(b'{"gitguard-changes"')
            if has_begun:
                take(line)


def check_root() -> None:
    """Raise UserError unless this process is root's: only root may tell a guard."""
    if os.geteuid() != 0:
        raise UserError("gitguard changes-in needs root", "run it with sudo", Exit.SYSTEM)
