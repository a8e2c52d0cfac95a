"""Attacks that assemble a repository, or point git at one, where there was none.

The same conventions as in attacks.py, to which this adds a second table.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import stat
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from tests.support.attacks import (
    HEAD_TEXT,
    Attack,
    add_config,
    attack,
    complete,
    half_repository,
    preparing,
    write_config,
)
from tests.support.raw_calls import RENAME_EXCHANGE, RENAME_NOREPLACE, renameat2

_LINK_EARLY = (errno.EPERM,)
"""fs.protected_hardlinks: for a file that the caller could not write."""

PLANTING: list[Attack] = []
plant = partial(attack, table=PLANTING)

Add = Callable[[Path, str, Path], None]
"""Adds the name to the directory; the third argument is a directory for preparations."""


def _text(name: str) -> str:
    return {"commondir": "../common\n"}.get(name, HEAD_TEXT)


def by_create(directory: Path, name: str, spare: Path) -> None:
    (directory / name).write_text(_text(name))
    (directory / name).chmod(0o755)


def by_exclusive_create(directory: Path, name: str, spare: Path) -> None:
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    descriptor = os.open(directory / name, flags, 0o755)
    os.write(descriptor, _text(name).encode())
    os.close(descriptor)


def by_mknod(directory: Path, name: str, spare: Path) -> None:
    os.mknod(directory / name, stat.S_IFREG | 0o755)
    (directory / name).write_text(_text(name))


def by_mkdir(directory: Path, name: str, spare: Path) -> None:
    (directory / name).mkdir()


def by_fifo(directory: Path, name: str, spare: Path) -> None:
    os.mkfifo(directory / name, 0o755)


def by_symlink(directory: Path, name: str, spare: Path) -> None:
    # A HEAD that is a symlink needs no object behind it, refs needs a directory.
    (directory / name).symlink_to("refs/heads/main" if name == "HEAD" else "objects")


def by_link(directory: Path, name: str, spare: Path) -> None:
    with preparing():
        by_create(spare, "file", spare)
        (spare / "file").write_text(_text(name))
    (directory / name).hardlink_to(spare / "file")


def by_rename(directory: Path, name: str, spare: Path) -> None:
    with preparing():
        by_create(spare, "file", spare)
        (spare / "file").write_text(_text(name))
    (spare / "file").rename(directory / name)


def by_rename_in_place(directory: Path, name: str, spare: Path) -> None:
    with preparing():
        by_create(directory, "file", spare)
        (directory / "file").write_text(_text(name))
    (directory / "file").rename(directory / name)


def by_rename_noreplace(directory: Path, name: str, spare: Path) -> None:
    with preparing():
        by_create(spare, "file", spare)
        (spare / "file").write_text(_text(name))
    renameat2(spare / "file", directory / name, RENAME_NOREPLACE)


def by_directory_rename(directory: Path, name: str, spare: Path) -> None:
    with preparing():
        (spare / "directory").mkdir()
    (spare / "directory").rename(directory / name)


def by_same_name_rename(directory: Path, name: str, spare: Path) -> None:
    with preparing():
        by_create(spare, name, spare)
    (spare / name).rename(directory / name)


def by_exchange_of_directory_for_file(directory: Path, name: str, spare: Path) -> None:
    """The name exists as a directory, which is harmless."""
    with preparing():
        (directory / name).mkdir()
        by_create(spare, "file", spare)
    renameat2(spare / "file", directory / name, RENAME_EXCHANGE)


def by_exchange_from_the_other_end(directory: Path, name: str, spare: Path) -> None:
    with preparing():
        (directory / name).mkdir()
        by_create(spare, "file", spare)
    renameat2(directory / name, spare / "file", RENAME_EXCHANGE)


def by_exchange_in_place(directory: Path, name: str, spare: Path) -> None:
    with preparing():
        (directory / name).mkdir()
        by_create(directory, "file", spare)
        (directory / "file").write_text(_text(name))
    renameat2(directory / "file", directory / name, RENAME_EXCHANGE)


def by_rename_after_rmdir(directory: Path, name: str, spare: Path) -> None:
    with preparing():
        (directory / name).mkdir()
        by_create(spare, "file", spare)
        (directory / name).rmdir()
    (spare / "file").rename(directory / name)


_EXCHANGES = (
    by_exchange_of_directory_for_file,
    by_exchange_from_the_other_end,
    by_exchange_in_place,
)
_WITH_FLAGS = (*_EXCHANGES, by_rename_noreplace)
_FILE_WAYS: tuple[Add, ...] = (
    by_create,
    by_exclusive_create,
    by_mknod,
    by_link,
    by_rename,
    by_rename_in_place,
    by_rename_noreplace,
    by_same_name_rename,
    by_symlink,
)
HEAD_WAYS = (*_FILE_WAYS, *_EXCHANGES, by_rename_after_rmdir)
REFS_WAYS = (*_FILE_WAYS, by_mkdir, by_directory_rename)


def _plain(way: Add) -> str:
    return "directory" if way in _WITH_FLAGS else "bindfs"


def _enter(row: str, last: str, way: Add, first: Callable[[Path, str], Path]) -> None:
    """Enter the attack that makes everything with ``first`` and adds ``last`` by ``way``."""

    @plant(
        row,
        runs="trap",
        name=f"{last}_last_{way.__name__}",
        plain=_plain(way),
        actors=("agent", "root"),
    )
    def assemble(view: Path, command: str) -> None:
        with preparing():
            spare = view / "spare"
            spare.mkdir()
            trap = first(view, command)
        way(trap, last, spare)
        if row == "P1":
            add_config(trap)
        else:
            _finish_common(view)


def _all_but_head(view: Path, command: str) -> Path:
    return half_repository(view / "trap", command, worktree="..")


def _all_but_refs(view: Path, command: str) -> Path:
    trap = _all_but_head(view, command)
    (trap / "refs").rmdir()
    (trap / "HEAD").write_text(HEAD_TEXT)
    return trap


def _common(view: Path, command: str) -> Path:
    """Make everything but HEAD, in a directory that HEAD and commondir then refer to.

    Git takes core.worktree from config.worktree alone where there is a commondir.
    """
    common = half_repository(view / "common", command)
    with (common / "config.later").open("a") as file:
        file.write("[core]\n\trepositoryformatversion = 1\n[extensions]\n\tworktreeConfig\n")
    (view / "trap").mkdir()
    return view / "trap"


def _finish_common(view: Path, worktree_config: str = "[core]\n\tworktree = .\n") -> None:
    add_config(view / "common")
    (view / "trap/config.worktree").write_text(worktree_config)


def _all_but_commondir(view: Path, command: str) -> Path:
    trap = _common(view, command)
    (trap / "HEAD").write_text(HEAD_TEXT)
    return trap


for _way in HEAD_WAYS:
    _enter("P1", "HEAD", _way, _all_but_head)
for _way in REFS_WAYS:
    _enter("P1", "refs", _way, _all_but_refs)
for _way in _FILE_WAYS[:-1]:  # git does not take a commondir that is a directory or leads to one
    if _way is not by_same_name_rename:  # no file may be called that anywhere
        _enter("P2", "commondir", _way, _all_but_commondir)


@plant("P2", runs="trap")
def head_after_commondir(view: Path, command: str) -> None:
    with preparing():
        trap = _common(view, command)
    (trap / "commondir").write_text("../common\n")
    (trap / "HEAD").write_text(HEAD_TEXT)
    _finish_common(view)


@plant("P2", runs="trap")
def config_worktree_beside_commondir(view: Path, command: str) -> None:
    """The common directory's config is harmless, the one that runs is in the trap."""
    with preparing():
        trap = _common(view, "true")
        (trap / "HEAD").write_text(HEAD_TEXT)
        write_config(view / "spare", command, worktree=".")
    (trap / "commondir").write_text("../common\n")
    _finish_common(view, (view / "spare").read_text())


