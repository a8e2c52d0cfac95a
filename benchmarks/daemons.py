"""The cost of a daemon: memory and descriptors with many known files, and its start."""

from __future__ import annotations

import os
import statistics
import subprocess
from pathlib import Path

from benchmarks.place import expect
from benchmarks.rounds import Say
from benchmarks.views import View, mounted

PER_DIRECTORY = 1000
STARTS = 5
LIST_LIMIT = 900.0


def starts(views: list[View], area: Path, say: Say) -> dict[str, list[float]]:
    """Return the seconds from the start of each view to its first answer."""
    source = area / "starts"
    source.mkdir()
    (source / "file").touch()
    found: dict[str, list[float]] = {view.key: [] for view in views}
    for _ in range(STARTS):
        for view in views:
            with mounted(view, source, area / f"starts-{view.key}", area / "starts.log") as daemon:
                found[view.key].append(daemon.seconds)
    for key, seconds in found.items():
        say(f"start to first answer: {key} {statistics.median(seconds) * 1000:.0f} ms")
    return found


def memory(views: list[View], area: Path, known: int, say: Say) -> dict[str, dict[str, float]]:
    """Return memory and descriptors of each view's daemon once it knows ``known`` files."""
    source = area / "many"
    source.mkdir()
    # In memory: a million files on a disk would take minutes to make and to remove.
    options = f"size=50%,nr_inodes={known + known // 100 + 10_000}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", source], check=True)
    try:
        say(f"making {known:,} files")
        directories = _make(source, known)
        return {
            view.key: _known(view, source, area, known + directories, say) for view in views
        }  # fmt: skip
    finally:
        subprocess.run(["umount", "-l", source], check=False)


def _make(top: Path, known: int) -> int:
    directories = known // PER_DIRECTORY
    for number in range(directories):
        directory = f"{top}/directory{number}"
        os.mkdir(directory)
        for index in range(PER_DIRECTORY):
            os.mknod(f"{directory}/file{index}.py")
    return directories


def _known(view: View, source: Path, area: Path, known: int, say: Say) -> dict[str, float]:
    log = area / f"many-{view.key}.log"
    with mounted(view, source, area / f"many-{view.key}", log) as daemon:
        before = daemon.memory()
        # A test of size makes find ask for each file's attributes.
        done = subprocess.run(
            ["find", daemon.path, "-mindepth", "1", "-size", "-9999"],
            stdout=subprocess.PIPE, timeout=LIST_LIMIT, check=True,
        )  # fmt: skip
        expect("entries", done.stdout.count(b"\n"), known)
        found = {
            "known": float(known),
            "bytes_before": float(before),
            "bytes_after": float(daemon.memory()),
            "descriptors": float(daemon.descriptors()),
        }
    found["bytes_per_file"] = (found["bytes_after"] - before) / known
    say(
        f"{view.key} knows {known:,} files: {found['bytes_after'] / 1e6:.0f} MB, "
        f"{found['bytes_per_file']:.0f} bytes each, {found['descriptors']:.0f} descriptors"
    )
    return found
