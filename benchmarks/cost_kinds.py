"""The kinds of requests whose cost is measured, and loops that make the kernel send them.

The kernel answers from its cache whatever it remembers, so each loop has a way to be asked:

- The daemon has found every name before, and the kernel must ask for it again. So LOOKUP and
  GETATTR run in a view whose timeouts of one second have passed, and use each name once.
- All others run in a view with timeouts of an hour, so that the kernel sends nothing for the names
  on the way. Names that are made or removed are new ones in each round.

Some requests cannot be had alone. The kernel asks for the attributes of a directory again after
each change in it, and looks a name up before it makes a directory or renames to it. Both programs
get these alike. The table has what was sent.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

LOOKUP, FORGET, GETATTR, MKDIR, UNLINK, RMDIR, RENAME = 1, 2, 3, 9, 10, 11, 12
OPEN, RELEASE, FLUSH, OPENDIR, READDIR, RELEASEDIR = 14, 18, 25, 27, 28, 29
ACCESS, CREATE, BATCH_FORGET, READDIRPLUS, RENAME2 = 34, 35, 42, 44, 45
NAMES = {
    LOOKUP: "LOOKUP", FORGET: "FORGET", GETATTR: "GETATTR", MKDIR: "MKDIR", UNLINK: "UNLINK",
    RMDIR: "RMDIR", RENAME: "RENAME", OPEN: "OPEN", RELEASE: "RELEASE", FLUSH: "FLUSH",
    OPENDIR: "OPENDIR", READDIR: "READDIR", RELEASEDIR: "RELEASEDIR", ACCESS: "ACCESS",
    CREATE: "CREATE", BATCH_FORGET: "BATCH_FORGET", READDIRPLUS: "READDIRPLUS",
    RENAME2: "RENAME2",
}  # fmt: skip
"""Requests by their numbers in the kernel's protocol (linux/fuse.h)."""

CONTENT = b"x = 1\n"
SPARE_DESCRIPTORS = 200
"""Descriptors that the benchmark needs besides those of the files whose attributes it asks for."""


@dataclass
class Site:
    """The directories that the loops work in, open through one view."""

    files: int
    """A descriptor of the directory with ``file0``, ``file1`` ..."""
    directories: int
    """Of the one with the directories ``dir0``, ``dir1`` ..."""
    trees: int
    """Of the one whose directories, which hold something, are renamed."""
    changing: int
    """Of the one in which names are made and removed."""
    tree_names: list[str]
    """What the directories in ``trees`` are called now."""
    held: list[int] = field(default_factory=list)
    """Descriptors that one loop uses and closes."""

    def close(self) -> None:
        """Let go of the view, which could not be unmounted otherwise."""
        for descriptor in (self.files, self.directories, self.trees, self.changing):
            os.close(descriptor)


def make(top: Path, number: int) -> None:
    """Make the files for ``number`` requests of each kind, beside all views."""
    for name in ("files", "directories", "trees", "changing"):
        (top / name).mkdir(parents=True)
        (top / name / "other.py").write_bytes(CONTENT)
    for index in range(number):
        (top / f"files/file{index}").write_bytes(CONTENT)
        (top / f"directories/dir{index}").mkdir()
        (top / f"trees/tree{index}/inner").mkdir(parents=True)
        (top / f"trees/tree{index}/module.py").write_bytes(CONTENT)
        (top / f"trees/tree{index}/inner/module.py").write_bytes(CONTENT)


def enter(top: Path, number: int) -> Site:
    """Open what ``make`` made, through a view."""

    def opened(name: str) -> int:
        return os.open(top / name, os.O_PATH | os.O_DIRECTORY)

    names = [f"tree{index}" for index in range(number)]
    return Site(opened("files"), opened("directories"), opened("trees"), opened("changing"), names)


def allow_descriptors(number: int) -> None:
    """Allow this process one open descriptor for each of ``number`` files. Raises ValueError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(soft, number + SPARE_DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


Loop = Callable[[Site, range, str], None]
"""Sends a request for each number; the last argument is a part of new names that no other run has.
Several threads run one loop, each with numbers of its own."""


def _nothing(site: Site, numbers: range, run: str) -> None:
    """Prepare nothing."""


@dataclass(frozen=True)
class Kind:
    """One kind of request."""

    name: str
    opcodes: tuple[tuple[int, ...], ...]
    """The requests that the row is about, each with its alternatives; others come with them."""
    run: Loop
    prepare: Loop = _nothing
    """Not measured; must leave in the kernel's cache what ``run`` relies on."""
    expires: bool = False
    """Whether the kernel has to forget the names between ``prepare`` and ``run``."""
    calls_goal: int | None = None
    """Python calls of our own for one request, at most."""

    @property
    def own(self) -> tuple[str, ...]:
        """Return the names of the requests that the row is about."""
        return tuple(NAMES[opcode] for group in self.opcodes for opcode in group)


