"""Where nodes are after a rename, and what happens to those that were replaced."""

import errno
import os
from typing import Any

import pytest

from gitguardfs.base.protocol import RENAME_EXCHANGE, RENAME_WHITEOUT
from gitguardfs.fs.nodes import ROOT_ID
from gitguardfs.fs.source import Source
from tests.adapter.conftest import MakeWorld
from tests.adapter.world import Token, World, refused

FEW = 16
"""Descriptors that are cached: fewer than the tests have directories."""


async def forget_descriptors(world: World) -> None:
    """Push everything out of the descriptor cache, so that nodes are found by their places."""
    (world.source / "push").mkdir(exist_ok=True)
    for number in range(2 * FEW):
        path = world.source / f"push/{number}"
        path.mkdir(exist_ok=True)
        await world.id(f"push/{number}")


@pytest.fixture
def small(make_world: MakeWorld) -> World:
    return make_world(descriptor_limit=FEW)


@pytest.mark.parametrize("flags", [0, RENAME_EXCHANGE])
@pytest.mark.parametrize("part", ["a/HEAD", "b/HEAD"])
async def test_a_rename_is_undone_where_it_was_done(
    small: World, monkeypatch: pytest.MonkeyPatch, flags: int, part: str
) -> None:
    """Another guard adds a part of a repository between the check and the rename."""
    for name in ("a", "b"):
        (small.source / name).mkdir()
    (small.source / "a/config").write_text("text")
    if flags:
        (small.source / "b/config").write_text("other")
    rename = Source.rename

    def add_and_rename(self: Source, *arguments: Any) -> None:
        monkeypatch.setattr(Source, "rename", rename)
        (small.source / part).touch()
        rename(self, *arguments)

    monkeypatch.setattr(Source, "rename", add_and_rename)
    if part == "a/HEAD" and not flags:
        await small.rename("a/config", "b/config")
        return
    await refused(small.rename("a/config", "b/config", flags))
    assert (small.source / "a/config").read_text() == "text"


async def test_no_flag_leaves_a_device_behind(world: World) -> None:
    (world.source / "file").touch()
    for flags in (RENAME_WHITEOUT, 1 << 30):
        await refused(world.rename("file", "other", flags), errno.EINVAL)
    assert os.listdir(world.source) == ["file"]


async def test_below_a_moved_directory_all_nodes_still_work(small: World) -> None:
    (small.source / "a/b").mkdir(parents=True)
    (small.source / "a/b/f").write_text("content")
    (small.source / "to").mkdir()
    inner, file = await small.id("a/b"), await small.id("a/b/f")
    await small.rename("a", "to/c")
    await forget_descriptors(small)
    assert await small.id("to/c/b") == inner
    assert (await small.ops.getattr(file, small.ctx)).st_size == 7
    await forget_descriptors(small)
    handle = (await small.ops.open(file, os.O_RDONLY, small.ctx)).fh
    assert await small.ops.read(handle, 0, 100) == b"content"
    await small.ops.release(handle)
    await forget_descriptors(small)
    await small.ops.mkdir(inner, b"new", 0o755, small.ctx)
    assert (small.source / "to/c/b/new").is_dir()


async def test_what_was_replaced_is_used_up_by_descriptor(small: World) -> None:
    (small.source / "old").write_text("old content")
    (small.source / "new").write_text("new")
    old, new = await small.id("old"), await small.id("new")
    handle = await small.open("old")
    await small.rename("new", "old")
    await forget_descriptors(small)
    gone = await small.ops.getattr(old, small.ctx)
    assert (gone.st_nlink, gone.st_size) == (0, 11)
    assert await small.ops.read(handle, 0, 100) == b"old content"
    assert await small.id("old") == new
    await small.ops.release(handle)
    assert (await small.ops.getattr(old, small.ctx)).st_nlink == 0


async def test_the_host_s_moves_are_found_out(small: World) -> None:
    """A place that is out of date is looked up again, never followed to another object."""
    (small.source / "a").mkdir()
    (small.source / "a/f").write_text("mine")
    file = await small.id("a/f")
    os.rename(small.source / "a", small.source / "moved")
    (small.source / "a").mkdir()
    (small.source / "a/f").write_text("another")
    await forget_descriptors(small)
    await refused(small.ops.getattr(file, small.ctx), errno.ESTALE)
    await refused(small.ops.open(file, os.O_RDONLY, small.ctx), errno.ESTALE)
    assert await small.id("moved/f") == file
    assert (await small.ops.getattr(file, small.ctx)).st_size == 4


async def test_a_directory_swapped_for_a_symlink_is_not_followed(small: World) -> None:
    """The path to a node is walked without following a symlink."""
    (small.source / "d").mkdir()
    (small.source / "d/config").write_text("ordinary")
    (small.source / ".git").mkdir()
    (small.source / ".git/config").write_text("secret")
    directory, file = await small.id("d"), await small.id("d/config")
    os.rename(small.source / "d", small.source / "away")
    os.symlink(".git", small.source / "d")
    await forget_descriptors(small)
    for call in (
        small.ops.lookup(directory, b"config", small.ctx),
        small.ops.open(file, os.O_RDONLY, small.ctx),
        small.ops.getattr(file, small.ctx),
        small.ops.opendir(directory, small.ctx),
    ):
        try:
            result = await call
        except Exception as error:
            assert getattr(error, "errno", None) in (errno.ESTALE, errno.EACCES)
        else:
            # opendir needs no descriptor yet; reading does.
            await refused(small.ops.readdir(result, 0, Token()), errno.ESTALE)


