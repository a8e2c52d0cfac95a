"""Attacks on git on the host while it works in the project, or by names that it restores later.

``view`` is the project as the attacker sees it. Standard library only, as in ``attacks``.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.support.attacks import HEAD_TEXT, write_config
from tests.support.raw_calls import RENAME_EXCHANGE, renameat2

LARGE = 257
"""Directories in a tree that is too large to be searched whenever it is moved."""

Swap = Callable[[Path, Path], None]
"""Put the object at the second path in the place of the first, a directory."""


def by_exchange(directory: Path, link: Path) -> None:
    renameat2(link, directory, RENAME_EXCHANGE)


def by_two_renames(directory: Path, link: Path) -> None:
    directory.rename(directory.with_name("gone"))
    link.rename(directory)


def by_a_new_symlink(directory: Path, link: Path) -> None:
    text = os.readlink(link)
    directory.rename(directory.with_name("gone"))
    directory.symlink_to(text)


def by_exchange_of_the_parent(directory: Path, link: Path) -> None:
    """``link`` lies in a directory of its own that takes the place of the whole parent."""
    renameat2(link.parent, directory.parent, RENAME_EXCHANGE)


SWAPS: tuple[Swap, ...] = (
    by_exchange,
    by_two_renames,
    by_a_new_symlink,
    by_exchange_of_the_parent,
)


def swap_while_git_writes(view: Path, target: str, swap: Swap, limit: float) -> int | None:
    """Empty ``p/d``, wait until git on the host writes there, and put a symlink in its place.

    Returns the errno with which that was refused, if it was.
    """
    place = view / "p/d"
    try:
        link = view / "q/d"
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(target)
        (view / "later").symlink_to(".")
        for name in os.listdir(place):
            (place / name).unlink()
        (view / "ready").touch()
        deadline = time.monotonic() + limit
        while not os.listdir(place):
            if time.monotonic() > deadline:
                raise AssertionError("git wrote nothing")
        swap(place, link)
    except OSError as error:
        with suppress(FileExistsError):
            (view / "ready").touch()
        return error.errno
    return None


def plant_while_git_makes(view: Path, name: str, command: str, limit: float) -> int | None:
    """Enter a repository as soon as it appears, and add files that git keeps.

    Returns the errno with which that was refused, if it was.
    """
    (view / "ready").touch()
    deadline = time.monotonic() + limit
    while name not in os.listdir(view):
        if time.monotonic() > deadline:
            raise AssertionError("git made nothing")
    try:
        with suppress(FileExistsError):
            (view / name / "hooks").mkdir()
        hook = view / name / "hooks/post-update"
        hook.write_text(f"#!/bin/sh\n{command}\n")
        hook.chmod(0o755)
    except OSError as error:
        return error.errno
    return None


def plant_after_a_chmod(view: Path, name: str, command: str) -> int | None:
    """Set the mode of a new directory, start git, and add files that git keeps.

    Returns the errno with which that was refused, if it was.
    """
    (view / name).chmod(0o755)
    (view / "ready").touch()
    try:
        (view / name / "hooks").mkdir(exist_ok=True)
        hook = view / name / "hooks/post-update"
        hook.write_text(f"#!/bin/sh\n{command}\n")
        hook.chmod(0o755)
    except OSError as error:
        return error.errno
    return None


def swap_above_what_git_makes(view: Path, swap: Swap, command: str, limit: float) -> int | None:
    """Put a prepared directory in the place of ``p`` as soon as there is a ``p/new``.

    Returns the errno with which that was refused, if it was.
    """
    hook = view / "prepared/new/hooks/post-update"
    hook.parent.mkdir(parents=True)
    hook.write_text(f"#!/bin/sh\n{command}\n")
    hook.chmod(0o755)
    (view / "ready").touch()
    deadline = time.monotonic() + limit
    while "new" not in os.listdir(view / "p"):
        if time.monotonic() > deadline:
            raise AssertionError("git made nothing")
    try:
        swap(view / "p", view / "prepared")
    except OSError as error:
        return error.errno
    return None


def by_making_a_fifo(path: Path) -> None:
    os.mkfifo(path)


def by_moving_a_fifo(path: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    path.with_name("pipe").rename(path)


def by_linking_a_fifo(path: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    os.link(path.with_name("pipe"), path)


def by_exchanging_a_fifo(path: Path) -> None:
    path.touch()
    os.mkfifo(path.with_name("pipe"))
    renameat2(path.with_name("pipe"), path, RENAME_EXCHANGE)


def by_exchanging_with_a_fifo(path: Path) -> None:
    path.touch()
    os.mkfifo(path.with_name("pipe"))
    renameat2(path, path.with_name("pipe"), RENAME_EXCHANGE)


def by_a_symlink_to_a_fifo(path: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


STOPPED_BY = (
    by_making_a_fifo,
    by_moving_a_fifo,
    by_linking_a_fifo,
    by_exchanging_a_fifo,
    by_exchanging_with_a_fifo,
)


def _config(directory: Path, command: str) -> None:
    write_config(directory / "config", command, worktree="..")


def remove_refs(view: Path, command: str) -> None:
    """The host tracks ``lib/refs``; everything else is the attacker's."""
    shutil.rmtree(view / "lib/refs")
    (view / "lib/HEAD").write_text(HEAD_TEXT)
    (view / "lib/objects").mkdir()
    _config(view / "lib", command)


