"""Attacks that need only a writable directory: they plant a ``.git`` or a bare repository.

Each function gets an empty directory of its own, ``workdir``, and makes one attempt. Raises the
OSError by which the attempt was refused. Its files are removed together with the workdir.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from errno import EACCES, EINVAL, EOPNOTSUPP
from functools import partial

from gitguardfs.base.protocol import RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT
from gitguardfs.linux.run_as import preparing
from gitguardfs.linux.syscalls import linkat_by_proc, rename_path

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
"""Names that a host's file system treats as ``.git`` (NTFS, HFS+, casefolding): row N."""

ORDINARY = (".gitignore", ".gitattributes", ".gitmodules", ".github", "git", "..git", ".git~1")
"""Names that must stay usable; a guard that refuses them breaks projects."""

FOLDED = (("head", "refs"), ("HEAD", "Refs"), ("hEAD", "commonDir"), ("HEAD", "re\u200bfs"))
"""Pairs that form a repository on a host whose file system folds names."""

PlantingAttempt = Callable[[str], object]


@dataclass(frozen=True)
class PlantingAttack:
    """One attack in an empty directory of its own."""

    row: str
    name: str
    attempt: PlantingAttempt
    refused: frozenset[int]
    """The errnos by which the guard may refuse it."""


def at(workdir: str, *names: str) -> str:
    """Return a path below ``workdir``."""
    return os.path.join(workdir, *names)


def write(path: str, text: str) -> None:
    """Make a new file with this text."""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def prepared_directory(workdir: str) -> str:
    """Make a directory with objects and refs but no HEAD; return its path."""
    path = at(workdir, "prepared")
    with preparing():
        os.makedirs(at(path, "objects"))
        os.mkdir(at(path, "refs"))
        os.mkdir(at(workdir, "target"))
    return path


def prepared_file(workdir: str) -> str:
    """Make a file with the content of a ``.git`` file; return its path."""
    with preparing():
        write(at(workdir, "pointer"), POINTER_TEXT)
        os.mkdir(at(workdir, "target"))
    return at(workdir, "pointer")


# ----------------------------------------------------------------------- R: rename, exchange


def rename_directory(workdir: str) -> None:
    """Rename a prepared directory to a missing ``.git``."""
    os.rename(prepared_directory(workdir), at(workdir, "target/.git"))


def rename_file(workdir: str) -> None:
    """Rename a prepared file to a missing ``.git``."""
    os.rename(prepared_file(workdir), at(workdir, "target/.git"))


def rename_noreplace(workdir: str) -> None:
    """Rename a prepared directory by RENAME_NOREPLACE."""
    rename_path(prepared_directory(workdir), at(workdir, "target/.git"), RENAME_NOREPLACE)


def rename_whiteout(workdir: str) -> None:
    """Rename a prepared file by RENAME_WHITEOUT."""
    rename_path(prepared_file(workdir), at(workdir, "target/.git"), RENAME_WHITEOUT)


# ------------------------------------------------------------------------------- C: creation


def create(workdir: str) -> None:
    """Create a file by open(O_CREAT)."""
    os.close(os.open(at(workdir, ".git"), os.O_CREAT | os.O_RDWR, 0o644))


def create_exclusively(workdir: str) -> None:
    """Create a file by open(O_CREAT | O_EXCL)."""
    os.close(os.open(at(workdir, ".git"), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))


def make_directory(workdir: str) -> None:
    """Make a directory."""
    os.mkdir(at(workdir, ".git"))


def make_fifo(workdir: str) -> None:
    """Make a FIFO."""
    os.mkfifo(at(workdir, ".git"))


def make_node(workdir: str) -> None:
    """Make a regular file by mknod."""
    os.mknod(at(workdir, ".git"), stat.S_IFREG | 0o644)


def make_symlink(workdir: str) -> None:
    """Make a symlink."""
    os.symlink("target", at(workdir, ".git"))


def make_link(workdir: str) -> None:
    """Link a file that the user owns."""
    os.link(prepared_file(workdir), at(workdir, "target/.git"))


