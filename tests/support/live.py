"""The host's side of a stream of changes, and a program in the guest that watches directories."""

import ctypes
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import IO

from gitguardfs.base.signals import CHANGES
from gitguardfs.mounting import guards
from tests.support.mounting import LIMIT, REPOSITORY, until

BEGIN = {"gitguard-changes": 1, "shares": ["source"]}
WHOLE = {"in": "source", "whole": True}
AGAIN = {"in": "source", "again": ""}
BEAT = 0.5
"""Seconds between two beats, as ``gitguard watch`` sends them."""
IN_ISDIR = 0x40000000
KINDS = {
    0x2: "MODIFY", 0x4: "ATTRIB", 0x8: "CLOSE_WRITE", 0x40: "MOVED_FROM", 0x80: "MOVED_TO",
    0x100: "CREATE", 0x200: "DELETE", 0x400: "DELETE_SELF", 0x800: "MOVE_SELF",
}  # fmt: skip
_libc = ctypes.CDLL(None, use_errno=True)


class Watch:
    """An inotify instance. An event reads ``CREATE name``, ``CREATE/ name`` of a directory."""

    def __init__(self) -> None:
        self._fd = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        assert self._fd >= 0
        self._names: dict[int, str] = {}

    def add(self, path: Path, prefix: str = "") -> None:
        """Watch a file or directory; ``prefix`` stands before the names of its events."""
        number = _libc.inotify_add_watch(self._fd, bytes(path), sum(KINDS))
        assert number >= 0, os.strerror(ctypes.get_errno())
        self._names[number] = prefix

    def read(self) -> list[str]:
        """Return the events since the last call; the two of a rename are ``MOVED old > new``."""
        events: list[str] = []
        leaving: dict[int, int] = {}
        with suppress(BlockingIOError):
            while data := os.read(self._fd, 1 << 16):
                while data:
                    number, mask, cookie, size = struct.unpack("iIII", data[:16])
                    name = self._names[number] + os.fsdecode(data[16 : 16 + size].rstrip(b"\0"))
                    data = data[16 + size :]
                    kind = KINDS.get(mask & ~IN_ISDIR)
                    slash = "/" if mask & IN_ISDIR else ""
                    if kind == "MOVED_FROM":
                        leaving[cookie] = len(events)
                    elif kind == "MOVED_TO" and cookie in leaving:
                        at = leaving.pop(cookie)
                        events[at] = f"MOVED{slash} {events[at].partition(' ')[2]} > {name}"
                        continue
                    if kind is not None:
                        events.append(f"{kind}{slash} {name}".rstrip())
        return events

    def until(self, last: str) -> list[str]:
        """Wait for an event; return those since the last call, up to that one and later ones."""
        events: list[str] = []

        def is_seen() -> bool:
            events.extend(self.read())
            return last in events

        until(is_seen, f"{last}, after {events}")
        return events

    def close(self) -> None:
        os.close(self._fd)


class Host:
    """A connection to a daemon, as ``gitguard changes-in`` has one."""

    def __init__(self, pid: int, *, begins: bool = True) -> None:
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.settimeout(LIMIT)
        self._connection.connect(guards.changes_socket(pid))
        os.kill(pid, CHANGES)
        if begins:
            self.tell(BEGIN)

    def send(self, data: bytes) -> None:
        self._connection.sendall(data)

    def tell(self, *lines: dict[str, object]) -> None:
        self.send(b"".join(json.dumps(line).encode() + b"\n" for line in lines))

    def is_closed(self) -> bool:
        """Wait until the daemon has closed the connection."""
        with suppress(ConnectionResetError):
            assert self._connection.recv(1) == b""
        return True

    def close(self) -> None:
        self._connection.close()


def kept_files(view: Path) -> set[Path]:
    """Return the files that exist while the kernel caches for long."""
    device = view.stat().st_dev
    name = f"{os.major(device)}:{os.minor(device)}.kept*"
    return set(Path(guards.RECORDS).glob(name))


class Beats:
    """The beats of a stream, sent by a thread until ``stop``."""

    def __init__(self, target: Host | IO[bytes]) -> None:
        self._target = target
        self._ended = Event()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        beat = 0
        while not self._ended.wait(BEAT):
            beat += 1
            line = {"beat": beat, "watched": {"source": 1}}
            with suppress(OSError):
                tell(self._target, line)

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()


def tell(target: Host | IO[bytes], *lines: dict[str, object]) -> None:
    """Send lines to a daemon, or to the standard input of ``gitguard changes-in``."""
    if isinstance(target, Host):
        target.tell(*lines)
    else:
        target.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))


@contextmanager
def kept(view: Path, target: Host | IO[bytes]) -> Iterator[Beats]:
    """Say that all changes are told, and go on saying so; the kernel caches for long meanwhile."""
    tell(target, WHOLE)
    beats = Beats(target)
    try:
        until(lambda: kept_files(view), "the kernel caches for long")
        yield beats
    finally:
        beats.stop()


def gitguard(*arguments: str | Path) -> list[str]:
    code = "from gitguardfs.commands.gitguard import main; main()"
    return [sys.executable, "-c", code, *map(str, arguments)]


@contextmanager
def changes_in(*arguments: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``gitguard changes-in``; its standard input is an unbuffered pipe."""
    process = subprocess.Popen(
        gitguard("changes-in", *arguments), stdin=subprocess.PIPE, bufsize=0,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    assert process.stdin is not None
    try:
        yield process
    finally:
        with suppress(BrokenPipeError):
            process.stdin.close()
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait(LIMIT)


@contextmanager
def watched(source: Path, view: Path) -> Iterator[None]:
    """Run ``gitguard watch`` of a source, whose output ``gitguard changes-in`` reads."""
    with changes_in(view) as bridge:
        watching = subprocess.Popen(
            gitguard("watch", source, "--to", "-"), stdin=subprocess.DEVNULL, stdout=bridge.stdin,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )  # fmt: skip
        try:
            yield
        finally:
            watching.terminate()
            watching.wait(LIMIT)