@pytest.mark.parametrize("beside", ["refs", "commondir"])
@pytest.mark.parametrize("flags", [0, RENAME_EXCHANGE], ids=["move", "exchange"])
async def test_nothing_is_moved_to_head_beside_refs(world: World, beside: str, flags: int) -> None:
    """Not even a directory: before it is moved, another guard may put a file in its place."""
    (world.source / "d/x").mkdir(parents=True)
    (world.source / "d" / beside).mkdir()
    if flags:
        (world.source / "d/HEAD").mkdir()
    for old, new in (("d/x", "d/HEAD"), ("d/HEAD", "d/x")) if flags else (("d/x", "d/HEAD"),):
        await refused(world.rename(old, new, flags), errno.EACCES)
    os.rmdir(world.source / "d" / beside)
    await world.rename("d/x", "d/HEAD", flags)


async def test_an_exchange_with_what_comes_only_now_makes_no_repository(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another guard can put it there between our check and the rename."""
    for part in ("refs", "HEAD"):
        (world.source / "d" / part).mkdir(parents=True)
    await world.id("d/HEAD")
    rename = Source.rename

    def late(source: Source, *arguments: Any) -> None:
        (world.source / "d/x").write_text("ref: refs/heads/main")
        rename(source, *arguments)

    monkeypatch.setattr(Source, "rename", late)
    await refused(world.rename("d/HEAD", "d/x", RENAME_EXCHANGE), errno.ENOENT, errno.EACCES)
    assert (world.source / "d/HEAD").is_dir()


async def test_where_descriptors_hold_paths_what_is_removed_is_not_opened_again(
    make_world: MakeWorld,
) -> None:
    """A guarded object may have been moved to its path."""
    world = make_world(is_ninep=True)
    handle, node = await world.create(ROOT_ID, b"f")
    await world.ops.write(handle, 0, b"text")
    await world.ops.unlink(ROOT_ID, b"f", world.ctx)
    (world.source / "f").write_text("another")
    for flags in (os.O_RDONLY, os.O_RDWR):
        await refused(world.ops.open(node, flags, world.ctx), errno.ESTALE)
    await refused(world.setattr(node, size=0), errno.ESTALE)
    assert (await world.ops.getattr(node, world.ctx)).st_size == 4
    assert bytes(await world.ops.read(handle, 0, 10)) == b"text"
    assert (world.source / "f").read_text() == "another"
    await world.ops.release(handle)


async def test_where_descriptors_hold_paths_another_name_is_looked_for(
    make_world: MakeWorld,
) -> None:
    """ESTALE lets the kernel look up the name that it was asked for."""
    world = make_world(is_ninep=True)
    (world.source / "f").touch()
    os.link(world.source / "f", world.source / "g")
    node = await world.id("g")
    assert await world.id("f") == node
    await world.ops.unlink(ROOT_ID, b"f", world.ctx)
    await refused(world.ops.getattr(node, world.ctx), errno.ESTALE)
    assert await world.id("g") == node
    assert (await world.ops.getattr(node, world.ctx)).st_nlink == 1


async def test_where_descriptors_hold_paths_those_of_each_look_count(make_world: MakeWorld) -> None:
    world = make_world(is_ninep=True)
    for name in ("mine", "other"):
        (world.source / name).mkdir()
    (world.source / "file").touch()
    other = os.open(world.source / "other", os.O_PATH)
    for name in ("mine", "file"):
        node = world.tree.nodes.get(await world.id(name))
        os.dup2(other, world.tree.descriptors.of(node), inheritable=False)
        await world.id(name)
        assert node.matches(os.fstat(world.tree.descriptors.of(node)))
    os.close(other)


async def test_a_name_that_goes_takes_no_other_along(world: World) -> None:
    """A file is opened again by the name that it has left."""
    for path in ("a", "b"):
        (world.source / path).mkdir()
    (world.source / "a/x").write_text("text")
    os.link(world.source / "a/x", world.source / "b/y")
    a, node = await world.id("a"), await world.id("a/x")
    assert await world.id("b/y") == node
    await world.ops.unlink(a, b"x", world.ctx)
    world.tree.descriptors.close(world.tree.nodes.get(node))
    assert (await world.ops.getattr(node, world.ctx)).st_size == 4


async def test_a_rename_onto_another_name_of_the_same_file_does_nothing(world: World) -> None:
    for path in ("a", "b"):
        (world.source / path).mkdir()
    (world.source / "a/x").write_text("text")
    os.link(world.source / "a/x", world.source / "b/y")
    node = await world.id("a/x")
    await world.rename("a/x", "b/y")
    world.tree.descriptors.close(world.tree.nodes.get(node))
    assert (await world.ops.getattr(node, world.ctx)).st_nlink == 2
    assert {await world.id("a/x"), await world.id("b/y")} == {node}


async def test_no_repository_stands_even_for_a_moment(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host's git may look in between: so it is refused before, not undone afterwards."""
    (world.source / "d/refs").mkdir(parents=True)
    for name in ("d/HEAD", "directory"):
        (world.source / name).mkdir()
    (world.source / "file").touch()
    calls: list[object] = []
    monkeypatch.setattr(Source, "rename", lambda self, *arguments: calls.append(arguments))
    await refused(world.rename("d/HEAD", "file", RENAME_EXCHANGE))
    await refused(world.rename("file", "d/HEAD", RENAME_EXCHANGE))
    await refused(world.rename("file", "d/HEAD"))
    await refused(world.rename("directory", "d/HEAD"))  # another guard can make a file of it
    assert not calls