def remove_head(view: Path, command: str) -> None:
    """The host tracks ``lib/HEAD``."""
    (view / "lib/HEAD").unlink()
    (view / "lib/refs").mkdir()
    (view / "lib/objects").mkdir()
    _config(view / "lib", command)


def remove_head_and_keep_objects(view: Path, command: str) -> None:
    """The host tracks ``lib/HEAD`` and ``lib/objects``; refs and a config make them whole."""
    (view / "lib/HEAD").unlink()
    shutil.rmtree(view / "lib/objects")
    (view / "lib/refs").mkdir()
    _config(view / "lib", command)


def move_head_away(view: Path, command: str) -> None:
    (view / "lib/HEAD").rename(view / "HEAD.txt")
    shutil.rmtree(view / "lib/objects")
    (view / "lib/refs").mkdir()
    _config(view / "lib", command)


def replace_head_and_remove_it(view: Path, command: str) -> None:
    """The file that replaces HEAD is the attacker's own, and may be removed."""
    (view / "own").write_text("text\n")
    (view / "own").rename(view / "lib/HEAD")
    (view / "lib/HEAD").unlink()
    shutil.rmtree(view / "lib/objects")
    (view / "lib/refs").mkdir()
    _config(view / "lib", command)


def move_the_directory_away(view: Path, command: str) -> None:
    (view / "lib").rename(view / "old")
    (view / "lib").mkdir()
    (view / "lib/refs").mkdir()
    _config(view / "lib", command)


def move_a_prepared_directory_there(view: Path, command: str) -> None:
    (view / "d/refs").mkdir(parents=True)
    _config(view / "d", command)
    (view / "lib").rename(view / "old")
    (view / "d").rename(view / "lib")


def exchange_it_with_a_prepared_parent(view: Path, command: str) -> None:
    (view / "d/lib/refs").mkdir(parents=True)
    _config(view / "d/lib", command)
    renameat2(view / "d", view / "deep", RENAME_EXCHANGE)


def move_a_large_prepared_parent_there(view: Path, command: str) -> None:
    """Both are too large to be searched as every moved directory is."""
    (view / "d/lib/refs").mkdir(parents=True)
    _config(view / "d/lib", command)
    for top in ("d", "deep"):
        for number in range(LARGE):
            (view / top / f"{number:04}").mkdir()
    (view / "deep").rename(view / "old")
    (view / "d").rename(view / "deep")


def move_the_parent_away(view: Path, command: str) -> None:
    (view / "deep").rename(view / "old")
    (view / "deep/lib").mkdir(parents=True)
    (view / "deep/lib/refs").mkdir()
    _config(view / "deep/lib", command)


