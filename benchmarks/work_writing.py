"""Workloads that make, change and remove files."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from functools import partial

from benchmarks.fixtures import archive
from benchmarks.parallel import together
from benchmarks.place import Place, Workload, count, expect, program

SMALL = b"x = 1\n" * 80
SAVED = b"int main(void) { return 0; }\n" * 100


class Untar(Workload):
    """Unpacks an archive with tar(1)."""

    name = "untar in"
    needs = ("tar",)
    writes = True

    def run(self, at: Place) -> None:
        program("tar", "-xf", archive(at.outside), "-C", at.scratch)

    def check(self, at: Place) -> None:
        expect("files and bytes unpacked", count(at.truth), at.shards(at.scale.unpacked)[1:])


class Copy(Workload):
    """Copies a part of the tree by cp -r, within the view."""

    name = "cp -r"
    needs = ("cp",)
    settled = writes = True

    def run(self, at: Place) -> None:
        program("cp", "-r", *(at.top / name for name in at.shards(at.scale.copied)[0]), at.scratch)

    def check(self, at: Place) -> None:
        expect("files and bytes copied", count(at.truth), at.shards(at.scale.copied)[1:])


class Remove(Workload):
    """Removes a part of the tree by rm -r."""

    name = "rm -r"
    needs = ("rm",)
    writes = True

    def prepare(self, at: Place) -> None:
        for name in at.shards(at.scale.copied)[0]:
            shutil.copytree(at.source / "tree" / name, at.truth / "copy" / name)

    def run(self, at: Place) -> None:
        program("rm", "-r", at.scratch / "copy")

    def check(self, at: Place) -> None:
        expect("what is left", os.listdir(at.truth), [])


def create_files(directory: str, number: int) -> int:
    """Make ``number`` small files. Returns that number."""
    for index in range(number):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        descriptor = os.open(f"{directory}/file{index}.py", flags, 0o644)
        os.write(descriptor, SMALL)
        os.close(descriptor)
    return number


class Create(Workload):
    """Makes small files, in one or several processes that share the work."""

    writes = True

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self.name = "create files" + (f", {processes} processes" if processes > 1 else "")

    def prepare(self, at: Place) -> None:
        for number in range(self.processes):
            (at.truth / f"part{number}").mkdir()

    def run(self, at: Place) -> None:
        each = at.scale.creates // self.processes
        places = [f"{at.scratch}/part{number}" for number in range(self.processes)]
        if self.processes == 1:
            self.made = create_files(places[0], each)
        else:
            self.made = together([partial(create_files, place, each) for place in places])

    def check(self, at: Place) -> None:
        expect("files and bytes made", count(at.truth), (self.made, self.made * len(SMALL)))


class Unpack(Workload):
    """Unpacks as npm and pip do: small files with modes and times, packages renamed into place."""

    name = "install packages"
    writes = True

    def run(self, at: Place) -> None:
        self.made = 0
        for package in range(at.scale.packages):
            new, final = f"{at.scratch}/.p{package}-Xy", f"{at.scratch}/p{package}"
            os.mkdir(new)
            for part in ("", "/lib", "/dist", "/dist/types"):
                if part:
                    os.mkdir(new + part)
                for index in range(3):
                    self._install(f"{new}{part}/file{index}.js", SMALL[: 50 + 30 * index])
            os.rename(new, final)

    def _install(self, path: str, content: bytes) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(descriptor, content)
        os.close(descriptor)
        os.chmod(path, 0o644)
        os.utime(path, (1_700_000_000, 1_700_000_000))
        self.made += 1

    def check(self, at: Place) -> None:
        expect("packages", len(os.listdir(at.truth)), at.scale.packages)
        expect("files", count(at.truth)[0], self.made)
        status = os.stat(at.truth / "p0/dist/types/file0.js")
        expect("mode and time", (status.st_mode & 0o777, status.st_mtime), (0o644, 1_700_000_000))


class Append(Workload):
    """Appends to one file that stays open, 4 KiB at a time."""

    name = "append"
    writes = True
    block = bytes(4096)

    def run(self, at: Place) -> None:
        self.blocks = at.scale.fio_small << 8
        with open(at.scratch / "log", "ab", buffering=0) as file:
            for _ in range(self.blocks):
                file.write(self.block)

    def check(self, at: Place) -> None:
        size = (at.truth / "log").stat().st_size
        expect("bytes", size, self.blocks * len(self.block))


class Save(Workload):
    """Saves as editors do: write beside a file, then rename over it."""

    name = "save by rename"
    writes = True

    def run(self, at: Place) -> None:
        for number in range(at.scale.saves):
            name = f"{at.scratch}/file{number % 20}.c"
            descriptor = os.open(f"{name}.new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            os.write(descriptor, SAVED)
            os.close(descriptor)
            os.rename(f"{name}.new", name)

    def check(self, at: Place) -> None:
        wanted = min(20, at.scale.saves)
        expect("files and bytes", count(at.truth), (wanted, wanted * len(SAVED)))


class Sqlite(Workload):
    """Runs transactions of one row, each forced to the disk."""

    name = "sqlite transactions"
    writes = True

    def run(self, at: Place) -> None:
        with closing(sqlite3.connect(f"{at.scratch}/data.db", isolation_level=None)) as database:
            database.execute("create table rows (number integer primary key, text text)")
            for number in range(at.scale.transactions):
                database.execute("insert into rows values (?, ?)", (number, "text " * 20))

    def check(self, at: Place) -> None:
        with closing(sqlite3.connect(f"{at.truth}/data.db")) as database:
            rows = database.execute("select count(*), sum(number) from rows").fetchone()
        number = at.scale.transactions
        expect("rows", rows, (number, number * (number - 1) // 2))
