"""A name that the kernel remembers, while its inode number is found at another name on the host."""

import errno
import os
from pathlib import Path

import pytest

from gitguardfs.base.protocol import RENAME_EXCHANGE
from gitguardfs.fs.nodes import ROOT_ID
from gitguardfs.names.rules import GuardRules
from gitguardfs.options.change_policy import SymlinkPolicy
from tests.adapter.conftest import MakeWorld
from tests.adapter.world import World, read, refused

LOCAL: dict[str, bool] = {}
SHARE = {"is_local": False}
PATHS = {"is_local": False, "is_ninep": True}
every_source = pytest.mark.parametrize("kind", [LOCAL, SHARE, PATHS], ids=["local", "share", "9p"])


@pytest.fixture(params=[LOCAL, SHARE, PATHS], ids=["local", "share", "9p"])
def world(make_world: MakeWorld, request: pytest.FixtureRequest) -> World:
    return make_world(**request.param)


def reuse_number(old: Path, new: Path, text: str) -> None:
    """Remove the file at ``old``, and make one at ``new`` that gets its inode number."""
    old.rename(new)
    new.write_text(text)


def evict_all(world: World) -> None:
    """Close the cached descriptors, as looking at many other objects does."""
    for node in world.tree.nodes:
        if node.id != ROOT_ID:
            world.tree.descriptors.close(node)


async def with_two_names(world: World, first: str, second: str) -> int:
    """Return the node of a new file with two names; it was last seen at the second one."""
    (world.source / first).write_text("before")
    os.link(world.source / first, world.source / second)
    number = await world.id(first)
    assert await world.id(second) == number
    return number


async def test_a_name_whose_other_was_removed_here_never_shows_another_file(world: World) -> None:
    old = await with_two_names(world, "one", "two")
    await world.ops.unlink(ROOT_ID, b"two", world.ctx)
    evict_all(world)
    reuse_number(world.source / "one", world.source / "other", "another")
    (world.source / "one").write_text("replaced")
    assert await world.id("other") != old
    await refused(read(world, old), errno.ESTALE)
    assert await read(world, await world.id("other")) == b"another"
    assert await read(world, await world.id("one")) == b"replaced"


async def test_a_name_never_shows_a_new_file_at_the_other_name(world: World) -> None:
    """The file was last seen at the place where the new one has its number."""
    old = await with_two_names(world, "one", "two")
    (world.source / "one").unlink()
    reuse_number(world.source / "two", world.source / "two", "another")
    (world.source / "one").write_text("replaced")
    await refused(read(world, old), errno.ESTALE)
    await refused(world.ops.getattr(old, world.ctx), errno.ESTALE)
    await refused(world.ops.listxattr(old, world.ctx), errno.ESTALE)
    for _ in range(2):
        assert await read(world, await world.id("two")) == b"another"
        assert await read(world, await world.id("one")) == b"replaced"
    assert await world.id("two") != old


async def test_a_symlink_never_shows_a_new_one_at_the_other_name(world: World) -> None:
    (world.source / "one").symlink_to("before")
    os.link(world.source / "one", world.source / "two", follow_symlinks=False)
    old = await world.id("one")
    assert await world.id("two") == old
    (world.source / "one").unlink()
    await refused(world.ops.readlink(old, world.ctx), errno.ESTALE)  # "two" may be a new one
    new = await world.id("two")
    assert new != old
    assert await world.ops.readlink(new, world.ctx) == b"before"


async def test_what_is_linked_into_place_here_keeps_its_number(world: World) -> None:
    """As programs write a file under another name, link it into place and remove that name."""
    handle, number = await world.create(ROOT_ID, b"new")
    await world.ops.release(handle)
    assert (await world.ops.link(number, ROOT_ID, b"place", world.ctx)).st_ino == number
    await world.ops.unlink(ROOT_ID, b"new", world.ctx)
    for _ in range(3):
        evict_all(world)
        assert await world.id("place") == number
        assert await read(world, number) == b""


@pytest.mark.parametrize("is_held", [True, False], ids=["held", "evicted"])
async def test_a_name_left_by_a_removal_here_keeps_its_number(world: World, is_held: bool) -> None:
    old = await with_two_names(world, "one", "two")
    await world.ops.unlink(ROOT_ID, b"two", world.ctx)
    if not is_held:
        evict_all(world)
    assert await world.id("one") == old
    evict_all(world)
    assert await read(world, old) == b"before"


