"""The ways round the guard that need nothing but a directory to write to.

Each function gets the spot, an empty directory of its own, tries one thing and raises the
OSError with which it was refused. What it makes is thrown away with the spot.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from errno import EACCES, EINVAL, EOPNOTSUPP
from functools import partial

from gitguardfs.doctor.run_as import preparing
from gitguardfs.linux.raw_syscalls import linkat_by_proc, renameat2
from gitguardfs.linux.syscalls import RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT

HEAD_TEXT = "ref: refs/heads/main\n"
POINTER_TEXT = "gitdir: ../nowhere\n"

SPELLINGS = (
    ".GIT",
    ".Git",
    ".git.",
    ".git ",
    ".git . .",
    "git~1",
    "GIT~1",
    "git~1.",
    ".git:x",
    ".git::$INDEX_ALLOCATION",
    "GIT~1::$DATA",
    ".git\\config",
    "foo\\.git",
    "foo\\GIT~1 ",
    ".g\u200cit",
    "\ufeff.git",
    ".gi\u202et",
    ".gi\u206ft",
    ".git\u00ad",
    ".g\ufe0fit",
    ".gi\U000e0001t",
    ".g\u200cit.",
    ".git\udcff",
)
"""Names of row N: what NTFS, HFS+ and casefolding file systems of a host take for ``.git``."""

ORDINARY = (".gitignore", ".gitattributes", ".gitmodules", ".github", "git", "..git", ".git~1")
"""Names that have to stay usable; a guard that refuses them breaks projects."""

FOLDED = (("head", "refs"), ("HEAD", "Refs"), ("hEAD", "commonDir"), ("HEAD", "re\u200bfs"))
"""Pairs that make a repository on a host that folds names."""

Strike = Callable[[str], object]


@dataclass(frozen=True)
class Plant:
    """One attack in a directory of its own."""

    row: str
    name: str
    strike: Strike
    refused: frozenset[int]
    """The errnos with which it may be answered."""


def at(spot: str, *names: str) -> str:
    """A path below ``spot``."""
    return os.path.join(spot, *names)


def write(path: str, text: str) -> None:
    """Make a file."""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def prepared_directory(spot: str) -> str:
    """A directory with all of a repository in it but HEAD."""
    path = at(spot, "prepared")
    with preparing():
        os.makedirs(at(path, "objects"))
        os.mkdir(at(path, "refs"))
        os.mkdir(at(spot, "target"))
    return path


def prepared_file(spot: str) -> str:
    """A file with the content of a ``.git`` file."""
    with preparing():
        write(at(spot, "pointer"), POINTER_TEXT)
        os.mkdir(at(spot, "target"))
    return at(spot, "pointer")


# ----------------------------------------------------------------------- R: rename, exchange


def rename_directory(spot: str) -> None:
    """A prepared directory to an absent ``.git``."""
    os.rename(prepared_directory(spot), at(spot, "target/.git"))


def rename_file(spot: str) -> None:
    """A prepared file to an absent ``.git``."""
    os.rename(prepared_file(spot), at(spot, "target/.git"))


def rename_noreplace(spot: str) -> None:
    """The same by RENAME_NOREPLACE."""
    renameat2(prepared_directory(spot), at(spot, "target/.git"), RENAME_NOREPLACE)


def rename_whiteout(spot: str) -> None:
    """The same by RENAME_WHITEOUT."""
    renameat2(prepared_file(spot), at(spot, "target/.git"), RENAME_WHITEOUT)


# ------------------------------------------------------------------------------- C: creation


def create(spot: str) -> None:
    """open(O_CREAT)."""
    os.close(os.open(at(spot, ".git"), os.O_CREAT | os.O_RDWR, 0o644))


def create_exclusively(spot: str) -> None:
    """open(O_CREAT | O_EXCL)."""
    os.close(os.open(at(spot, ".git"), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))


def make_directory(spot: str) -> None:
    """mkdir."""
    os.mkdir(at(spot, ".git"))


def make_fifo(spot: str) -> None:
    """mkfifo."""
    os.mkfifo(at(spot, ".git"))


def make_node(spot: str) -> None:
    """mknod of a regular file."""
    os.mknod(at(spot, ".git"), stat.S_IFREG | 0o644)


def make_symlink(spot: str) -> None:
    """symlink."""
    os.symlink("target", at(spot, ".git"))


def make_link(spot: str) -> None:
    """link of a file of the user's own."""
    os.link(prepared_file(spot), at(spot, "target/.git"))


def bind_socket(spot: str) -> None:
    """bind of a socket."""
    with preparing():
        os.chdir(spot)
        bound = socket.socket(socket.AF_UNIX)
    with bound:
        bound.bind(".git")


def link_anonymous(spot: str) -> None:
    """O_TMPFILE and linkat."""
    descriptor = os.open(spot, os.O_TMPFILE | os.O_WRONLY, 0o644)
    linkat_by_proc(descriptor, at(spot, ".git"))


def link_open_file(spot: str) -> None:
    """linkat of an open file by /proc/self/fd."""
    pointer = prepared_file(spot)
    with preparing():
        descriptor = os.open(pointer, os.O_WRONLY)
    linkat_by_proc(descriptor, at(spot, "target/.git"))


# ------------------------------------------------------------------------ P: fake repositories


def assemble(spot: str, parts: Sequence[str], rename: bool = False) -> None:
    """Make the parts of a repository, one after the other; any may be the one that is refused.

    With ``rename``, the last one is made elsewhere and moved.
    """
    trap = at(spot, "trap")
    with preparing():
        os.mkdir(trap)
    *first, last = parts
    for part in first:
        _part(trap, part)
    if rename:
        with preparing():
            os.mkdir(at(spot, "spare"))
            _part(at(spot, "spare"), last)
        os.rename(at(spot, "spare", last), at(trap, last))
    else:
        _part(trap, last)


