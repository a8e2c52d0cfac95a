"""A project tree with realistic sizes and depth, the same in every run.

Planned without a file system, so that the guest, which finds the tree on its share, knows what
has to be in it. Only ``Random.random`` is used: its sequence is the same in every Python.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from random import Random

SHARD_FILES = 1000
"""A tree of fewer files is one shard."""
NEEDLE = b"\nneedle_of_the_benchmark\n"
NEEDLE_EVERY = 40
"""One file in this many ends with the needle, for the search."""

MEDIAN_SIZE = 2200
SIGMA = 1.3
"""Standard deviation of the logarithm of sizes; with the median this gives a mean of 5 kB."""
LARGE_EVERY = 997
LARGE_SIZE = 1_500_000
MAXIMUM = 400_000

_TEXT = (
    "import from return self class value index module export const function async await if else "
    "for while try except raise name path file node list dict map filter test assert none true "
    "false int str bytes = == != ( ) [ ] { } : ; , . + - * /"
)
_WORDS = tuple(_TEXT.split())
_ENDINGS = (".py", ".js", ".ts", ".json", ".md", ".d.ts", ".c", ".h", ".map", ".txt")
_PARTS = ("lib", "dist", "src", "test", "types", "core", "utils", "internal")


@dataclass(frozen=True)
class Entry:
    """One file: its path below the top of the tree, its size, and which one it is."""

    path: str
    size: int
    number: int

    def content(self) -> bytes:
        """Return the content that the file has to have."""
        pool = _pool()
        start = self.number * 7919 % (len(pool) // 2)
        text = pool[start : start + self.size]
        while len(text) < self.size:
            text += pool[: self.size - len(text)]
        if self.has_needle:
            text = text[: -len(NEEDLE)] + NEEDLE
        return text

    @property
    def has_needle(self) -> bool:
        """Return whether the search finds this file."""
        return self.number % NEEDLE_EVERY == 0 and self.size > len(NEEDLE)


@dataclass(frozen=True)
class Tree:
    """Files in shards of a thousand; ``top`` is the directory they are below."""

    shards: tuple[tuple[Entry, ...], ...]
    seed: int = field(default=0, compare=False)

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """Return all files."""
        return tuple(entry for shard in self.shards for entry in shard)

    @cached_property
    def directories(self) -> tuple[str, ...]:
        """Return all directories but the top, parents first."""
        return directories(self.entries)

    @property
    def total_bytes(self) -> int:
        """Return the sum of all files' sizes."""
        return sum(entry.size for entry in self.entries)

    @property
    def needles(self) -> int:
        """Return the number of files that the search has to find."""
        return sum(entry.has_needle for entry in self.entries)


def directories(entries: tuple[Entry, ...]) -> tuple[str, ...]:
    """Return every directory above these files, parents first."""
    found: set[str] = set()
    for entry in entries:
        parent = os.path.dirname(entry.path)
        while parent and parent not in found:
            found.add(parent)
            parent = os.path.dirname(parent)
    return tuple(sorted(found))


def shard_name(number: int) -> str:
    """Return the directory of a shard, below the top."""
    return f"packages/p{number:02}"


@lru_cache(maxsize=4)
def plan(files: int, seed: int = 5) -> Tree:
    """Plan the tree; ``files`` is rounded up to whole shards."""
    random = Random(seed)
    shards: list[tuple[Entry, ...]] = []
    size = min(files, SHARD_FILES)
    for number in range(math.ceil(files / size)):
        paths = _shard_paths(random, shard_name(number), size)
        first = number * size
        shards.append(
            tuple(
                Entry(path, _size(random, first + index), first + index)
                for index, path in enumerate(paths)
            )
        )
    return Tree(tuple(shards), seed)


def _shard_paths(random: Random, top: str, size: int) -> list[str]:
    """Return a shard's paths: half a program's own packages, half installed ones."""
    paths: list[str] = []
    package = 0
    while len(paths) < size:
        if package % 2:
            place = f"{top}/src/{_pick(random, _PARTS)}/area{package % 7}/module{package}"
        else:
            place = f"{top}/node_modules/dependency{package}"
            if random.random() < 0.3:
                place += f"/node_modules/inner{package}"
        parts = [place] + [
            f"{place}/{part}{'/' + _pick(random, _PARTS) if random.random() < 0.3 else ''}"
            for part in _PARTS[: 1 + int(random.random() * 4)]
        ]
        for index in range(5 + int(random.random() ** 3 * 60)):
            if len(paths) < size:
                ending = _pick(random, _ENDINGS)
                paths.append(f"{_pick(random, tuple(parts))}/file{index}{ending}")
        package += 1
    return paths


def _pick(random: Random, choices: tuple[str, ...]) -> str:
    return choices[int(random.random() * len(choices))]


def _size(random: Random, number: int) -> int:
    first, second = 1.0 - random.random(), random.random()
    if number % LARGE_EVERY == LARGE_EVERY - 1:
        return LARGE_SIZE + int(second * LARGE_SIZE)
    normal = math.sqrt(-2 * math.log(first)) * math.cos(2 * math.pi * second)
    return min(MAXIMUM, int(MEDIAN_SIZE * math.exp(SIGMA * normal)))


@lru_cache(maxsize=1)
def _pool() -> bytes:
    """Return half a megabyte of text that resembles a program."""
    random = Random(1)
    lines = (
        " " * (4 * int(random.random() * 4))
        + " ".join(_pick(random, _WORDS) for _ in range(3 + int(random.random() * 9)))
        for _ in range(12_000)
    )
    return "\n".join(lines).encode()


def write(tree: Tree, top: Path) -> None:
    """Make the tree below ``top``."""
    for directory in tree.directories:
        os.makedirs(top / directory, exist_ok=True)
    for entry in tree.entries:
        with open(top / entry.path, "wb", buffering=0) as file:
            file.write(entry.content())


def verify(tree: Tree, top: Path) -> None:
    """Raise AssertionError if what ``top`` shows is not the tree, byte for byte."""
    for entry in tree.entries:
        with open(top / entry.path, "rb", buffering=0) as file:
            if file.read() != entry.content():
                raise AssertionError(f"{top / entry.path} does not show what is in it")
    found = sum(len(names) for _, _, names in os.walk(top))
    if found != len(tree.entries):
        raise AssertionError(f"{top} shows {found} files, not {len(tree.entries)}")