def bind_socket(workdir: str) -> None:
    """Bind a socket."""
    with preparing():
        os.chdir(workdir)
        bound = socket.socket(socket.AF_UNIX)
    with bound:
        bound.bind(".git")


def link_anonymous(workdir: str) -> None:
    """Make an unnamed file (O_TMPFILE), then give it a name by linkat."""
    descriptor = os.open(workdir, os.O_TMPFILE | os.O_WRONLY, 0o644)
    linkat_by_proc(descriptor, at(workdir, ".git"))


def link_open_file(workdir: str) -> None:
    """Link an open file by linkat of /proc/self/fd."""
    pointer = prepared_file(workdir)
    with preparing():
        descriptor = os.open(pointer, os.O_WRONLY)
    linkat_by_proc(descriptor, at(workdir, "target/.git"))


# ------------------------------------------------------------------------ P: fake repositories


def assemble(
    workdir: str, parts: Sequence[str], put: Callable[[str, str], object] | None = None
) -> None:
    """Make the parts of a repository, one after the other; the guard may refuse any of them.

    With ``put`` (os.rename, os.link, os.symlink), the last part is made elsewhere by another name,
    and put into its place by that.
    """
    trap = at(workdir, "trap")
    with preparing():
        os.mkdir(trap)
    *first, last = parts
    for part in first:
        _part(trap, part)
    if put is not None:
        with preparing():
            _part(workdir, last, "spare")
        put(at(workdir, "spare"), at(trap, last))
    else:
        _part(trap, last)


def _part(directory: str, part: str, name: str = "") -> None:
    """Make a part of a repository; its name is ``name``, if one is given."""
    path = at(directory, name or part)
    kind = part.lower()
    if kind.startswith("re") or kind in ("objects", "hooks"):
        os.mkdir(path)
    elif kind == "head":
        write(path, HEAD_TEXT)
    else:
        write(path, "" if kind.startswith("config") else "../common\n")


def exchange_head_with_refs(workdir: str) -> None:
    """Exchange a directory HEAD with a file refs, which form no repository before that."""
    with preparing():
        os.makedirs(at(workdir, "HEAD"))
        write(at(workdir, "refs"), HEAD_TEXT)
    rename_path(at(workdir, "HEAD"), at(workdir, "refs"), RENAME_EXCHANGE)


# ------------------------------------------------------------------------------ F: .git files


def plant_pointer(workdir: str) -> None:
    """Make a ``.git`` file that points elsewhere."""
    write(at(workdir, ".git"), POINTER_TEXT)


# ---------------------------------------------------------------------------- N: other spellings


def plant_spelling(name: str, workdir: str) -> None:
    """Make a directory of that name."""
    os.mkdir(at(workdir, name))


def rename_to_spelling(name: str, workdir: str) -> None:
    """Rename a prepared file to that name."""
    os.rename(prepared_file(workdir), at(workdir, "target", name))


def do_ordinary_work(workdir: str) -> None:
    """Do ordinary work of a project. If it fails, refusals of attacks prove nothing."""
    with preparing():
        write(at(workdir, "file"), "text\n")
        os.mkdir(at(workdir, "directory"))
        os.rename(at(workdir, "file"), at(workdir, "directory/moved"))
        os.symlink("moved", at(workdir, "directory/symlink"))
        os.link(at(workdir, "directory/moved"), at(workdir, "directory/linked"))
        os.rename(at(workdir, "directory"), at(workdir, "other"))


def use_ordinary_name(name: str, workdir: str) -> None:
    """Make a file of an ordinary name that resembles ``.git``."""
    write(at(workdir, name), "text\n")


# Some file systems support no flags of renameat2, or no unnamed files.
_NO_FLAG = frozenset({EACCES, EINVAL})
_NO_TMPFILE = frozenset({EACCES, EOPNOTSUPP})
_REFUSED = frozenset({EACCES})

