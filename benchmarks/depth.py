"""Times single calls in directories far below the top of a view, and removals during a listing.

A daemon that finds a directory again by its path, or judges all directories above a name, takes
longer the deeper it is. The kernel has forgotten everything before each call, as it has for a
program that does something from time to time. The guest runs this too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path

from benchmarks.place import expect
from benchmarks.rounds import FORGOTTEN, Outcome, Say
from benchmarks.views import PLAIN, View, mounted

VIEWS = ("plain", "bindfs", "gitguardfs")
"""Keys of the views that take part, each with directories of its own."""
DEPTHS = (1, 10, 40, 160)
CONTENT = b"x = 1\n"
LISTED = 4000
"""Names in the directory that is listed."""
REMOVED = 5
"""How many of them are removed in one round, each after another ``REMOVED_EVERY`` were listed."""
REMOVED_EVERY = 100

Call = Callable[[int], float]
"""Does something in the directory behind a descriptor; returns seconds."""
Where = Callable[[Path, str], Path]
"""Returns a directory below the top of a view with this key."""


def make(source: Path) -> None:
    """Make the directories of each view, beside all views."""
    for key in VIEWS:
        for depth in DEPTHS:
            directory = _deep(source, key, depth)
            directory.mkdir(parents=True)
            (directory / "f").write_bytes(CONTENT)
        listed = _listed(source, key)
        listed.mkdir(parents=True)
        for number in range(LISTED):
            (listed / f"module{number}.py").touch()


def _deep(top: Path, key: str, depth: int) -> Path:
    # Two more directories are above these; a view's top would be the first if there were none.
    return top.joinpath("deep", f"{key}-{depth}", *["d"] * depth)


def _listed(top: Path, key: str) -> Path:
    return top / "listed" / key


def _stat(directory: int) -> float:
    started = time.perf_counter()
    status = os.stat("f", dir_fd=directory)
    taken = time.perf_counter() - started
    expect("size of a file", status.st_size, len(CONTENT))
    return taken


def _create_and_unlink(directory: int) -> float:
    started = time.perf_counter()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    os.close(os.open("new.py", flags, 0o644, dir_fd=directory))
    os.unlink("new.py", dir_fd=directory)
    return time.perf_counter() - started


def _unlink_while_listing(directory: int) -> float:
    """Remove some names as they are listed; return the seconds of one removal.

    The listing is not finished: that would take most of the time in the guest.
    """
    taken = 0.0
    removed: list[str] = []
    opened = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=directory)
    try:
        with os.scandir(opened) as entries:
            for entry in islice(entries, REMOVED_EVERY - 1, REMOVED * REMOVED_EVERY, REMOVED_EVERY):
                started = time.perf_counter()
                os.unlink(entry.name, dir_fd=directory)
                taken += time.perf_counter() - started
                removed.append(entry.name)
    finally:
        os.close(opened)
    expect("names removed", len(set(removed)), REMOVED)
    for name in removed:
        try:
            os.stat(name, dir_fd=directory)
        except FileNotFoundError:
            continue
        raise AssertionError(f"{name} was removed and is there")
    return taken / REMOVED


def measure(tops: Mapping[str, Path], rounds: int, say: Say) -> list[Outcome]:
    """Time each call once a round on each view; ``tops`` are where the views show the source."""
    deep = {f"depth {each}": _at(each) for each in DEPTHS}
    listed = {f"{LISTED:,} names": _listed}
    groups: list[tuple[str, Call, Mapping[str, Where]]] = [
        ("stat", _stat, deep),
        ("create + unlink", _create_and_unlink, deep),
        ("unlink while listing", _unlink_while_listing, listed),
    ]
    found: dict[str, Outcome] = {}
    with _opened(tops, {**deep, **listed}) as directories:
        for number in range(1, rounds + 1):
            for what, call, places in groups:
                time.sleep(FORGOTTEN)
                wanted = [(place, key) for place in places for key in tops]
                # The first call after a pause finds the processor's caches cold: each in turn.
                start = number * (len(tops) + 1) % len(wanted)
                for place, key in (*wanted[start:], *wanted[:start]):
                    name = f"{what}, {place}"
                    outcome = found.setdefault(name, Outcome(name))
                    if key not in outcome.failures:
                        _note(outcome, key, call, directories[place, key])
                say(f"round {number} of {rounds}: {what}")
    return [found[f"{what}, {place}"] for what, _, places in groups for place in places]


def _at(depth: int) -> Where:
    return lambda top, key: _deep(top, key, depth)


@contextmanager
def _opened(
    tops: Mapping[str, Path], places: Mapping[str, Where]
) -> Iterator[dict[tuple[str, str], int]]:
    """Open directories, as programs that work in them have done: the way there is not measured."""
    with ExitStack() as stack:
        directories = {}
        for place, where in places.items():
            for key, top in tops.items():
                opened = os.open(where(top, key), os.O_PATH | os.O_DIRECTORY)
                stack.callback(os.close, opened)
                directories[place, key] = opened
        yield directories


def _note(outcome: Outcome, key: str, call: Call, directory: int) -> None:
    try:
        outcome.seconds.setdefault(key, []).append(call(directory))
    except Exception as error:
        outcome.failures[key] = f"{type(error).__name__}: {error}"
        outcome.seconds.pop(key, None)


def compare(
    area: Path, views: Sequence[View], rounds: int, say: Say, source: Path | None = None
) -> list[Outcome]:
    """Mount the views and time the calls. A given ``source`` has been filled by ``make``."""
    if source is None:
        source = area / "depth-source"
        make(source)
    with ExitStack() as stack:
        tops = {
            view.key: source
            if view.key == PLAIN
            else stack.enter_context(
                mounted(view, source, area / f"depth-{view.key}", area / f"depth-{view.key}.log")
            ).path
            for view in views
        }
        return measure(tops, rounds, say)