async def test_a_file_shown_in_two_directories_keeps_its_number(make_world: MakeWorld) -> None:
    """It has one link, but two names: one of them goes by a resolved symlink."""
    world = make_world(symlinks=SymlinkPolicy())
    (world.source / "directory").mkdir()
    (world.source / "directory/file").write_text("text")
    (world.source / "link").symlink_to("directory")
    number = await world.id("directory/file")
    for _ in range(3):
        for name in ("link/file", "directory/file"):
            assert await world.id(name) == number
            assert await read(world, number) == b"text"
            await world.setattr(number, mode=0o600)  # this caches a descriptor
    evict_all(world)
    assert await world.id("link/file") == number


@every_source
async def test_hard_links_keep_their_number_without_descriptors(
    make_world: MakeWorld, kind: dict[str, bool]
) -> None:
    world = make_world(descriptor_limit=0, **kind)
    for directory in ("first", "second"):
        (world.source / directory).mkdir()
    numbers = [await with_two_names(world, f"first/{n}", f"second/{n}") for n in range(40)]
    known = len(world.tree.nodes)
    for _ in range(2):
        for directory in ("first", "second"):
            found = await world.list(directory)
            assert [found[b"%d" % n].st_ino for n in range(40)] == numbers
            evict_all(world)
    assert len(world.tree.nodes) == known


@every_source
@pytest.mark.parametrize("name", [".git", "secret"])
async def test_an_open_file_that_the_host_moves_twice_is_guarded_in_the_end(
    make_world: MakeWorld, kind: dict[str, bool], name: str
) -> None:
    """What opens it again by /proc/self/fd is the node that the first move has replaced."""
    world = make_world(rules=GuardRules(deny=("secret",)), **kind)
    (world.source / "file").write_text("text")
    old = await world.id("file")
    handle = (await world.ops.open(old, os.O_RDONLY, world.ctx)).fh
    (world.source / "file").rename(world.source / "between")
    await world.id("between")
    (world.source / "between").rename(world.source / name)
    await world.id(name)
    await refused(world.ops.open(old, os.O_RDWR, world.ctx), errno.EACCES, errno.ESTALE)
    await world.ops.release(handle)


@every_source
@pytest.mark.parametrize("first", ["file", "kept"])
@pytest.mark.parametrize("last", ["secret", "hidden", ".git"])
async def test_an_open_file_that_was_protected_before_is_guarded_in_the_end(
    make_world: MakeWorld, kind: dict[str, bool], first: str, last: str
) -> None:
    """Both the node of its first name and that of the protected name lead to it."""
    rules = GuardRules(protect=("kept",), deny=("secret",), hide=("hidden",))
    world = make_world(rules=rules, **kind)
    (world.source / first).write_text("text")
    nodes, handles = [], []
    for name, following in ((first, "kept"), ("kept", last)):
        nodes.append(await world.id(name))
        handles.append((await world.ops.open(nodes[-1], os.O_RDONLY, world.ctx)).fh)
        (world.source / name).rename(world.source / following)
    await world.list("")
    for node in nodes:
        await refused(world.ops.open(node, os.O_RDONLY, world.ctx), errno.EACCES, errno.ESTALE)
    for handle in handles:
        await world.ops.release(handle)


async def test_a_name_removed_here_is_of_no_file_that_is_remembered_elsewhere(world: World) -> None:
    """The kernel sends no lookup of "other", which it remembers: it may be any file by now."""
    (world.source / "file").write_text("before")
    old = await world.id("file")
    reuse_number(world.source / "file", world.source / "other", "another")
    (world.source / "file").write_text("replaced")
    await world.ops.unlink(ROOT_ID, b"other", world.ctx)
    await refused(read(world, old), errno.ESTALE)
    assert await read(world, await world.id("file")) == b"replaced"