@plant("P1", runs="trap", plain="directory")
def exchange_head_with_refs(view: Path, command: str) -> None:
    """A directory HEAD and a file refs are harmless until they change places."""
    with preparing():
        trap = half_repository(view / "trap", command, worktree="..")
        (trap / "refs").rmdir()
        (trap / "refs").write_text(HEAD_TEXT)
        (trap / "HEAD").mkdir()
    renameat2(trap / "HEAD", trap / "refs", RENAME_EXCHANGE)
    add_config(trap)


@plant("P1", runs="src")
def assemble_around_existing_files(view: Path, command: str) -> None:
    with preparing():
        half_repository(view / "src", command, worktree="..")
    complete(view / "src")


# On some file system of a host, each of these is HEAD or refs. Here they only change what there is.
FOLDED = (
    ("head", "refs"),
    ("HEAD", "Refs"),
    ("Head", "REFS"),
    ("hEAD", "commonDir"),
    ("HEAD", "re\u200bfs"),
    ("H\u00adEAD", "refs"),
    ("HEAD", "refs."),
    ("HEAD", "refs::$DATA"),
    ("HEAD", "\uff52efs"),
    ("\uff28EAD", "refs"),
)


# ---------------------------------------------------------------- P4: what is there already


def _in_store(row: str, name: str, strike: Callable[[Path, str], object], **more: object) -> None:
    for place in ("attic/bare.git", "store"):

        def on_place(view: Path, command: str, place: str = place) -> None:
            strike(view / place, command)

        plant(row, name=f"{name} {place}", **more)(on_place)  # type: ignore[arg-type]


