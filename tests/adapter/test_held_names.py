"""Over 9p, a name of which a descriptor is held shows the number and type of what it was once."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gitguardfs.fs.nodes import ROOT_ID
from gitguardfs.fs.source import Source
from tests.adapter.conftest import MakeWorld
from tests.adapter.path_client import PathClient
from tests.adapter.world import Later, World, read, refused

PATHS = {"is_local": False, "is_ninep": True}


@pytest.fixture
def world(make_world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    PathClient(tmp_path / "source", monkeypatch)
    return make_world(**PATHS)


async def hold_directory_head(world: World, is_open: bool) -> int:
    """Make a directory b/HEAD, and open or cache a file in it; return the handle."""
    (world.source / "b/HEAD").mkdir(parents=True)
    (world.source / "b/HEAD/f").write_text("f")
    handle = await world.open("b/HEAD/f")
    if not is_open:
        await world.ops.release(handle)
    return handle


def make_bare(path: Path) -> None:
    (path / "refs").mkdir(parents=True)
    (path / "HEAD").write_text("ref: refs/heads/main\n")
    (path / "config").write_text("[core]\n")


@pytest.mark.parametrize("is_open", [True, False], ids=["open", "cached"])
async def test_a_repository_in_the_place_of_a_held_directory_is_closed(
    world: World, later: Later, is_open: bool
) -> None:
    """Its HEAD is shown as the directory that was there before."""
    handle = await hold_directory_head(world, is_open)
    b = await world.id("b")
    shutil.rmtree(world.source / "b")
    make_bare(world.source / "b")
    later()
    await refused(world.ops.lookup(b, b"config", world.ctx), errno.EACCES, errno.ESTALE)
    b = await world.id("b")
    await refused(world.ops.lookup(b, b"config", world.ctx))
    await refused(world.ops.mkdir(b, b"hooks", 0o755, world.ctx))
    if is_open:
        await world.ops.release(handle)


@pytest.mark.parametrize("is_open", [True, False], ids=["open", "cached"])
async def test_parts_are_added_to_no_held_directory_that_has_become_a_head(
    world: World, later: Later, is_open: bool
) -> None:
    handle = await hold_directory_head(world, is_open)
    b = await world.id("b")
    shutil.rmtree(world.source / "b/HEAD")
    (world.source / "b/HEAD").write_text("ref: refs/heads/main\n")
    later()
    await refused(world.ops.mkdir(b, b"refs", 0o755, world.ctx))
    if is_open:
        await world.ops.release(handle)


@pytest.mark.parametrize("is_open", [True, False], ids=["open", "cached"])
@pytest.mark.parametrize("make", [make_bare, lambda path: make_bare(path / ".git")])
async def test_a_repository_in_the_place_of_a_held_file_is_not_moved(
    world: World, later: Later, is_open: bool, make: Callable[[Path], None]
) -> None:
    (world.source / "d").mkdir()
    (world.source / "d/b").write_text("f")
    number = await world.id("d/b")
    handle = await world.open("d/b") if is_open else None
    await world.setattr(number, mode=0o600)
    (world.source / "d/b").unlink()
    make(world.source / "d/b")
    parent = await world.id("d")
    later()
    await refused(
        world.ops.rename(parent, b"b", ROOT_ID, b"c", 0, world.ctx), errno.EACCES, errno.ESTALE
    )
    if make is make_bare:
        await refused(
            world.ops.rename(ROOT_ID, b"d", ROOT_ID, b"e", 0, world.ctx), errno.EACCES, errno.ESTALE
        )
    assert (world.source / "d/b").is_dir()
    if handle is not None:
        await world.ops.release(handle)


async def test_a_repository_in_the_place_of_an_open_file_is_not_changed(
    world: World, later: Later
) -> None:
    (world.source / "b").write_text("f")
    number = await world.id("b")
    handle = await world.open("b")
    (world.source / "b").unlink()
    make_bare(world.source / "b")
    before = (world.source / "b").stat()
    later()
    for changes in ({"mode": 0o777}, {"mtime_ns": 0}, {"size": 0}):
        await refused(world.setattr(number, **changes), errno.ESTALE)
        await refused(world.setattr(await world.id("b"), **changes), errno.ESTALE)
    await refused(world.ops.setxattr(number, b"user.x", b"", world.ctx), errno.ESTALE)
    after = (world.source / "b").stat()
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
    await world.ops.release(handle)


async def test_an_open_file_that_nobody_may_read_is_changed(world: World) -> None:
    def unreadable(*_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    handle, number = await world.create(ROOT_ID, b"f")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.tree.source, "open_file_at", unreadable)
        await world.setattr(number, mode=0o600)
    assert (world.source / "f").stat().st_mode & 0o777 == 0o600
    await world.ops.release(handle)


async def test_a_held_directory_becomes_git_by_no_folding(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may fold a name to .git in a way that only a comparison of numbers shows."""
    (world.source / "x").mkdir()
    (world.source / "x/f").write_text("f")
    handle = await world.open("x/f")
    shutil.rmtree(world.source / "x")
    (world.source / "x").mkdir()
    find_at = Source.find_at

    def folding(self: Source, dir_fd: int, name: bytes) -> os.stat_result | None:
        found = find_at(self, dir_fd, name)
        if found is None and name == b".git" and (world.source / "git~9").exists():
            return os.lstat(world.source / "git~9")
        return found

    monkeypatch.setattr(Source, "find_at", folding)
    await refused(world.ops.rename(ROOT_ID, b"x", ROOT_ID, b"git~9", 0, world.ctx))
    assert not (world.source / "git~9").exists()
    await world.ops.release(handle)