async def test_a_replaced_file_is_not_another_with_its_number_while_it_is_held(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A 9p client shows the number of a held object at its name, also once it is replaced."""
    world = make_world(**PATHS)
    (world.source / "file").write_text("before")
    old = await world.id("file")
    node = world.tree.nodes.get(old)
    find_at = world.tree.source.find_at

    def find_held(dir_fd: int, name: bytes) -> os.stat_result | None:
        is_held = node.fd >= 0 and name == node.name
        return os.fstat(node.fd) if is_held else find_at(dir_fd, name)

    monkeypatch.setattr(world.tree.source, "find_at", find_held)
    await world.setattr(old, mode=0o600)
    reuse_number(world.source / "file", world.source / "other", "another")
    (world.source / "file").write_text("replaced")
    assert await world.id("other") != old
    await refused(world.setattr(old, size=0), errno.ESTALE)
    assert (world.source / "other").read_text() == "another"


async def test_a_removed_name_is_of_no_file_that_is_remembered_by_two(world: World) -> None:
    old = await with_two_names(world, "one", "two")
    (world.source / "one").unlink()
    reuse_number(world.source / "two", world.source / "two", "another")
    (world.source / "one").write_text("replaced")
    await world.ops.unlink(ROOT_ID, b"two", world.ctx)
    await refused(read(world, old), errno.ESTALE)
    assert await read(world, await world.id("one")) == b"replaced"


async def test_of_three_names_one_is_removed_here_and_two_on_the_host(world: World) -> None:
    old = await with_two_names(world, "one", "two")
    os.link(world.source / "one", world.source / "three")
    for name in ("three", "two"):
        assert await world.id(name) == old
    await world.ops.unlink(ROOT_ID, b"three", world.ctx)
    evict_all(world)
    (world.source / "one").unlink()
    reuse_number(world.source / "two", world.source / "two", "another")
    (world.source / "one").write_text("replaced")
    await refused(read(world, old), errno.ESTALE)
    assert await read(world, await world.id("two")) == b"another"
    assert await read(world, await world.id("one")) == b"replaced"


async def test_a_name_just_looked_up_is_never_stale(world: World) -> None:
    """The kernel looks a name up once after ESTALE, and tells the process of a second one."""
    old = await with_two_names(world, "one", "two")
    os.link(world.source / "one", world.source / "three")
    assert await world.id("three") == old
    await world.ops.unlink(ROOT_ID, b"three", world.ctx)
    evict_all(world)
    (world.source / "two").unlink()
    assert await read(world, await world.id("one")) == b"before"


async def test_a_directory_moved_by_the_host_and_here_keeps_its_number(
    make_world: MakeWorld,
) -> None:
    """A process may be in it, and the kernel may remember another entry at the name."""
    world = make_world()
    (world.source / "before").mkdir()
    (world.source / "before/file").write_text("text")
    number = await world.id("before")
    evict_all(world)
    (world.source / "before").rename(world.source / "between")
    await world.ops.rename(ROOT_ID, b"between", ROOT_ID, b"after", 0, world.ctx)
    evict_all(world)
    await world.ops.lookup(number, b"file", world.ctx)
    assert await world.id("after") == number


async def test_a_name_moved_here_is_of_no_file_that_is_remembered_elsewhere(world: World) -> None:
    for name in ("file", "second"):
        (world.source / name).write_text("before")
    old, second = await world.id("file"), await world.id("second")
    for name in ("file", "second"):
        reuse_number(world.source / name, world.source / f"other-{name}", "another")
    await world.rename("other-file", "moved")
    await world.rename("moved", "other-second", RENAME_EXCHANGE)
    for number in (old, second):
        await refused(read(world, number), errno.ESTALE)


async def test_a_file_moved_by_the_host_while_open_is_not_taken_for_a_later_one(
    make_world: MakeWorld,
) -> None:
    """It kept its number at the new name, and the kernel remembers both names."""
    world = make_world()
    (world.source / "file").write_text("before")
    old = await world.id("file")
    handle = (await world.ops.open(old, os.O_RDONLY, world.ctx)).fh
    (world.source / "file").rename(world.source / "backup")
    assert await world.id("backup") == old
    await world.ops.release(handle)
    evict_all(world)
    reuse_number(world.source / "backup", world.source / "backup", "another")
    await refused(read(world, old), errno.ESTALE)
    assert await read(world, await world.id("backup")) == b"another"


async def test_a_hard_link_moved_or_removed_here_keeps_its_number(world: World) -> None:
    number = await with_two_names(world, "one", "two")
    await world.rename("one", "three")
    assert await world.id("three") == number
    assert await world.id("two") == number
    await world.rename("two", "three")  # does nothing: both are one file
    assert await world.id("two") == number
    await world.ops.unlink(ROOT_ID, b"three", world.ctx)
    evict_all(world)
    assert await world.id("two") == number
    assert await read(world, number) == b"before"


async def test_a_file_on_a_share_is_a_new_one_once_its_descriptor_is_dead(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may give the number to another file, whatever the guest has open."""
    world = make_world(**SHARE)
    old = await with_two_names(world, "one", "two")
    await world.ops.unlink(ROOT_ID, b"two", world.ctx)
    (world.source / "one").write_text("another")
    dead = world.tree.nodes.get(old).fd
    stat = world.tree.source.stat

    def stat_of_a_server(fd: int) -> os.stat_result:
        if fd == dead:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return stat(fd)

    monkeypatch.setattr(world.tree.source, "stat", stat_of_a_server)
    assert await world.id("one") != old