def _replace_text(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC)
    os.write(descriptor, text.encode())
    os.close(descriptor)


_in_store("P4", "write config", lambda store, command: write_config(store / "config", command))
_in_store("P4", "write HEAD", lambda store, command: _replace_text(store / "HEAD", "ref: x\n"))
_in_store("P4", "plant hook", lambda store, command: (store / "hooks").mkdir())
_in_store("P4", "plant config", lambda store, command: write_config(store / "config.worktree", ""))
_in_store("P4", "unlink config", lambda store, command: (store / "config").unlink())
_in_store("P4", "remove HEAD", lambda store, command: (store / "HEAD").unlink())
_in_store("P4", "remove refs", lambda store, command: (store / "refs/tags").rmdir())
_in_store("P4", "move HEAD away", lambda store, command: (store / "HEAD").rename(store / "H"))
_in_store(
    "P4", "move HEAD out", lambda store, command: (store / "HEAD").rename(store.parent / "HEAD.x")
)
_in_store("P4", "move away", lambda store, command: store.rename(store.parent / "x"))
_in_store("P4", "chmod", lambda store, command: store.chmod(0o777), early=(errno.EPERM,))
_in_store("P4", "truncate", lambda store, command: os.truncate(store / "config", 0))


@plant("P4", plain="directory")
def exchange_bare_repository(view: Path, command: str) -> None:
    with preparing():
        prepared = half_repository(view / "prepared", command)
    renameat2(prepared, view / "attic/bare.git", RENAME_EXCHANGE)


@plant("P4", reads=True)
def read_bare_repository(view: Path, command: str) -> bytes:
    return (view / "attic/bare.git/config").read_bytes()


# ------------------------------------------------- P4: what git will read when it is complete


def _in_half(name: str, strike: Callable[[Path, Path], object], **more: object) -> None:
    """Enter an attack on ``half``, which lacks HEAD, and on ``begun``, which lacks refs.

    ``strike`` also gets a directory of the attacker's own, with a file and a directory.
    """
    for place in ("half", "begun"):

        def on_place(view: Path, command: str, place: str = place) -> None:
            with preparing():
                (view / "own/directory").mkdir(parents=True)
                write_config(view / "own/file", command)
            strike(view / place, view / "own")

        plant("P4", name=f"{name} {place}", actors=("agent", "root"), **more)(on_place)  # type: ignore[arg-type]


