"""Directories that the host moves while a process is in them: the rule for links follows them."""

import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gitguardfs.fs.nodes import ROOT_ID
from gitguardfs.fs.source import Source
from tests.adapter.conftest import MakeWorld
from tests.adapter.world import Later, World, count_calls, open_descriptors, refused

NEUTRAL = "/.gitguardfs-guest/"


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    return planted(make_world())


def planted(world: World) -> World:
    """A repository, and a directory elsewhere."""
    for name in ("r/.git/hooks", "r/deep/er", "a/d/sub"):
        (world.source / name).mkdir(parents=True)
    (world.source / "r/meta").symlink_to(".git")
    (world.source / "r/deep/er/meta").symlink_to("../../.git")
    (world.source / "a/d/link").symlink_to("../sibling")
    (world.source / "a/d/sub/link").symlink_to("../../sibling")
    return world


PLACES = ["r/d", "r/deep/er/d"]
HOW_LATE = pytest.mark.parametrize("at_once", [True, False])


@pytest.mark.parametrize("place", PLACES)
@HOW_LATE
async def test_symlinks_are_checked_where_they_come_to_stand(
    world: World, later: Later, at_once: bool, place: str
) -> None:
    d = await world.id("a/d")
    (world.source / "a/d").rename(world.source / place)
    if not at_once:
        later()
    for name, text, is_contained in (
        (b"into", "../meta/hooks", False),
        (b"beside", "../other", True),
        (b"above", "../../x", place != "r/d"),
    ):
        await world.ops.symlink(d, name, text.encode(), world.ctx)
        stored = os.readlink(world.source / place / os.fsdecode(name))
        assert stored == (text if is_contained else NEUTRAL + text.replace("..", "..."))
        shown = await world.ops.readlink(await world.id(f"{place}/{os.fsdecode(name)}"), world.ctx)
        assert os.fsdecode(shown) == text


MOVES: dict[str, Callable[[World, int], Awaitable[Any]]] = {
    "make a symlink": lambda w, d: w.ops.symlink(d, b"new", b"../x", w.ctx),
    "move a symlink": lambda w, d: w.ops.rename(d, b"link", d, b"new", 0, w.ctx),
    "move a directory up": lambda w, d: w.ops.rename(d, b"sub", ROOT_ID, b"new", 0, w.ctx),
}


@pytest.mark.parametrize("way", MOVES)
async def test_over_a_share_nobody_can_tell(make_world: MakeWorld, way: str) -> None:
    world = planted(make_world(is_local=False))
    d = await world.id("a/d")
    (world.source / "a/d").rename(world.source / "r/d")
    await refused(MOVES[way](world, d), errno.ESTALE)
    assert await world.id("r/d") == d
    if way == "move a directory up":
        await refused(MOVES[way](world, d), errno.EXDEV)
    else:
        await MOVES[way](world, d)


async def test_a_process_that_was_moved_into_a_repository_is_out_at_once(world: World) -> None:
    d = await world.id("a/d")
    (world.source / "a/d").rename(world.source / "r/.git/d")
    await refused(world.ops.symlink(d, b"new", b"../nowhere", world.ctx))


@pytest.mark.parametrize("is_local", [True, False])
async def test_nothing_comes_about_in_what_the_host_has_removed(
    make_world: MakeWorld, is_local: bool
) -> None:
    world = make_world(is_local=is_local)
    (world.source / "a").mkdir()
    a = await world.id("a")
    await world.ops.getattr(a, world.ctx)
    world.tree.descriptors.of(world.tree.nodes.get(a))
    (world.source / "a").rmdir()
    await refused(world.ops.symlink(a, b"new", b"nowhere", world.ctx), errno.ENOENT)


async def test_descriptors_do_not_stay(world: World) -> None:
    d = await world.id("a/d")
    before = open_descriptors()
    for number, place in enumerate(PLACES * 3):
        inode = world.tree.nodes.get(d).ino
        (old,) = (path for path in world.source.rglob("*") if path.lstat().st_ino == inode)
        old.rename(world.source / place)
        await world.ops.symlink(d, b"l%d" % number, b"../nowhere", world.ctx)
    await world.ops.forget([(d, 1)])
    assert len(open_descriptors()) <= len(before)


async def test_a_deep_directory_costs_a_few_looks_at_each_that_is_climbed(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That takes no more descriptors than may be open."""
    world = make_world(descriptor_limit=16)
    depth = 200
    path = Path(*["d"] * depth)
    (world.source / path).mkdir(parents=True)
    deep = await world.id(str(path))
    found = count_calls(monkeypatch, Source, "find_at")
    await world.ops.symlink(deep, b"new", b"../../../nowhere", world.ctx)
    assert len(found) < 40