def _is_missing(directory: int, name: str) -> None:
    """Make the kernel remember that a name is not there."""
    try:
        os.stat(name, dir_fd=directory)
    except FileNotFoundError:
        return
    raise AssertionError(f"{name} is there already")


def _open_paths(directory: int, kind: str, numbers: range) -> None:
    # O_PATH: the kernel looks the name up and sends nothing else.
    for number in numbers:
        os.close(os.open(f"{kind}{number}", os.O_PATH, dir_fd=directory))


def _lookup_files(site: Site, numbers: range, run: str) -> None:
    _open_paths(site.files, "file", numbers)


def _lookup_directories(site: Site, numbers: range, run: str) -> None:
    _open_paths(site.directories, "dir", numbers)


def _hold_files(site: Site, numbers: range, run: str) -> None:
    site.held = [os.open(f"file{number}", os.O_PATH, dir_fd=site.files) for number in numbers]


def _getattr(site: Site, numbers: range, run: str) -> None:
    for descriptor in (site.held[number] for number in numbers):
        if os.fstat(descriptor).st_size != len(CONTENT):
            raise AssertionError("wrong size")
        os.close(descriptor)


def _open(site: Site, numbers: range, run: str) -> None:
    for number in numbers:
        os.close(os.open(f"file{number}", os.O_RDONLY, dir_fd=site.files))


def _miss(site: Site, numbers: range, run: str) -> None:
    for number in numbers:
        _is_missing(site.changing, f"{run}-{number}")


def _create(site: Site, numbers: range, run: str) -> None:
    # Without O_EXCL, which makes the kernel look a name up that it knows to be missing.
    for number in numbers:
        os.close(os.open(f"{run}-{number}", os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=site.changing))


def _rename_files(site: Site, numbers: range, run: str) -> None:
    for number in numbers:
        os.rename(
            f"{run}-{number}", f"{run}-{number}.new",
            src_dir_fd=site.changing, dst_dir_fd=site.changing,
        )  # fmt: skip


def _unlink(site: Site, numbers: range, run: str) -> None:
    for number in numbers:
        os.unlink(f"{run}-{number}.new", dir_fd=site.changing)


def _mkdir(site: Site, numbers: range, run: str) -> None:
    for number in numbers:
        os.mkdir(f"{run}-d{number}", 0o755, dir_fd=site.changing)


def _rmdir(site: Site, numbers: range, run: str) -> None:
    for number in numbers:
        os.rmdir(f"{run}-d{number}", dir_fd=site.changing)


def _know_trees(site: Site, numbers: range, run: str) -> None:
    for number in numbers:
        os.stat(site.tree_names[number], dir_fd=site.trees)


def _rename_trees(site: Site, numbers: range, run: str) -> None:
    for number in numbers:
        new = f"tree{number}-{run}"
        os.rename(site.tree_names[number], new, src_dir_fd=site.trees, dst_dir_fd=site.trees)
        site.tree_names[number] = new


KINDS = (
    Kind("LOOKUP of a file", ((LOOKUP,),), _lookup_files, _lookup_files, expires=True,
         calls_goal=6),
    Kind("LOOKUP of a directory", ((LOOKUP,),), _lookup_directories, _lookup_directories,
         expires=True, calls_goal=9),
    Kind("GETATTR", ((GETATTR,),), _getattr, _hold_files, expires=True),
    Kind("OPEN + RELEASE", ((OPEN,), (RELEASE,)), _open, _open),
    Kind("CREATE", ((CREATE,),), _create, _miss, calls_goal=25),
    Kind("RENAME of a file", ((RENAME, RENAME2),), _rename_files, calls_goal=18),
    Kind("UNLINK", ((UNLINK,),), _unlink, calls_goal=15),
    Kind("MKDIR", ((MKDIR,),), _mkdir, calls_goal=25),
    Kind("RMDIR", ((RMDIR,),), _rmdir),
    Kind("RENAME of a directory", ((RENAME, RENAME2),), _rename_trees, _know_trees, calls_goal=51),
)  # fmt: skip
"""In the order in which they run: files are made, renamed and removed, then directories."""
