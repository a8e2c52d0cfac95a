"""Measures the cost of one request, in microseconds, without the kernel's caches."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.rounds import Say
from benchmarks.views import PLAIN, View, mounted

ENTRIES = 1000
"""Number of files in the directory that is worked in."""
REPEATS = 5
CONTENT = b"x" * 1000

Loop = Callable[[Path, int], int]
"""Repeats a request in a directory; returns the number of requests."""


def _lookup(top: Path, times: int) -> int:
    """Look a name up: O_PATH sends no other request."""
    directory = os.open(top, os.O_PATH)
    for number in range(times):
        os.close(os.open(f"file{number % ENTRIES}", os.O_PATH, dir_fd=directory))
    os.close(directory)
    return times


def _getattr(top: Path, times: int) -> int:
    descriptor = os.open(top / "file0", os.O_RDONLY)
    for _ in range(times):
        if os.fstat(descriptor).st_size != len(CONTENT):
            raise AssertionError("wrong size")
    os.close(descriptor)
    return times


def _read(top: Path, times: int) -> int:
    prefix = os.fspath(top)
    for number in range(times):
        descriptor = os.open(f"{prefix}/file{number % ENTRIES}", os.O_RDONLY)
        if len(os.read(descriptor, 4096)) != len(CONTENT):
            raise AssertionError("wrong content")
        os.close(descriptor)
    return times


def _create(top: Path, times: int) -> int:
    prefix = os.fspath(top)
    for number in range(times):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        descriptor = os.open(f"{prefix}/new{number}", flags, 0o644)
        os.write(descriptor, CONTENT)
        os.close(descriptor)
    return times


def _readdir(top: Path, times: int) -> int:
    seen = 0
    while seen < times:
        entries = len(os.listdir(top))
        if entries != ENTRIES:
            raise AssertionError(f"{entries} entries, not {ENTRIES}")
        seen += entries
    return seen


LOOPS: dict[str, Loop] = {
    "lookup": _lookup,
    "getattr": _getattr,
    "open + read + close": _read,
    "create + write + close": _create,
    "readdir, per entry": _readdir,
}


def measure(views: list[View], area: Path, times: int, say: Say) -> dict[str, dict[str, float]]:
    """Return median microseconds by request and view."""
    source = area / "requests"
    (source / "files").mkdir(parents=True)
    for number in range(ENTRIES):
        (source / f"files/file{number}").write_bytes(CONTENT)
    with ExitStack() as stack:
        tops = {
            view.key: source
            if view.key == PLAIN
            else stack.enter_context(
                mounted(view, source, area / f"requests-{view.key}", area / f"{view.key}.log")
            ).path
            for view in views
        }
        found: dict[str, dict[str, list[float]]] = {}
        for _ in range(REPEATS):
            for name, loop in LOOPS.items():
                for key, top in tops.items():
                    started = time.perf_counter()
                    done = loop(top / "files", times)
                    taken = (time.perf_counter() - started) / done * 1e6
                    found.setdefault(name, {}).setdefault(key, []).append(taken)
                    for path in (source / "files").glob("new*"):
                        path.unlink()
    medians = {
        name: {key: statistics.median(all_) for key, all_ in by_view.items()}
        for name, by_view in found.items()
    }
    for name, by_view in medians.items():
        say(f"µs for {name}: " + "  ".join(f"{key} {us:.1f}" for key, us in by_view.items()))
    return medians
