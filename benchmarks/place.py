"""The place of a workload: one view of the tree, and a scratch directory in it."""

from __future__ import annotations

import os
import subprocess
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from benchmarks.scale import Scale
from benchmarks.tree import Tree, shard_name

LIMIT = 300.0
"""Seconds after which a program that a workload runs is taken to hang."""


@dataclass(frozen=True)
class Place:
    """One view, and the directory that it shows, in which results are checked."""

    view: Path
    source: Path
    key: str
    """Name of the view; each has its own scratch directory."""
    outside: Path
    """A directory that no view shows, for archives and the like."""
    tree: Tree
    scale: Scale
    run: str = ""
    """Names the scratch directory of one run. Old ones are removed beside the view, so the kernel
    could still have one of the same name in its cache."""

    @property
    def top(self) -> Path:
        """Return the tree, through the view."""
        return self.view / "tree"

    @property
    def scratch(self) -> Path:
        """Return the directory to write to, through the view."""
        return self.view / "scratch" / self.key / self.run

    @property
    def truth(self) -> Path:
        """Return the scratch directory itself, beside the view."""
        return self.source / "scratch" / self.key / self.run

    def shards(self, number: int) -> tuple[list[str], int, int]:
        """Return the directories of the first shards, and the number of their files and bytes."""
        chosen = self.tree.shards[:number]
        entries = [entry for shard in chosen for entry in shard]
        names = [shard_name(index) for index in range(len(chosen))]
        return names, len(entries), sum(entry.size for entry in entries)


class Workload(ABC):
    """Something to time: ``run`` alone; ``prepare`` and ``check`` are not timed."""

    name = ""
    needs: tuple[str, ...] = ()
    """Programs that the workload needs; if one is missing, it is left out."""
    cold = False
    """Drop the kernel's caches before the run."""
    settled = False
    """Wait before the run until the view's cache timeouts have passed."""
    writes = False
    """Wait until the disk is idle before the run."""
    warm = False
    """The second run within the cache timeout is timed, with a goal against the plain directory."""

    def prepare(self, at: Place) -> None:  # noqa: B027  # most need nothing
        """Make the files that the workload works on."""

    @abstractmethod
    def run(self, at: Place) -> float | None:
        """Do the work. Returns seconds if the workload measures them itself, otherwise None."""

    def check(self, at: Place) -> None:  # noqa: B027  # not all leave a result
        """Raise AssertionError if the result is not right."""


def expect(what: str, found: object, wanted: object) -> None:
    """Raise AssertionError unless the two are equal."""
    if found != wanted:
        raise AssertionError(f"{what}: {found}, not {wanted}")


def program(*words: str | Path, cwd: Path | None = None, **environment: str) -> bytes:
    """Run a program that has to succeed, and return its output."""
    done = subprocess.run(
        words, cwd=cwd, env={**os.environ, "LC_ALL": "C", **environment},
        capture_output=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        words_in_error = done.stderr.decode(errors="replace")[-400:]
        raise AssertionError(f"{words[0]} ended with {done.returncode}: {words_in_error}")
    return done.stdout


def count(top: Path) -> tuple[int, int]:
    """Return the number of files below a directory, and their bytes."""
    files = size = 0
    for directory, _, names in os.walk(top):
        files += len(names)
        size += sum(os.lstat(f"{directory}/{name}").st_size for name in names)
    return files, size
