"""Waiting while git on the host holds an index.lock."""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import trio

from gitguardfs.fs import host_git
from gitguardfs.fs.nodes import ROOT_ID
from gitguardfs.protocol import RENAME_EXCHANGE, Later
from gitguardfs.sessions.pyfuse3_session import retries
from tests.adapter.conftest import MakeWorld
from tests.adapter.world import World, refused


@pytest.fixture
def world(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> World:
    """A repository in which git is at work for longer than a request waits."""
    monkeypatch.setattr(host_git, "WAIT", 0.05)
    world = make_world()
    for name in ("r/.git", "r/d/e", "r/d2", "r/full", "free/d"):
        (world.source / name).mkdir(parents=True)
    (world.source / "r/link").symlink_to("nowhere")
    (world.source / "r/file").write_text("text")
    (world.source / "r/full/file").write_text("text")
    lock(world).touch()
    return world


def lock(world: World) -> Path:
    return world.source / "r/.git/index.lock"


async def symlink(world: World, path: str, text: bytes = b"nowhere") -> Any:
    parent, _, name = path.rpartition("/")
    return await world.ops.symlink(await world.id(parent), name.encode(), text, world.ctx)


async def link(world: World, path: str) -> Any:
    parent, _, name = path.rpartition("/")
    node = await world.id("r/link")
    return await world.ops.link(node, await world.id(parent), name.encode(), world.ctx)


WAITS: dict[str, Callable[[World], Awaitable[Any]]] = {
    "make a symlink": lambda w: symlink(w, "r/new"),
    "make one further down": lambda w: symlink(w, "r/d/e/new"),
    "link one": lambda w: link(w, "r/new"),
    "move one": lambda w: w.rename("r/link", "r/d/link"),
    "move one out": lambda w: w.rename("r/link", "free/link"),
    "put one over a file": lambda w: w.rename("r/link", "r/file"),
    "move a directory": lambda w: w.rename("r/d", "r/new"),
    "move a directory out": lambda w: w.rename("r/d", "free/new"),
    "move a directory in": lambda w: w.rename("free/d", "r/new"),
    "exchange directories": lambda w: w.rename("r/d", "r/d2", RENAME_EXCHANGE),
    "exchange a file with a directory": lambda w: w.rename("r/file", "r/d2", RENAME_EXCHANGE),
    "exchange a file with a symlink": lambda w: w.rename("r/file", "r/link", RENAME_EXCHANGE),
}

IS_FREE: dict[str, Callable[[World], Awaitable[Any]]] = {
    "make a symlink elsewhere": lambda w: symlink(w, "free/new"),
    "move a directory elsewhere": lambda w: w.rename("free/d", "free/new"),
    "make a directory": lambda w: w.ops.mkdir(ROOT_ID, b"new", 0o755, w.ctx),
    "move a file": lambda w: w.rename("r/file", "r/d/file"),
    "put a file over a symlink": lambda w: w.rename("r/file", "r/link"),
}


def tree_of(world: World) -> list[tuple[str, int]]:
    return sorted(
        (str(path.relative_to(world.source)), os.lstat(path).st_ino)
        for path in world.source.rglob("*")
    )


@pytest.mark.parametrize("way", WAITS)
async def test_while_git_works(world: World, way: str) -> None:
    before = tree_of(world)
    await refused(WAITS[way](world), errno.EBUSY)
    assert tree_of(world) == before
    lock(world).unlink()
    await WAITS[way](world)
    assert tree_of(world) != before


async def test_a_repository_that_was_not_there_a_moment_ago(world: World) -> None:
    """``git clone`` into an empty directory takes milliseconds from ``.git`` to the lock."""
    await symlink(world, "free/d/new")
    (world.source / "free/.git").mkdir()
    (world.source / "free/.git/index.lock").touch()
    await refused(world.rename("free/d", "free/new"), errno.EBUSY)
    await refused(symlink(world, "free/d/other"), errno.EBUSY)


@pytest.mark.parametrize("way", IS_FREE)
async def test_what_does_not_wait(world: World, way: str) -> None:
    await IS_FREE[way](world)


async def test_who_waits_goes_on_when_git_is_done(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_git, "WAIT", 60.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(symlink, world, "r/new")
        while not world.ops.request_loop._waiting:
            await trio.lowlevel.checkpoint()
        await world.ops.mkdir(await world.id("r"), b"meanwhile", 0o755, world.ctx)
        lock(world).unlink()
    assert os.readlink(world.source / "r/new") == "nowhere"


async def test_who_comes_when_too_many_wait_fails_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(host_git, "WAIT", 60.0)
    monkeypatch.setattr(retries, "MAX_WAITING", 2)
    async with trio.open_nursery() as nursery:
        for number in range(2):
            nursery.start_soon(symlink, world, f"r/new{number}")
        while world.ops.request_loop._waiting < 2:
            await trio.lowlevel.checkpoint()
        for _ in range(3):
            await refused(symlink(world, "r/more"), errno.EBUSY)
        lock(world).unlink()
    await symlink(world, "r/more")
    assert caplog.text.count("answered EBUSY") == 1


async def test_the_end_of_the_mount_lets_nothing_through(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_git, "WAIT", 60.0)

    async def wait() -> None:
        await refused(symlink(world, "r/new"), errno.EBUSY)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        while not world.ops.request_loop._waiting:
            await trio.lowlevel.checkpoint()
        lock(world).unlink()
        world.ops.request_loop._ending.set()
    assert not (world.source / "r/new").is_symlink()


async def test_after_that_it_fails_at_once_and_is_said_once(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await refused(symlink(world, "r/new"), errno.EBUSY)
    monkeypatch.setattr(host_git, "WAIT", 0.0)
    with pytest.raises(OSError, match="busy"):  # not Later
        world.state.host.wait_for_git(0o120000, world.state.access.name(await world.id("r"), b"n"))
    assert caplog.text.count("rm r/.git/index.lock") == 1
    lock(world).unlink()
    lock(world).write_text("another git's")
    monkeypatch.setattr(host_git, "WAIT", 60.0)
    with pytest.raises(Later):
        world.state.host.wait_for_git(0o120000, world.state.access.name(await world.id("r"), b"n"))


@pytest.mark.parametrize(
    "text",
    [
        "gitdir: ../r/.git\n",
        "gitdir: ../free/../r/.git",
        "gitdir: /host/projects/r/.git\n",
        "gitdir: ../meta\n",
    ],
)
async def test_a_git_file_is_followed(world: World, text: str) -> None:
    (world.source / "tree").mkdir()
    (world.source / "tree/.git").write_text(text)
    (world.source / "meta").symlink_to("r/.git")
    await refused(symlink(world, "tree/new"), errno.EBUSY)
    lock(world).unlink()
    await symlink(world, "tree/new")


async def test_one_that_leads_too_far_counts_as_locked(world: World) -> None:
    """A user who may make symlinks could make the path to the lock too long to be walked."""
    far = "./" * 1500
    for number in range(4):
        (world.source / f"q{number}").symlink_to(f"{far}q{number + 1}")
    (world.source / "q4").symlink_to(".")
    (world.source / "tree").mkdir()
    (world.source / "tree/.git").write_text("gitdir: /q0/r/.git\n")
    await refused(symlink(world, "tree/new"), errno.EBUSY)


@pytest.mark.parametrize("text", ["gitdir: ../../elsewhere\n", "gitdir: /none\n", "", "x"])
async def test_one_that_leads_out_of_the_source_is_no_lock(
    world: World, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    (world.source / "tree").mkdir()
    (world.source / "tree/.git").write_text(text)
    (world.source / "tree/index.lock").touch()
    caplog.set_level("INFO")
    await symlink(world, "tree/new")
    await symlink(world, "tree/new2")
    assert caplog.text.count("tree/.git leads out") == (1 if text.startswith("gitdir") else 0)


MEANWHILE = [way for way in WAITS if way != "put one over a file"]


@pytest.mark.parametrize("way", MEANWHILE)
async def test_a_lock_that_comes_meanwhile_undoes_it(
    world: World, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The second check of the same request finds the lock."""
    lock(world).unlink()
    before = tree_of(world)
    seen = world.state.host._host_git.wait_for
    looks = []

    def look(*arguments: Any) -> None:
        seen(*arguments)
        looks.append(monotonic())
        lock(world).touch()

    monkeypatch.setattr(world.state.host._host_git, "wait_for", look)
    await refused(WAITS[way](world), errno.EBUSY)
    assert looks, "the first check did not let it through"
    lock(world).unlink()
    assert tree_of(world) == before
