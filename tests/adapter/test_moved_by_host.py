"""Directories that the host moves while a process is in them: the rules follow them."""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gitguardfs.fs import host_git
from gitguardfs.fs.nodes import ROOT_ID
from gitguardfs.fs.source import Source
from gitguardfs.protocol import RENAME_EXCHANGE
from tests.adapter.conftest import MakeWorld
from tests.adapter.world import Later, World, count_calls, open_descriptors, refused


@pytest.fixture
def world(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(host_git, "WAIT", 0.0)
    return planted(make_world())


def planted(world: World) -> World:
    """A repository in which git is at work, and a directory elsewhere."""
    for name in ("r/.git/hooks", "r/deep/er", "a/d/sub", "a/d/sub2"):
        (world.source / name).mkdir(parents=True)
    (world.source / "r/meta").symlink_to(".git")
    (world.source / "r/deep/er/meta").symlink_to("../../.git")
    (world.source / "a/d/link").symlink_to("nowhere")
    (world.source / "r/.git/index.lock").touch()
    return world


WAITS: dict[str, Callable[[World, int], Awaitable[Any]]] = {
    "make a symlink": lambda w, d: w.ops.symlink(d, b"new", b"nowhere", w.ctx),
    "move a symlink": lambda w, d: w.ops.rename(d, b"link", d, b"new", 0, w.ctx),
    "move a symlink out": lambda w, d: w.ops.rename(d, b"link", ROOT_ID, b"new", 0, w.ctx),
    "move a directory": lambda w, d: w.ops.rename(d, b"sub", d, b"new", 0, w.ctx),
    "exchange": lambda w, d: w.ops.rename(d, b"sub", d, b"sub2", RENAME_EXCHANGE, w.ctx),
}
PLACES = ["r/d", "r/deep/er/d"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("way", WAITS)
async def test_git_is_waited_for_where_it_is_now(
    world: World, later: Later, way: str, at_once: bool, place: str
) -> None:
    d = await world.id("a/d")
    (world.source / "a/d").rename(world.source / place)
    before = sorted(os.listdir(world.source / place))
    if not at_once:
        later()
    await refused(WAITS[way](world, d), errno.EBUSY)
    assert sorted(os.listdir(world.source / place)) == before
    (world.source / "r/.git/index.lock").unlink()
    await WAITS[way](world, d)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("at_once", [True, False])
async def test_symlinks_are_judged_where_they_come_to_stand(
    world: World, later: Later, at_once: bool, place: str
) -> None:
    (world.source / "r/.git/index.lock").unlink()
    d = await world.id("a/d")
    (world.source / "a/d").rename(world.source / place)
    if not at_once:
        later()
    await refused(world.ops.symlink(d, b"new", b"../meta/hooks", world.ctx))
    await world.ops.symlink(d, b"new", b"../../deep", world.ctx)


async def test_what_is_removed_is_remembered_where_it_is(world: World) -> None:
    (world.source / "a/d/HEAD").write_text("ref: refs/heads/main\n")
    d = await world.id("a/d")
    (world.source / "a/d").rename(world.source / "r/d")
    await world.ops.unlink(d, b"HEAD", world.ctx)
    d = await world.id("r/d")
    await refused(world.ops.mkdir(d, b"refs", 0o755, world.ctx))


async def test_who_was_moved_into_a_repository_is_out_at_once(world: World) -> None:
    (world.source / "r/.git/index.lock").unlink()
    d = await world.id("a/d")
    (world.source / "a/d").rename(world.source / "r/.git/d")
    await refused(world.ops.symlink(d, b"new", b"nowhere", world.ctx))


async def test_over_a_share_nobody_can_tell(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = planted(make_world(is_local=False))
    monkeypatch.setattr(host_git, "WAIT", 0.0)
    d = await world.id("a/d")
    (world.source / "a/d").rename(world.source / "r/d")
    for way in WAITS.values():
        await refused(way(world, d), errno.ESTALE)
    assert await world.id("r/d") == d
    for way in WAITS.values():
        await refused(way(world, d), errno.EBUSY)


@pytest.mark.parametrize("is_local", [True, False])
async def test_nothing_comes_about_in_what_the_host_has_removed(
    make_world: MakeWorld, is_local: bool
) -> None:
    world = make_world(is_local=is_local)
    (world.source / "a").mkdir()
    a = await world.id("a")
    await world.ops.getattr(a, world.ctx)
    world.state.descriptors.of(world.state.nodes.get(a))
    (world.source / "a").rmdir()
    await refused(world.ops.symlink(a, b"new", b"nowhere", world.ctx), errno.ENOENT)


async def test_descriptors_do_not_stay(world: World, later: Later) -> None:
    d = await world.id("a/d")
    before = open_descriptors()
    (world.source / "r/.git/index.lock").unlink()
    for number, place in enumerate(PLACES * 3):
        inode = world.state.nodes.get(d).ino
        (old,) = (path for path in world.source.rglob("*") if path.lstat().st_ino == inode)
        old.rename(world.source / place)
        await world.ops.symlink(d, b"l%d" % number, b"nowhere", world.ctx)
    await world.ops.forget([(d, 1)])
    assert len(open_descriptors()) <= len(before)


async def test_a_deep_directory_costs_one_look_at_each_above_it(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That takes no more descriptors than may be open."""
    world = make_world(descriptor_limit=16)
    depth = 200
    path = Path(*["d"] * depth)
    (world.source / path).mkdir(parents=True)
    deep = await world.id(str(path))
    opened = count_calls(monkeypatch, world.state.descriptors, "open")
    found = count_calls(monkeypatch, Source, "find_at")
    await world.ops.symlink(deep, b"new", b"nowhere", world.ctx)
    assert len(opened) + len(found) < 10 * depth
