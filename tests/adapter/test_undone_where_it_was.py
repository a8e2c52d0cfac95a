"""A change that turns out to be wrong is undone where it was made, and nowhere else."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gitguardfs.base.protocol import RENAME_EXCHANGE
from gitguardfs.linux import syscalls
from tests.adapter.conftest import MakeWorld
from tests.adapter.path_client import PathClient
from tests.adapter.world import World, refused, symlink, touch


def directories(world: World, *paths: str) -> Path:
    for path in paths:
        (world.source / path).mkdir(parents=True)
    return world.source


def around_rename(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    before: Callable[[int], None] = lambda _: None,
    after: Callable[[], None] = lambda: None,
) -> None:
    """Do something before and after the next rename, as another guard or the server may."""
    rename = world.tree.source.rename

    def renaming(old_fd: int, *rest: Any) -> None:
        monkeypatch.setattr(world.tree.source, "rename", rename)
        before(old_fd)
        rename(old_fd, *rest)
        after()

    monkeypatch.setattr(world.tree.source, "rename", renaming)


def swap_x_and_y(directory: int) -> None:
    syscalls.renameat2(directory, b"X", directory, b"Y", RENAME_EXCHANGE)


@pytest.mark.parametrize("place", ["r/a/c/D", "r/D"])
async def test_over_9p_a_rename_is_not_undone_in_the_root(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """The server fails while the directories above are looked at again, after the rename."""
    world = make_world(is_ninep=True, is_local=False)
    source = directories(world, "r/.git", "r/a/b/D/k", "r/a/c")
    await symlink(world, "r/a/b/D/k/L", b"../../../../f")
    for path in ("r/a/b/D", "r/a/c"):
        await world.id(path)
    cache = world.tree.descriptors
    opens = cache.open

    def failing(flags: int, name: bytes, dir_fd: int | None, mode: int = 0) -> int:
        if name == b"a":
            monkeypatch.setattr(cache, "open", opens)
            raise OSError(errno.EIO, "server")
        return opens(flags, name, dir_fd, mode)

    around_rename(world, monkeypatch, after=lambda: monkeypatch.setattr(cache, "open", failing))
    await refused(world.rename("r/a/b/D", place), errno.EIO, errno.EXDEV)
    assert os.listdir(source) == ["r"]
    assert (source / "r/a/b/D/k/L").is_symlink()


async def test_what_another_guard_has_put_in_the_place_goes_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = directories(world, "r/.git", "r/a/b/c")
    await touch(world, "r/a/b/c/X")
    await symlink(world, "r/a/b/c/Y", b"../../../f")
    around_rename(world, monkeypatch, before=swap_x_and_y)
    await refused(world.rename("r/a/b/c/X", "r/OUT"), errno.ESTALE)
    assert sorted(os.listdir(source / "r")) == [".git", "a"]
    assert (source / "r/a/b/c/X").is_symlink()


async def test_so_it_does_from_a_name_that_git_opens(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = directories(world, "r/.git")
    await touch(world, "r/X")
    await symlink(world, "r/Y", b"f")
    around_rename(world, monkeypatch, before=swap_x_and_y)
    await refused(world.rename("r/X", "r/.gitmodules"), errno.ESTALE)
    assert sorted(os.listdir(source / "r")) == [".git", "X", "Y"]


async def test_half_a_repository_is_not_filled_while_a_part_is_aside(world: World) -> None:
    source = directories(world, "b/objects", "b/hooks")
    (source / "b/HEAD").write_text("ref: refs/heads/main\n")
    (source / "b/config").write_text("[core]\n")
    await world.rename("b/objects", "b/aside")
    await touch(world, "b/hooks/post-update")
    await refused(world.rename("b/aside", "b/objects"))


TEXT = b"../../../f"
"""Leads to ``r/f`` from ``r/a/b/c``, and out of the work tree ``r`` from above."""


def put_a_symlink(directory: Path, name: str) -> None:
    """Do what another guard allows: the symlink stays in its directory."""
    (directory / "Y").rename(directory / name)


def put_a_directory(directory: Path, name: str) -> None:
    (directory / name).unlink()
    (directory / "D").rename(directory / name)


@pytest.mark.parametrize("put", [put_a_symlink, put_a_directory])
async def test_so_does_what_an_exchange_has_brought_from_the_other_place(
    world: World, monkeypatch: pytest.MonkeyPatch, put: Callable[[Path, str], None]
) -> None:
    source = directories(world, "r/.git", "r/a/b/c/D")
    for path in ("r/X", "r/a/b/c/X"):
        await touch(world, path)
    await symlink(world, "r/a/b/c/Y", TEXT)
    await symlink(world, "r/a/b/c/D/Y", b"../" + TEXT)
    around_rename(world, monkeypatch, before=lambda _: put(source / "r/a/b/c", "X"))
    await refused(world.rename("r/X", "r/a/b/c/X", RENAME_EXCHANGE), errno.ESTALE)
    assert (source / "r/X").is_file()
    assert not (source / "r/a/b/c/X").is_file()


async def test_so_does_a_symlink_that_has_the_number_of_the_file(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = directories(world, "r/.git", "r/a/b/c")
    await touch(world, "r/a/b/c/X")
    await symlink(world, "r/a/b/c/Y", TEXT)

    def replace(_: int) -> None:
        put_a_symlink(source / "r/a/b/c", "X")
        monkeypatch.setattr(os.path, "samestat", lambda *_: True)

    around_rename(world, monkeypatch, before=replace)
    await refused(world.rename("r/a/b/c/X", "r/X"), errno.ESTALE)
    assert (source / "r/a/b/c/X").is_symlink()


@pytest.mark.parametrize("is_open", [True, False], ids=["open", "closed"])
async def test_over_9p_so_does_a_symlink_in_the_place_of_a_file(
    make_world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_open: bool
) -> None:
    PathClient(tmp_path / "source", monkeypatch)
    world = make_world(is_ninep=True, is_local=False)
    source = directories(world, "r/.git", "r/a/b/c")
    await touch(world, "r/a/b/c/X")
    await symlink(world, "r/a/b/c/Y", TEXT)
    handle = await world.open("r/a/b/c/X") if is_open else None
    around_rename(world, monkeypatch, before=lambda _: put_a_symlink(source / "r/a/b/c", "X"))
    await refused(world.rename("r/a/b/c/X", "r/X"), errno.ESTALE)
    assert sorted(os.listdir(source / "r")) == [".git", "a"]
    assert (source / "r/a/b/c/X").is_symlink()
    if handle is not None:
        await world.ops.release(handle)


@pytest.mark.parametrize("kind", ["file", "symlink"])
async def test_over_9p_no_symlink_is_linked_in_the_place_of_a_node(
    make_world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The server names what is at the node's path."""
    PathClient(tmp_path / "source", monkeypatch)
    world = make_world(is_ninep=True, is_local=False)
    source = directories(world, "r/.git", "r/a/b/c")
    if kind == "file":
        await touch(world, "r/a/b/c/X")
    else:
        await symlink(world, "r/a/b/c/X", b"f")
    await symlink(world, "r/a/b/c/Y", TEXT)
    link = world.tree.source.link

    def linking(*arguments: Any) -> None:
        put_a_symlink(source / "r/a/b/c", "X")
        link(*arguments)

    monkeypatch.setattr(world.tree.source, "link", linking)
    x, r = await world.id("r/a/b/c/X"), await world.id("r")
    await refused(world.ops.link(x, r, b"new", world.ctx), errno.ESTALE, errno.EXDEV)
    assert sorted(os.listdir(source / "r")) == [".git", "a"]