_in_half("write config", lambda half, own: _replace_text(half / "config", "[core]"))
_in_half("truncate config", lambda half, own: os.truncate(half / "config", 0))
_in_half("chmod config", lambda half, own: (half / "config").chmod(0o666), early=(errno.EPERM,))
_in_half("unlink config", lambda half, own: (half / "config").unlink())
_in_half("move config away", lambda half, own: (half / "config").rename(half / "c"))
_in_half("replace config", lambda half, own: (own / "file").rename(half / "config"))
_in_half(
    "link config", lambda half, own: (own / "c").hardlink_to(half / "config"), early=_LINK_EARLY
)
_in_half(
    "exchange config",
    lambda half, own: renameat2(own / "file", half / "config", RENAME_EXCHANGE),
    plain="directory",
)
_in_half("write config.worktree", lambda half, own: _replace_text(half / "config.worktree", "["))
_in_half("make commondir", lambda half, own: (half / "commondir").write_text("../own"))
_in_half("link commondir", lambda half, own: (half / "commondir").hardlink_to(own / "file"))
_in_half("make a symlink commondir", lambda half, own: (half / "commondir").symlink_to("../own"))
_in_half("move hooks away", lambda half, own: (half / "hooks").rename(half / "h"))
_in_half(
    "exchange hooks",
    lambda half, own: renameat2(half / "hooks", own / "directory", RENAME_EXCHANGE),
    plain="directory",
)
_in_half("chmod hooks", lambda half, own: (half / "hooks").chmod(0o700), early=(errno.EPERM,))
_in_half("plant a hook", lambda half, own: (half / "hooks/pre-commit").write_text("#!/bin/sh\n"))
_in_half("move a hook there", lambda half, own: (own / "file").rename(half / "hooks/pre-commit"))
_in_half(
    "link a hook there", lambda half, own: (half / "hooks/pre-commit").hardlink_to(own / "file")
)
_in_half("make a symlink of a hook", lambda half, own: (half / "hooks/x").symlink_to("../../own"))
_in_half("mkdir in hooks", lambda half, own: (half / "hooks/new").mkdir())
_in_half("mknod in hooks", lambda half, own: os.mknod(half / "hooks/new", stat.S_IFREG | 0o755))
_in_half("write a hook", lambda half, own: _replace_text(half / "hooks/post-update", "#!/bin/sh"))
_in_half(
    "chmod a hook",
    lambda half, own: (half / "hooks/post-update").chmod(0o755),
    early=(errno.EPERM,),
)
_in_half(
    "rename a hook",
    lambda half, own: (half / "hooks/pre-push.sample").rename(half / "hooks/pre-push"),
)
_in_half(
    "link a hook",
    lambda half, own: (own / "hook").hardlink_to(half / "hooks/post-update"),
    early=_LINK_EARLY,
)
_in_half("unlink a hook", lambda half, own: (half / "hooks/post-update").unlink())
_in_half("rmdir in hooks", lambda half, own: (half / "hooks/old").rmdir())


# ------------------------------------------------------------------------------ F: .git files


@plant("F1", runs="")
def plant_git_file_in_gitlink(view: Path, command: str) -> None:
    with preparing():
        evil = half_repository(view / "evil", command, worktree="../module")
    (view / "module/.git").write_text("gitdir: ../evil\n")
    complete(evil)


@plant("F1", runs="")
def rename_git_file_into_gitlink(view: Path, command: str) -> None:
    with preparing():
        evil = half_repository(view / "evil", command, worktree="../module")
        (view / "module/pointer").write_text("gitdir: ../evil\n")
    (view / "module/pointer").rename(view / "module/.git")
    complete(evil)


@plant("F1", runs="")
def move_prepared_directory_onto_gitlink(view: Path, command: str) -> None:
    with preparing():
        evil = half_repository(view / "evil", command, worktree="../module")
        (view / "prepared").mkdir()
    (view / "prepared/.git").write_text("gitdir: ../evil\n")
    (view / "prepared").rename(view / "module")
    complete(evil)


@plant("F1", runs="")
def move_worktree_onto_gitlink(view: Path, command: str) -> None:
    """A ``.git`` file that is there already then points at a store of the agent's."""
    with preparing():
        evil = half_repository(view / "outer/store", command, worktree="../../module")
        (view / "outer/module").mkdir()
        (view / "module").rmdir()
    (view / "split").rename(view / "outer/module")
    (view / "outer/module").rename(view / "module")
    _replace_text(view / "module/.git", "gitdir: ../outer/store\n")
    complete(evil)


@plant("F1", runs="split")
def rewrite_git_file(view: Path, command: str) -> None:
    with preparing():
        evil = half_repository(view / "evil", command, worktree="../split")
    _replace_text(view / "split/.git", "gitdir: ../evil\n")
    complete(evil)