TABLE: tuple[PlantingAttack, ...] = (
    PlantingAttack("R3a", "rename to .git, RENAME_NOREPLACE", rename_noreplace, _NO_FLAG),
    PlantingAttack("R3a", "rename to .git, RENAME_WHITEOUT", rename_whiteout, _NO_FLAG),
    PlantingAttack("R5", "rename a directory to .git", rename_directory, _REFUSED),
    PlantingAttack("R5", "rename a file to .git", rename_file, _REFUSED),
    PlantingAttack("C1", "open(O_CREAT)", create, _REFUSED),
    PlantingAttack("C1", "open(O_CREAT | O_EXCL)", create_exclusively, _REFUSED),
    PlantingAttack("C1", "mkdir", make_directory, _REFUSED),
    PlantingAttack("C1", "mkfifo", make_fifo, _REFUSED),
    PlantingAttack("C1", "mknod", make_node, _REFUSED),
    PlantingAttack("C1", "symlink", make_symlink, _REFUSED),
    PlantingAttack("C1", "link", make_link, _REFUSED),
    PlantingAttack("C1", "bind", bind_socket, _REFUSED),
    PlantingAttack("C3", "O_TMPFILE and linkat", link_anonymous, _NO_TMPFILE),
    PlantingAttack("C3", "linkat of an open file", link_open_file, _REFUSED),
    *(
        PlantingAttack(row, f"{b} beside {a}", partial(assemble, parts=("objects", a, b)), _REFUSED)
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
            ("V4", "config.worktree", "HEAD"),
            ("V4", "refs", "config"),
            ("V4", "config", "refs"),
            ("V4", "refs", "config.worktree"),
            ("V4", "config.worktree", "refs"),
            ("V4", "refs", "hooks"),
            ("V4", "hooks", "refs"),
        )
    ),
    *(
        PlantingAttack(
            "V4",
            f"objects beside refs and {payload}",
            partial(assemble, parts=("refs", payload, "objects")),
            _REFUSED,
        )
        for payload in ("config", "config.worktree", "hooks")
    ),
    *(
        PlantingAttack(
            "G4",
            f"{payload} beside {part} and objects, {how}",
            partial(assemble, parts=("objects", part, payload), put=put),
            _REFUSED,
        )
        for part in ("HEAD", "refs")
        for payload in ("config", "config.worktree", "commondir", "hooks")
        for how, put in (
            ("made", None),
            ("renamed", os.rename),
            ("as a symlink", os.symlink),
            *((("linked", os.link),) if payload != "hooks" else ()),
        )
    ),
    PlantingAttack("V4", "commondir alone", partial(assemble, parts=("commondir",)), _REFUSED),
    PlantingAttack(
        "P1",
        "HEAD renamed beside refs",
        partial(assemble, parts=("objects", "refs", "HEAD"), put=os.rename),
        _REFUSED,
    ),
    PlantingAttack("P1", "HEAD and refs exchanged", exchange_head_with_refs, _NO_FLAG),
    PlantingAttack("F1", "a new .git file", plant_pointer, _REFUSED),
    PlantingAttack("F1", "a file renamed to .git", rename_file, _REFUSED),
    *(PlantingAttack("N", ascii(n), partial(plant_spelling, n), _REFUSED) for n in SPELLINGS),
    *(
        PlantingAttack("N", f"{n!a} by rename", partial(rename_to_spelling, n), _REFUSED)
        for n in (".GIT", ".git.", "git~1", ".g\u200cit")
    ),
    *(
        PlantingAttack(
            "P1", f"{a!a} beside {b!a}", partial(assemble, parts=("objects", b, a)), _REFUSED
        )
        for a, b in FOLDED
    ),
)
"""All attacks that plant something; row is the threat's id."""

CONTROLS: tuple[PlantingAttack, ...] = (
    PlantingAttack("control", "ordinary work", do_ordinary_work, frozenset()),
    *(PlantingAttack("ordinary", n, partial(use_ordinary_name, n), frozenset()) for n in ORDINARY),
)
"""Ordinary work, which must succeed; otherwise refusals of attacks prove nothing."""
