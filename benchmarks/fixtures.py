"""Files besides the tree: a C program, a test suite, a large file, an archive."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

from benchmarks import tree as trees
from benchmarks.scale import Scale

VIEWS = ("plain", "bindfs", "bindfs-mt", "gitguardfs", "gitguardfs-0")
"""Keys of the views, each with a scratch directory of its own."""


def make_source(source: Path, scale: Scale) -> None:
    """Fill the directory that all views show."""
    trees.write(trees.plan(scale.files), source / "tree")
    for key in VIEWS:
        (source / "scratch" / key).mkdir(parents=True)
    _make_c_program(source / "c_program", scale.c_files)
    _make_tests(source / "suite", scale.modules)
    block = os.urandom(1 << 20)
    with open(source / "large", "wb", buffering=0) as file:
        for _ in range(max(scale.fio_large, scale.fio_small)):
            file.write(block)


def make_outside(outside: Path, scale: Scale) -> None:
    """Fill the directory that no view shows."""
    with tarfile.open(archive(outside), "w", format=tarfile.USTAR_FORMAT) as tar:
        tree = trees.plan(scale.files)
        chosen = tuple(entry for shard in tree.shards[: scale.unpacked] for entry in shard)
        for directory in trees.directories(chosen):
            member = tarfile.TarInfo(directory)
            member.type, member.mode, member.mtime = tarfile.DIRTYPE, 0o755, 1_700_000_000
            tar.addfile(member)
        for entry in chosen:
            member = tarfile.TarInfo(entry.path)
            member.size, member.mode, member.mtime = entry.size, 0o644, 1_700_000_000
            tar.addfile(member, io.BytesIO(entry.content()))


def archive(outside: Path) -> Path:
    """Return the path of the archive that is unpacked."""
    return outside / "tree.tar"


def _make_c_program(top: Path, files: int) -> None:
    top.mkdir()
    for number in range(10):
        (top / f"shared{number}.h").write_text(
            f"#ifndef SHARED{number}\n#define SHARED{number}\n"
            + "".join(f"int part{number}_{index}(int value);\n" for index in range(30))
            + "#endif\n"
        )
    includes = "".join(f'#include "shared{number}.h"\n' for number in range(10))
    for number in range(files):
        (top / f"unit{number}.c").write_text(
            f"#include <stdio.h>\n#include <string.h>\n{includes}"
            + f"int unit{number}(int value) {{\n    char text[64];\n"
            + f'    snprintf(text, sizeof text, "%d", value + {number});\n'
            + "    return (int)strlen(text);\n}\n"
        )
    calls = "".join(f"    sum += unit{number}({number});\n" for number in range(files))
    heads = "".join(f"int unit{number}(int value);\n" for number in range(files))
    (top / "main.c").write_text(
        f"#include <stdio.h>\n{heads}int main(void) {{\n    int sum = 0;\n{calls}"
        '    printf("%d\\n", sum);\n    return 0;\n}\n'
    )
    (top / "Makefile").write_text(
        "objects := $(patsubst %.c,%.o,$(wildcard *.c))\n"
        "program: $(objects)\n\t$(CC) -o $@ $(objects)\n"
        "%.o: %.c $(wildcard *.h)\n\t$(CC) -O0 -c -o $@ $<\n"
    )


def _make_tests(top: Path, modules: int) -> None:
    for number in range(modules):
        directory = top / f"area{number % 12}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "__init__.py").touch()
        (directory / f"test_module{number}.py").write_text(
            "".join(
                f"def test_{index}():\n    assert {index} < {index + 1}\n" for index in range(5)
            )
        )
    (top / "__init__.py").touch()