@plant("F1", runs="split")
def overwrite_git_file_in_place(view: Path, command: str) -> None:
    with preparing():
        evil = half_repository(view / "evil!", command, worktree="../split")
    descriptor = os.open(view / "split/.git", os.O_RDWR)
    os.pwrite(descriptor, b"gitdir: ../evil!\n", 0)
    os.close(descriptor)
    complete(evil)


# --------------------------------------------------------------------------- P3: two at once


def _exchange_prepared(directory: Path, name: str, spare: Path) -> None:
    renameat2(spare / "file", directory / name, RENAME_EXCHANGE)


def race(view: Path, second: Path, rounds: int) -> tuple[int, int, list[str]]:
    """Let two processes add HEAD and its counterpart to the same directory at the same time.

    The second process goes through ``second``, which may be another view of the same project.
    Returns how often each of the two was the first, and the directories that hold both.
    """
    heads: tuple[Add, ...] = (
        by_create,
        by_link,
        by_rename,
        _exchange_prepared,
        by_symlink,
        by_mknod,
    )
    others: tuple[Add, ...] = (by_mkdir, by_rename, by_link, by_directory_rename, by_create)
    names = ("refs", "commondir")
    with preparing():
        for number in range(rounds):
            for part in ("trap", "a", "b"):
                (view / f"race/{number}/{part}").mkdir(parents=True)
            if heads[number % len(heads)] is _exchange_prepared:
                (view / f"race/{number}/trap/HEAD").mkdir()
                (view / f"race/{number}/a/file").write_text(HEAD_TEXT)
    mine, theirs = socket.socketpair()

    def run(meeting: socket.socket, add: Callable[[int], None]) -> None:
        was_added, took, wait = False, 0.0, 0.0
        for number in range(rounds):
            meeting.send(b"1" if was_added else b"0")
            answer = meeting.recv(1)
            if not answer:
                return  # the other one has failed
            # Whoever was the first waits longer the next time, so that each of them is, sometimes.
            if was_added and answer == b"0":
                wait += took / 2
            elif answer == b"1" and not was_added:
                wait = max(0.0, wait - took / 2)
            time.sleep(wait)
            begin = time.monotonic()
            try:
                add(number)
                was_added = True
            except OSError as error:
                was_added = False
                if error.errno != errno.EACCES:
                    raise
            took = time.monotonic() - begin

    def add_head(number: int) -> None:
        spot = view / f"race/{number}"
        heads[number % len(heads)](spot / "trap", "HEAD", spot / "a")

    def add_other(number: int) -> None:
        spot = second / f"race/{number}"
        others[number % len(others)](spot / "trap", names[number % len(names)], spot / "b")

    child = os.fork()
    if child == 0:
        mine.close()
        failed = 1
        try:
            run(theirs, add_other)
            failed = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(failed)
    theirs.close()
    try:
        run(mine, add_head)
    finally:
        mine.close()
        _, status = os.waitpid(child, 0)
    assert status == 0, "the second process met something else than a refusal"
    only_head = only_other = 0
    both = []
    for number in range(rounds):
        trap = view / f"race/{number}/trap"
        present = set(os.listdir(trap))
        head = "HEAD" in present and not (trap / "HEAD").is_dir()
        other = bool(present & set(names))
        if head and other:
            both.append(f"{number}: {sorted(present)}")
        only_head += head and not other
        only_other += other and not head
    return only_head, only_other, both


def exchange_race(view: Path, second: Path, rounds: int) -> bool:
    """Move a directory to HEAD beside refs while another process exchanges it for a file.

    The other process uses ``second``, which may be another view of the same project, without a
    cache. Returns whether HEAD was a file after a round, which is then the last one.
    """
    spot = view / "race"
    with preparing():
        (spot / "refs").mkdir(parents=True)
        (spot / "directory").mkdir()
        (spot / "file").write_text(HEAD_TEXT)
    child = os.fork()
    if child == 0:
        while True:
            with suppress(OSError):
                renameat2(second / "race/directory", second / "race/file", RENAME_EXCHANGE)
    try:
        for _ in range(rounds):
            with suppress(OSError):
                (spot / "directory").rename(spot / "HEAD")
            if (second / "race/HEAD").is_file():
                return True
            with suppress(OSError):
                (spot / "HEAD").rename(spot / "directory")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return False
