"""Workloads that only list and read."""

from __future__ import annotations

import os
import subprocess
import sys
from abc import abstractmethod
from functools import partial
from pathlib import Path

from benchmarks.parallel import together
from benchmarks.place import LIMIT, Place, Workload, expect, program
from benchmarks.tree import NEEDLE

WARM_SHARDS = 1
"""Two listings of this tree have to fit into the cache timeout."""
_CHUNK = 1 << 20


class Find(Workload):
    """Lists names only."""

    name = "find"
    needs = ("find",)
    settled = True

    def run(self, at: Place) -> None:
        self.output = program("find", at.top, "-type", "f")

    def check(self, at: Place) -> None:
        expect("files found", self.output.count(b"\n"), len(at.tree.entries))


class LsLR(Workload):
    """Lists names and attributes."""

    name = "ls -lR"
    needs = ("ls",)
    settled = True

    def run(self, at: Place) -> None:
        self.output = program("ls", "-lR", at.top)

    def check(self, at: Place) -> None:
        check_listing(self.output, len(at.tree.entries), at.tree.total_bytes)


def check_listing(output: bytes, files: int, size: int) -> None:
    """Compare the output of ``ls -lR`` with the tree."""
    sizes = [int(line.split(None, 5)[4]) for line in output.splitlines() if line[:1] == b"-"]
    expect("files listed", (len(sizes), sum(sizes)), (files, size))


class Walk(Workload):
    """Lists names, and asks for the attributes of each file afterwards."""

    name = "walk"
    settled = True

    def run(self, at: Place) -> None:
        self.size = sum(
            os.lstat(os.path.join(directory, name)).st_size
            for directory, _, names in os.walk(at.top)
            for name in names
        )

    def check(self, at: Place) -> None:
        expect("bytes", self.size, at.tree.total_bytes)


class Ripgrep(Workload):
    """Searches all files for a word."""

    needs = ("rg",)
    settled = True

    def __init__(self, *, cold: bool) -> None:
        self.cold = cold
        self.name = f"ripgrep, {'cold' if cold else 'warm'}"

    def run(self, at: Place) -> None:
        word = NEEDLE.strip().decode()
        self.output = program("rg", "-uuu", "--files-with-matches", "--text", word, at.top)

    def check(self, at: Place) -> None:
        expect("files with the word", self.output.count(b"\n"), at.tree.needles)


def read_files(top: Path, paths: list[str]) -> int:
    """Open, read and close each file. Returns the number of bytes."""
    total = 0
    prefix = os.fspath(top)
    for path in paths:
        descriptor = os.open(f"{prefix}/{path}", os.O_RDONLY)
        while size := len(os.read(descriptor, _CHUNK)):
            total += size
        os.close(descriptor)
    return total


class ReadAll(Workload):
    """Opens, reads and closes every file, in one or several processes that share the work."""

    settled = True

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self.name = "read all files" + (f", {processes} processes" if processes > 1 else "")

    def prepare(self, at: Place) -> None:
        paths = [entry.path for entry in at.tree.entries]
        self.parts = [paths[number :: self.processes] for number in range(self.processes)]

    def run(self, at: Place) -> None:
        if self.processes == 1:
            self.total = read_files(at.top, self.parts[0])
        else:
            self.total = together([partial(read_files, at.top, part) for part in self.parts])

    def check(self, at: Place) -> None:
        expect("bytes read", self.total, at.tree.total_bytes)


class TarOut(Workload):
    """Packs the tree into a pipe: tar reads no files if it writes to /dev/null."""

    name = "tar out"
    needs = ("tar",)
    settled = True

    def run(self, at: Place) -> None:
        self.total = 0
        with subprocess.Popen(
            ["tar", "-cf", "-", "--format=ustar", "-C", at.view, "tree"], stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            buffer = memoryview(bytearray(_CHUNK))
            while size := process.stdout.readinto(buffer):  # type: ignore[attr-defined]
                self.total += size
        expect("exit status of tar", process.wait(LIMIT), 0)

    def check(self, at: Place) -> None:
        blocks = sum(1 + -(-entry.size // 512) for entry in at.tree.entries)
        blocks += len(at.tree.directories) + 1
        packed = -(-(blocks + 2) // 20) * 20 * 512
        expect("bytes packed", self.total, packed)


class Missing(Workload):
    """Looks for modules repeatedly, along a search path most of which does not have them."""

    name = "missing names"
    settled = True
    directories = 40

    def run(self, at: Place) -> None:
        self.found = 0
        places = [f"{at.top}/{name}" for name in at.tree.directories[: self.directories]]
        names = at.scale.misses // self.directories // 5
        for _ in range(5):
            for number in range(names):
                for place in places:
                    try:
                        os.stat(f"{place}/module_{number}.py")
                        self.found += 1
                    except FileNotFoundError:
                        pass

    def check(self, at: Place) -> None:
        expect("names that are not there and were found", self.found, 0)


class Collect(Workload):
    """Lets pytest find the tests of a package, which are compiled already."""

    name = "pytest collection"
    needs = ("pytest",)
    settled = True

    def run(self, at: Place) -> None:
        self.output = collect(at.view / "suite")

    def check(self, at: Place) -> None:
        last = self.output.strip().splitlines()[-1].decode()
        expect("tests collected", last.split(" in ")[0], f"{5 * at.scale.modules} tests collected")


def collect(suite: Path, *, compiled: bool = True) -> bytes:
    """Let pytest list the tests of a suite."""

    keep = {"PYTHONDONTWRITEBYTECODE": "1"} if compiled else {}
    return program(
        sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider",
        "-c", "/dev/null", f"--rootdir={suite}", suite, cwd=suite,
        PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", **keep,
    )  # fmt: skip


class Warm(Workload):
    """Repeats something within the cache timeout."""

    warm = True
    repeats = 3

    def prepare(self, at: Place) -> None:
        self.names, self.files, self.size = at.shards(WARM_SHARDS)
        self.paths = [
            f"{at.top}/{entry.path}" for shard in at.tree.shards[:WARM_SHARDS] for entry in shard
        ]
        self.look(at)

    def run(self, at: Place) -> None:
        for _ in range(self.repeats):
            self.look(at)

    @abstractmethod
    def look(self, at: Place) -> None:
        """Do the work once."""


class WarmStat(Warm):
    """Calls stat on known files."""

    name = "stat again"

    def run(self, at: Place) -> None:
        for _ in range(at.scale.stats):
            self.look(at)

    def look(self, at: Place) -> None:
        self.total = sum(os.stat(path).st_size for path in self.paths)

    def check(self, at: Place) -> None:
        expect("sizes of files", self.total, self.size)


class WarmLs(Warm):
    """Runs ls -lR on a tree that was just listed."""

    name = "ls -lR again"
    needs = ("ls",)

    def look(self, at: Place) -> None:
        self.output = program("ls", "-lR", *(at.top / name for name in self.names))

    def check(self, at: Place) -> None:
        check_listing(self.output, self.files, self.size)


class WarmFind(Warm):
    """Runs find in a tree that was just listed."""

    name = "find again"
    needs = ("find",)

    def look(self, at: Place) -> None:
        self.output = program("find", *(at.top / name for name in self.names), "-type", "f")

    def check(self, at: Place) -> None:
        expect("files found", self.output.count(b"\n"), self.files)
