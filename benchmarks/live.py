"""Times metadata that is asked for repeatedly, without and with a host that tells of its changes.

The guest runs this too.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path

from benchmarks.place import expect, program
from benchmarks.rounds import Say
from benchmarks.views import PLAIN, View, mounted

NAME = "live changes"
DISK, WITHOUT, WITH = "own disk", "without", "with"
PORT = "/dev/virtio-ports/org.gitguardfs.changes"
PAUSES = (0.0, 10.0)
"""Seconds of quiet between the first and the second time."""
TOLD_LIMIT = 120.0
BEATS = 3.0
"""Seconds after which the view caches for long; the host sends a line each second."""
SETTLING = 3
"""Passes after which the kernel has all that it may keep."""
TYPES = 300
"""Files that tsc reads."""

Told = Callable[[Path], AbstractContextManager[None]]
"""Has a view told of the source's changes for as long as the block lasts."""
Look = Callable[[str, Path], object]
"""Asks for all metadata in a view, once."""


def add_types(top: Path) -> None:
    """Make files for tsc."""
    (top / "types").mkdir()
    for number in range(TYPES):
        before = f'import {{ v{number - 1} }} from "./m{number - 1}";\n' if number else ""
        text = f"{before}export const v{number}: number = {f'v{number - 1} + ' if number else ''}1;"
        (top / f"types/m{number}.ts").write_text(f"{text}\n")


@contextmanager
def told_here(gitguard: Sequence[str], source: Path, view: Path) -> Iterator[None]:
    """Have ``gitguard watch`` tell the view, through a pipe."""
    watching = subprocess.Popen([*gitguard, "watch", source, "--to", "-"], stdout=subprocess.PIPE)
    with _ended(watching), told_by(gitguard, view, watching.stdout):
        yield


@contextmanager
def told_by(gitguard: Sequence[str], view: Path, stream: object = None) -> Iterator[None]:
    """Have ``gitguard changes-in`` tell the view, from a stream or from the VM's port."""
    words = [*gitguard, "changes-in", view, *(() if stream else ("--from", PORT))]
    with _ended(subprocess.Popen(words, stdin=stream)):  # type: ignore[call-overload]
        deadline = time.monotonic() + TOLD_LIMIT
        asking = (*gitguard, "changes-in", "--status", "--json", os.fspath(view))
        while time.monotonic() < deadline:
            said = subprocess.run(asking, stdout=subprocess.PIPE, check=False).stdout
            if any(one["whole"] for one in json.loads(said or "[]")):
                break
            time.sleep(0.5)
        else:
            raise RuntimeError(f"{view} is not told of all changes")
        time.sleep(BEATS)
        yield


@contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def measure(
    gitguardfs: Sequence[str], place: Path, source: Path, rounds: int, say: Say, told: Told
) -> Mapping[str, Mapping[str, float]]:
    """Return the seconds of each kind by view, below the ``tree`` of the source."""
    place.mkdir()
    paths = [
        os.path.relpath(os.path.join(directory, name), source)
        for directory, _, names in os.walk(source / "tree")
        for name in names
    ]
    kinds: dict[str, Look] = {
        "git status": partial(_git_status, place),
        "find": lambda _, top: program("find", top / "tree", "-type", "f"),
        "ls -lR": lambda _, top: program("ls", "-lR", top / "tree"),
        "stat of each file": partial(_stat, paths),
    }
    if shutil.which("tsc"):
        kinds["tsc"] = lambda _, top: program("tsc", "--noEmit", f"{top}/types/m{TYPES - 1}.ts")
    found: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        tops = {PLAIN: source}
        if place.stat().st_dev != source.stat().st_dev:  # a share, which the guest has not itself
            shutil.copytree(source / "tree", place / DISK / "tree", symlinks=True)
            tops[DISK] = place / DISK
        for key in (WITHOUT, WITH):
            view = View(key, key, (*gitguardfs, "-f", "--no-seal"))
            daemon = mounted(view, source, place / key, place / f"{key}.log")
            tops[key] = stack.enter_context(daemon).path
        stack.enter_context(told(tops[WITH]))
        program("git", "init", "--quiet", "--bare", place / "git")
        for key, top in tops.items():
            say(f"looking at all, {SETTLING} times: {key}")
            _git(place, key, top, "add", "--all")
            for look in (*kinds.values(),) * SETTLING:
                look(key, top)
        for number in range(1, rounds + 1):
            for pause in PAUSES:
                for kind, look in kinds.items():
                    name = kind + (f", after {pause:.0f} s" if pause else "")
                    for key, top in tops.items():
                        look(key, top)
                    time.sleep(pause)
                    for key, top in tops.items():
                        started = time.perf_counter()
                        look(key, top)
                        times = found.setdefault(name, {}).setdefault(key, [])
                        times.append(time.perf_counter() - started)
                    taken = [f"{key} {times[-1] * 1000:.0f}" for key, times in found[name].items()]
                    say(f"round {number} of {rounds}: {name:28} {'  '.join(taken)}")
    return {
        name: {key: statistics.median(times) for key, times in by_view.items()}
        for name, by_view in found.items()
    }


def _git(place: Path, key: str, top: Path, *words: str) -> bytes:
    """Run git in the view's tree, with a repository and an index elsewhere."""
    return program(
        "git", "-c", "safe.directory=*", "-c", "core.bare=false", *words, cwd=top / "tree",
        GIT_DIR=str(place / "git"), GIT_WORK_TREE=str(top / "tree"),
        GIT_INDEX_FILE=str(place / f"index-{key}"), GIT_OPTIONAL_LOCKS="0", HOME="/nonexistent",
    )  # fmt: skip


def _git_status(place: Path, key: str, top: Path) -> None:
    listed = _git(place, key, top, "status", "--porcelain")
    expect("files that git takes for changed", listed.replace(b"A  ", b"").count(b" M "), 0)


def _stat(paths: Sequence[str], _: str, top: Path) -> None:
    for path in paths:
        os.stat(f"{top}/{path}")
