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