@pytest.mark.parametrize("kind", ["file", "directory"])
async def test_a_name_that_the_host_removed_can_be_made_again(
    world: World, later: Later, kind: str
) -> None:
    if kind == "file":
        (world.source / "d").write_text("f")
        await world.setattr(await world.id("d"), mode=0o600)
        (world.source / "d").unlink()
        await world.create(ROOT_ID, b"d")
    else:
        (world.source / "d/sub").mkdir(parents=True)
        await world.list("d/sub")
        shutil.rmtree(world.source / "d")
        await world.ops.mkdir(ROOT_ID, b"d", 0o755, world.ctx)


async def test_a_file_moved_by_the_host_while_open_is_another_than_the_new_one(
    world: World,
) -> None:
    """As a log is rotated; the old name shows the number of the open file."""
    (world.source / "log").write_text("before")
    handle = await world.open("log")
    (world.source / "log").rename(world.source / "log.1")
    (world.source / "log").write_text("after")
    for order in (("log", "log.1"), ("log.1", "log")) * 2:
        numbers = {name: await world.id(name) for name in order}
        assert await read(world, numbers["log"]) == b"after"
        assert await read(world, numbers["log.1"]) == b"before"
    await world.ops.release(handle)


async def test_an_open_file_is_found_by_the_name_that_the_host_left(world: World) -> None:
    (world.source / "one").write_text("text")
    os.link(world.source / "one", world.source / "two")
    number = await world.id("two")
    assert await world.id("one") == number
    handle = await world.open("one")
    (world.source / "one").unlink()
    await refused(world.ops.listxattr(number, world.ctx), errno.ESTALE)
    await refused(world.setattr(number, mode=0o600), errno.ESTALE)
    await world.setattr(await world.id("two"), mode=0o600)
    await world.ops.release(handle)


async def test_what_is_at_a_held_name_by_now_is_not_what_a_process_is_in(
    world: World, later: Later
) -> None:
    """No file is open there: only the daemon's own descriptors hold the names."""
    (world.source / "d/sub/deep").mkdir(parents=True)
    deep = await world.id("d/sub/deep")
    await world.list("d/sub/deep")
    (world.source / "d").rename(world.source / "e")
    (world.source / "d/sub/deep").mkdir(parents=True)
    later()
    await refused(world.ops.mkdir(deep, b"new", 0o755, world.ctx), errno.ESTALE)
    assert not (world.source / "d/sub/deep/new").exists()


async def test_a_symlink_is_made_where_it_was_asked_for(world: World) -> None:
    """To find its work tree, the directories above it are let go and found again."""
    (world.source / "d/sub/deep").mkdir(parents=True)
    await world.list("d/sub/deep")
    deep = await world.id("d/sub/deep")
    await world.ops.symlink(deep, b"l", b"../../x", world.ctx)
    assert os.readlink(world.source / "d/sub/deep/l") == "../../x"
    await world.ops.rename(deep, b"l", deep, b"m", 0, world.ctx)
    assert os.listdir(world.source / "d/sub/deep") == ["m"]
    assert os.listdir(world.source) == ["d"]


async def test_a_directory_made_in_the_place_of_another_is_another(world: World) -> None:
    """Descriptors below the former one let the name show its number."""
    (world.source / "d/sub/deep").mkdir(parents=True)
    former = await world.id("d")
    await world.list("d/sub/deep")
    (world.source / "d").rename(world.source / "e")
    (world.source / "d").mkdir()
    assert await world.id("e") == former
    assert await world.id("d") != former


async def test_a_directory_is_made_that_gets_the_number_which_its_directory_had(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host has replaced the directory, and the number of the former one is free."""
    (world.source / "d/sub").mkdir(parents=True)
    parent = await world.id("d")
    await world.list("d/sub")
    (world.source / "d").rename(world.source / "free")
    (world.source / "d").mkdir()
    mkdir = world.tree.source.mkdir

    def reusing(dir_fd: int, name: bytes, mode: int) -> None:
        mkdir(dir_fd, name, mode)
        (world.source / "d/new").rmdir()
        (world.source / "free/sub").rmdir()
        (world.source / "free").rename(world.source / "d/new")

    monkeypatch.setattr(world.tree.source, "mkdir", reusing)
    assert (await world.ops.mkdir(parent, b"new", 0o755, world.ctx)).st_ino != parent
    assert await world.id("d/new") not in (parent, await world.id("d"))


@pytest.mark.parametrize("kind", ["file", "symlink"])
async def test_what_has_replaced_a_directory_is_seen(world: World, kind: str) -> None:
    """Descriptors below the directory let the name show its type."""
    (world.source / "d/sub/deep").mkdir(parents=True)
    await world.list("d/sub/deep")
    shutil.rmtree(world.source / "d")
    if kind == "file":
        (world.source / "d").write_text("text")
        assert await read(world, await world.id("d")) == b"text"
    else:
        (world.source / "d").symlink_to("text")
        assert await world.ops.readlink(await world.id("d"), world.ctx) == b"text"