def _part(directory: str, name: str) -> None:
    kind = name.lower()
    if kind.startswith("re") or kind in ("objects", "hooks"):
        os.mkdir(at(directory, name))
    elif kind == "head":
        write(at(directory, name), HEAD_TEXT)
    else:
        write(at(directory, name), "" if kind.startswith("config") else "../common\n")


def exchange_head_with_refs(spot: str) -> None:
    """A directory HEAD and a file refs, harmless until they change places."""
    with preparing():
        os.makedirs(at(spot, "HEAD"))
        write(at(spot, "refs"), HEAD_TEXT)
    renameat2(at(spot, "HEAD"), at(spot, "refs"), RENAME_EXCHANGE)


# ------------------------------------------------------------------------------ F: .git files


def plant_pointer(spot: str) -> None:
    """A ``.git`` file that points elsewhere."""
    write(at(spot, ".git"), POINTER_TEXT)


# ---------------------------------------------------------------------------- N: other spellings


def plant_spelling(name: str, spot: str) -> None:
    """A directory, then a file, of that name."""
    os.mkdir(at(spot, name))


def rename_to_spelling(name: str, spot: str) -> None:
    """A prepared file, renamed to that name."""
    os.rename(prepared_file(spot), at(spot, "target", name))


def do_ordinary_work(spot: str) -> None:
    """What a project needs every minute; refused, it shows that refusals mean nothing here."""
    with preparing():
        write(at(spot, "file"), "text\n")
        os.mkdir(at(spot, "directory"))
        os.rename(at(spot, "file"), at(spot, "directory/moved"))
        os.symlink("moved", at(spot, "directory/symlink"))
        os.link(at(spot, "directory/moved"), at(spot, "directory/linked"))
        os.rename(at(spot, "directory"), at(spot, "other"))


def use_ordinary_name(name: str, spot: str) -> None:
    """A file of an ordinary name that is near to ``.git``."""
    write(at(spot, name), "text\n")


# Not every file system that answers has flags of rename, or files without a name.
_NO_FLAG = frozenset({EACCES, EINVAL})
_NO_TMPFILE = frozenset({EACCES, EOPNOTSUPP})
_REFUSED = frozenset({EACCES})

TABLE: tuple[Plant, ...] = (
    Plant("R3a", "rename to .git, RENAME_NOREPLACE", rename_noreplace, _NO_FLAG),
    Plant("R3a", "rename to .git, RENAME_WHITEOUT", rename_whiteout, _NO_FLAG),
    Plant("R5", "rename a directory to .git", rename_directory, _REFUSED),
    Plant("R5", "rename a file to .git", rename_file, _REFUSED),
    Plant("C1", "open(O_CREAT)", create, _REFUSED),
    Plant("C1", "open(O_CREAT | O_EXCL)", create_exclusively, _REFUSED),
    Plant("C1", "mkdir", make_directory, _REFUSED),
    Plant("C1", "mkfifo", make_fifo, _REFUSED),
    Plant("C1", "mknod", make_node, _REFUSED),
    Plant("C1", "symlink", make_symlink, _REFUSED),
    Plant("C1", "link", make_link, _REFUSED),
    Plant("C1", "bind", bind_socket, _REFUSED),
    Plant("C3", "O_TMPFILE and linkat", link_anonymous, _NO_TMPFILE),
    Plant("C3", "linkat of an open file", link_open_file, _REFUSED),
    *(
        Plant(row, f"{b} beside {a}", partial(assemble, parts=("objects", a, b)), _REFUSED)
        for row, a, b in (
            ("P1", "refs", "HEAD"),
            ("P1", "HEAD", "refs"),
            ("P2", "commondir", "HEAD"),
            ("P2", "HEAD", "commondir"),
            ("V4", "HEAD", "config"),
            ("V4", "config", "HEAD"),
            ("V4", "HEAD", "hooks"),
            ("V4", "hooks", "HEAD"),
            ("V4", "HEAD", "config.worktree"),
            ("V4", "refs", "config"),
            ("V4", "config", "refs"),
        )
    ),
    Plant("V4", "commondir alone", partial(assemble, parts=("commondir",)), _REFUSED),
    Plant(
        "P1",
        "HEAD renamed beside refs",
        partial(assemble, parts=("objects", "refs", "HEAD"), rename=True),
        _REFUSED,
    ),
    Plant("P1", "HEAD and refs exchanged", exchange_head_with_refs, _NO_FLAG),
    Plant("F1", "a new .git file", plant_pointer, _REFUSED),
    Plant("F1", "a file renamed to .git", rename_file, _REFUSED),
    *(Plant("N", ascii(n), partial(plant_spelling, n), _REFUSED) for n in SPELLINGS),
    *(
        Plant("N", f"{n!a} by rename", partial(rename_to_spelling, n), _REFUSED)
        for n in (".GIT", ".git.", "git~1", ".g\u200cit")
    ),
    *(
        Plant("P1", f"{a!a} beside {b!a}", partial(assemble, parts=("objects", b, a)), _REFUSED)
        for a, b in FOLDED
    ),
)
"""Row of the threats, what it is, how it is done, and the errnos that are right."""

CONTROLS: tuple[Plant, ...] = (
    Plant("control", "ordinary work", do_ordinary_work, frozenset()),
    *(Plant("ordinary", n, partial(use_ordinary_name, n), frozenset()) for n in ORDINARY),
)
"""What has to succeed, or the refusals of the others say nothing."""