def add_commondir(view: Path, command: str) -> None:
    """The host tracks ``lib/HEAD``; a commondir and a config.worktree are enough beside it."""
    (view / "lib/HEAD").unlink()
    for part in ("objects", "refs"):
        (view / "common" / part).mkdir(parents=True)
    text = "[core]\n\trepositoryformatversion = 1\n[extensions]\n\tworktreeConfig\n"
    (view / "common/settings").write_text(text)
    (view / "lib/commondir").write_text("../common\n")
    write_config(view / "lib/config.worktree", command, worktree="..")
    (view / "common/settings").rename(view / "common/config")


def make_head_and_objects(view: Path) -> None:
    (view / "lib/objects").mkdir(parents=True)
    (view / "lib/objects/keep").write_text("text\n")
    (view / "lib/HEAD").write_text(HEAD_TEXT)


def add_to_another_branch(view: Path, command: str) -> None:
    """The host's other branch tracks ``lib/refs`` and ``lib/objects``."""
    (view / "lib").mkdir()
    (view / "lib/HEAD").write_text(HEAD_TEXT)
    _config(view / "lib", command)


def _leads_elsewhere_below(view: Path) -> None:
    """``top/p/x`` becomes a symlink."""
    (view / "top/p").rename(view / "top/gone")
    (view / "top/p").mkdir()
    (view / "top/p/x").symlink_to("../../q/p/x")


def _leads_elsewhere(view: Path) -> None:
    """``top/p`` becomes a symlink."""
    (view / "top/p").rename(view / "top/gone")
    (view / "top/p").symlink_to("../q/p")


def _leads_elsewhere_above(view: Path) -> None:
    """``top`` becomes a symlink, after the large directory in it was moved away."""
    (view / "top/p").rename(view / "gone")
    (view / "top").rename(view / "gone too")
    (view / "top").symlink_to("q")


def _brings_a_symlink(view: Path) -> None:
    """A directory with a symlink ``x`` takes the place of ``top/p``."""
    (view / "ready").mkdir()
    (view / "ready/x").symlink_to("../../q/p/x")
    (view / "top/p").rename(view / "top/gone")
    (view / "ready").rename(view / "top/p")


def _exchanges_for_a_symlink_below(view: Path) -> None:
    """A directory with a symlink ``x`` is exchanged with ``top/p``."""
    (view / "ready").mkdir()
    (view / "ready/x").symlink_to("../../q/p/x")
    renameat2(view / "ready", view / "top/p", RENAME_EXCHANGE)


def _moves_twice(view: Path) -> None:
    """The large directory moves on before a symlink takes its first place."""
    (view / "top/p").rename(view / "gone")
    (view / "gone").rename(view / "further")
    (view / "top/p").symlink_to("../q/p")


LEADING: tuple[Callable[[Path], None], ...] = (
    _leads_elsewhere_below,
    _leads_elsewhere,
    _leads_elsewhere_above,
    _brings_a_symlink,
    _exchanges_for_a_symlink_below,
    _moves_twice,
)


def lead_git_elsewhere(view: Path, swap: Callable[[Path], None], command: str, pads: bool) -> None:
    """Let the path of a repository that git uses, ``top/p/x/real``, lead to a prepared directory.

    ``pads``: make ``top/p`` too large to be searched whenever it is moved.
    """
    prepared = view / "q/p/x/real"
    (prepared / "hooks").mkdir(parents=True)
    (prepared / "hooks/commit-msg").write_text(f"#!/bin/sh\n{command}\n")
    (prepared / "hooks/commit-msg").chmod(0o755)
    for number in range(LARGE if pads else 0):
        (view / f"top/p/more/{number}").mkdir(parents=True)
    swap(view)


def replace_large_by_symlink(view: Path) -> None:
    """Move a large directory and leave a symlink: no attack, it has to work."""
    for number in range(LARGE):
        (view / f"modules/{number}/config").mkdir(parents=True)
    (view / "modules").rename(view / "store")
    (view / "modules").symlink_to("store")
