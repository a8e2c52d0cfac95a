"""Every reply that carries attributes leaves through AttributeMapper.report, with ids mapped."""

import errno
import os
from collections.abc import Awaitable, Callable
from stat import S_IFREG, S_IMODE

import pytest
from pyfuse3 import EntryAttributes

from gitguardfs.fs.nodes import ROOT_ID
from gitguardfs.options.idmap import IdMap
from tests.adapter.conftest import MakeWorld
from tests.adapter.world import Context, Token, World, needs_root, open_descriptors, refused, values

REPLIES: dict[str, Callable[[World, int], Awaitable[EntryAttributes]]] = {
    "lookup": lambda w, n: w.ops.lookup(ROOT_ID, b"file", w.ctx),
    "getattr": lambda w, n: w.ops.getattr(n, w.ctx),
    "setattr": lambda w, n: w.setattr(n, mode=0o600),
    "mkdir": lambda w, n: w.ops.mkdir(ROOT_ID, b"new", 0o755, w.ctx),
    "mknod": lambda w, n: w.ops.mknod(ROOT_ID, b"new", S_IFREG | 0o644, 0, w.ctx),
    "symlink": lambda w, n: w.ops.symlink(ROOT_ID, b"new", b"file", w.ctx),
    "link": lambda w, n: w.ops.link(n, ROOT_ID, b"new", w.ctx),
}


@pytest.mark.parametrize("operation", REPLIES)
async def test_a_reply_is_what_was_presented_last(world: World, operation: str) -> None:
    (world.source / "file").write_text("content")
    node = await world.id("file")
    world.attributes.presented.clear()
    entry = await REPLIES[operation](world, node)
    assert [values(entry)] == world.attributes.presented
    assert entry.entry_timeout == entry.attr_timeout == 1.0


async def test_create_and_every_entry_of_a_listing_are_presented(world: World) -> None:
    world.attributes.presented.clear()
    info, entry = await world.ops.create(ROOT_ID, b"file", 0o644, os.O_RDWR, world.ctx)
    assert [values(entry)] == world.attributes.presented
    await world.ops.release(info.fh)
    (world.source / "dir").mkdir()
    (world.source / "second").mkdir()
    handle = await world.ops.opendir(ROOT_ID, world.ctx)
    world.attributes.presented.clear()
    token = Token()
    await world.ops.readdir(handle, 0, token)
    assert [name for name, _, _ in token.entries][:2] == [b".", b".."]
    assert [values(entry) for _, entry, _ in token.entries[2:]] == world.attributes.presented
    assert [position for _, _, position in token.entries] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("is_local", [True, False])
async def test_what_is_not_there_is_remembered_for_the_timeout(
    make_world: MakeWorld, is_local: bool
) -> None:
    """Only where a name is shown to have another meaning in other letters."""
    world = make_world(is_local=is_local)
    for names in ((), ("123",), ("Name", "nAME")):
        for name in names:
            (world.source / name).touch()
        await refused(world.ops.lookup(ROOT_ID, b"none", world.ctx), errno.ENOENT)
    (world.source / "nAME").unlink()
    (world.source / "empty").mkdir()
    entry = await world.ops.lookup(ROOT_ID, b"none", world.ctx)
    assert (entry.st_ino, entry.entry_timeout) == (0, 1.0)
    empty = await world.id("empty")
    if is_local:
        await refused(world.ops.lookup(empty, b"none", world.ctx), errno.ENOENT)
    else:  # a share is the same everywhere
        assert (await world.ops.lookup(empty, b"none", world.ctx)).entry_timeout == 1.0


@needs_root
async def test_an_owner_that_cannot_be_shown_is_eoverflow_and_nothing_changes(
    make_world: MakeWorld,
) -> None:
    world = make_world(idmap=IdMap([(501, 1000)], [(501, 1000)]))
    (world.source / "file").touch()
    node = await world.id("file")
    await refused(world.setattr(node, uid=501, mode=0o777), errno.EOVERFLOW)
    stranger = Context(uid=501, gid=501)
    await refused(world.ops.mkdir(ROOT_ID, b"dir", 0o755, stranger), errno.EOVERFLOW)
    await refused(world.ops.create(ROOT_ID, b"new", 0o644, os.O_RDWR, stranger), errno.EOVERFLOW)
    assert sorted(os.listdir(world.source)) == ["file"]
    assert S_IMODE((world.source / "file").stat().st_mode) & 0o111 == 0


async def test_set_id_bits_of_files_neither_come_in_nor_go_out(world: World) -> None:
    (world.source / "old").touch()
    (world.source / "old").chmod(0o6755)
    old = await world.entry("old")
    assert S_IMODE(old.st_mode) == 0o755
    assert S_IMODE((await world.setattr(old.st_ino, mode=0o4755)).st_mode) == 0o755
    assert S_IMODE((world.source / "old").stat().st_mode) == 0o755
    info, _ = await world.ops.create(ROOT_ID, b"new", 0o6755, os.O_RDWR, world.ctx)
    await world.ops.release(info.fh)
    await world.ops.mknod(ROOT_ID, b"node", S_IFREG | 0o4755, 0, world.ctx)
    for name in ("new", "node"):
        assert (world.source / name).stat().st_mode & 0o6000 == 0


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC])
async def test_opening_to_change_takes_the_share_s_set_id_bits(world: World, flags: int) -> None:
    path = world.source / "f"
    path.touch()
    path.chmod(0o6755)
    handle = await world.open("f", flags)
    await world.ops.release(handle)
    assert S_IMODE(path.stat().st_mode) == 0o755
    path.chmod(0o6755)
    await world.setattr(await world.id("f"), size=0)
    assert S_IMODE(path.stat().st_mode) == 0o755


@needs_root
async def test_allowed_set_id_bits_stay_when_the_owner_is_another(make_world: MakeWorld) -> None:
    world = make_world(allow_suid=True)
    guest = Context(uid=1000, gid=1000)
    info, entry = await world.ops.create(ROOT_ID, b"c", 0o4755, os.O_RDWR, guest)
    await world.ops.release(info.fh)
    made = await world.ops.mknod(ROOT_ID, b"m", S_IFREG | 0o4755, 0, guest)
    assert (S_IMODE(entry.st_mode), S_IMODE(made.st_mode)) == (0o4755, 0o4755)


async def test_what_cannot_be_shown_is_not_kept(make_world: MakeWorld) -> None:
    """The owner has no number in the view: no node and no descriptor stays behind."""
    world = make_world(idmap=IdMap(uid_offset=-1, gid_offset=-1))
    for number in range(20):
        (world.source / f"d{number}").mkdir()
        (world.source / f"f{number}").touch()
    world.source.chmod(0o755)
    os.chown(world.source, 1, 1)
    before = open_descriptors()
    for number in range(20):
        for kind in "df":
            await refused(
                world.ops.lookup(ROOT_ID, f"{kind}{number}".encode(), world.ctx),
                errno.EOVERFLOW, errno.EIO,
            )  # fmt: skip
    listed = await world.list("")
    assert len(listed) == 40, "the listing has names alone"
    assert len(world.tree.nodes) == 1
    assert open_descriptors() == before
