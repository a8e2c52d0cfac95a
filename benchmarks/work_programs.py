"""Workloads that are programs of their own: a build, and fio."""

from __future__ import annotations

import json
import os
import shutil

from benchmarks.place import Place, Workload, expect, program


class Build(Workload):
    """Builds a C program by make, with two jobs."""

    name = "make"
    needs = ("make", "gcc")
    writes = True

    def prepare(self, at: Place) -> None:
        shutil.copytree(at.source / "c_program", at.truth / "program")

    def run(self, at: Place) -> None:
        program("make", "-s", "-j2", "CC=gcc", cwd=at.scratch / "program")

    def check(self, at: Place) -> None:
        output = program(at.truth / "program/program")
        wanted = sum(len(str(2 * number)) for number in range(at.scale.c_files))
        expect("what the program says", int(output), wanted)


class Fio(Workload):
    """Reads or writes blocks of one size, in sequence or at random.

    The time is measured by fio inside the calls, so that its start does not count. The kernel keeps
    the plain directory's pages in its cache: nothing waits for the disk.
    """

    needs = ("fio",)

    def __init__(self, mode: str, block: str) -> None:
        self.mode, self.block = mode, block
        self.writes = "write" in mode
        kind = "random" if mode.startswith("rand") else "sequential"
        self.name = f"fio {kind} {'write' if self.writes else 'read'} {block}"

    def run(self, at: Place) -> float:
        self.size = (at.scale.fio_small if self.block == "4k" else at.scale.fio_large) << 20
        path = at.scratch / "fio" if self.writes else at.view / "large"
        report = json.loads(program(
            "fio", "--name=x", f"--filename={path}", f"--rw={self.mode}", f"--bs={self.block}",
            f"--size={self.size}", "--ioengine=psync", "--thread", "--invalidate=0",
            "--randseed=5", "--output-format=json", "--fallocate=none",
        ))  # fmt: skip
        self.part = report["jobs"][0]["write" if self.writes else "read"]
        return float(self.part["lat_ns"]["mean"]) * int(self.part["total_ios"]) / 1e9

    def check(self, at: Place) -> None:
        expect("bytes moved", self.part["io_bytes"], self.size)
        if self.writes:
            expect("size of the file", os.stat(at.truth / "fio").st_size, self.size)
