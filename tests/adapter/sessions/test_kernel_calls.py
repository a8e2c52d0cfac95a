"""The requests that the kernel's session alone carries, without a mount."""

import errno
import os
import struct
from typing import Any

import pytest

from gitguardfs.base.errors import os_error
from gitguardfs.fs.file_flags import GET_FLAGS, GET_VERSION, GET_XFLAGS, SET_FLAGS
from gitguardfs.fs.nodes import ROOT_ID
from gitguardfs.fs.source import Source
from gitguardfs.names.rules import GitMode, GuardRules
from gitguardfs.options.idmap import IdMap
from tests.adapter.conftest import MakeWorld
from tests.adapter.sessions.test_kernel_requests import client_of
from tests.adapter.view.test_private_git import Asked, made
from tests.adapter.world import Context, World, needs_root, open_descriptors, refused, values
from tests.support.kernel_client import KernelClient, checked, packed

KEEP_SIZE, PUNCH_HOLE = 1, 2
SECTOR = 4096
TCGETS, FIGETBSZ, SET_XFLAGS = 0x5401, 2, 0x401C5820
IMMUTABLE, APPEND, NODUMP = 0x10, 0x20, 0x40
CASEFOLD, PROJINHERIT, JOURNAL_DATA = 0x40000000, 0x20000000, 0x4000


async def nameless(world: World, parent: int = ROOT_ID, mode: int = 0o640) -> tuple[int, int]:
    info, entry = await world.ops.tmpfile(parent, mode, os.O_RDWR | os.O_TMPFILE, world.ctx)
    assert entry.st_nlink == 0
    return int(info.fh), int(entry.st_ino)


# Files without a name


async def test_a_nameless_file_gets_a_name(make_world: MakeWorld) -> None:
    for is_local in (True, False):
        world = make_world(is_local=is_local)
        handle, node = await nameless(world)
        await world.ops.write(handle, 0, b"text")
        assert (await world.ops.getattr(node, world.ctx)).st_size == 4
        name = b"%d" % is_local
        assert (await world.ops.link(node, ROOT_ID, name, world.ctx)).st_ino == node
        assert (world.source / name.decode()).read_bytes() == b"text"
        assert await world.id(name) == node
        assert not world.tree.descriptors._pinned, "many such files would take all descriptors"
        await world.ops.release(handle)
        await world.ops.unlink(ROOT_ID, name, world.ctx)


async def test_a_nameless_file_lives_as_long_as_the_kernel_knows_it(world: World) -> None:
    """A process may hold it by O_PATH alone."""
    before = open_descriptors()
    handle, node = await nameless(world)
    await world.ops.write(handle, 0, b"text")
    await world.ops.release(handle)
    world.tree.descriptors.close_unleased()
    again = (await world.ops.open(node, os.O_RDONLY, world.ctx)).fh
    assert await world.ops.read(again, 0, 10) == b"text"
    await world.ops.release(again)
    await world.ops.forget([(node, 1)])
    await refused(world.ops.getattr(node, world.ctx), errno.ESTALE)
    assert open_descriptors() == before


@pytest.mark.parametrize("name", [b".git", b"GIT~1", b".git ", b"HEAD", b"config", b"secret"])
async def test_a_nameless_file_gets_no_name_that_is_guarded(
    make_world: MakeWorld, name: bytes
) -> None:
    """A directory with refs and objects is half a repository: HEAD would complete it."""
    world = make_world(rules=GuardRules(deny=("secret",)))
    for part in ("refs", "objects"):
        (world.source / part).mkdir()
    handle, node = await nameless(world)
    await refused(world.ops.link(node, ROOT_ID, name, world.ctx))
    assert sorted(os.listdir(world.source)) == ["objects", "refs"]
    await world.ops.release(handle)


async def test_a_part_that_another_guard_adds_meanwhile_takes_the_name_away(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = Source.link

    def and_complete(self: Source, fd: int, dir_fd: int, name: bytes) -> None:
        link(self, fd, dir_fd, name)
        os.mkdir(world.source / "refs")

    monkeypatch.setattr(Source, "link", and_complete)
    handle, node = await nameless(world)
    await refused(world.ops.link(node, ROOT_ID, b"HEAD", world.ctx))
    assert os.listdir(world.source) == ["refs"]
    await world.ops.release(handle)


async def test_no_nameless_file_where_no_file_may_be_made(world: World) -> None:
    (world.source / ".git").mkdir()
    (world.source / "half/hooks").mkdir(parents=True)
    for part in ("refs", "objects"):
        (world.source / "half" / part).mkdir()
    (world.source / "file").touch()
    make = world.ops.tmpfile
    for place in (".git", "half/hooks"):
        await refused(make(await world.id(place), 0o644, os.O_RDWR, world.ctx))
    await refused(make(await world.id("file"), 0o644, os.O_RDWR, world.ctx), errno.ENOTDIR)
    world.tree.check._read_only = True
    await refused(make(ROOT_ID, 0o644, os.O_RDWR, world.ctx), errno.EROFS)


async def test_no_nameless_file_where_a_descriptor_is_a_path(make_world: MakeWorld) -> None:
    world = make_world(is_ninep=True)
    call = world.ops.tmpfile(ROOT_ID, 0o644, os.O_RDWR, world.ctx)
    await refused(call, errno.EOPNOTSUPP)


@needs_root
async def test_a_nameless_file_is_the_caller_s_in_share_ids_or_not_made(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(idmap=IdMap([(501, 1000)], [(20, 100)]))
    world.ctx = Context(uid=1000, gid=100)
    handle, node = await nameless(world, mode=0o4750)
    st = os.fstat(world.tree.handles.file(handle).fd)
    assert (st.st_uid, st.st_gid, st.st_mode & 0o7777) == (501, 20, 0o750)
    entry = await world.ops.link(node, ROOT_ID, b"name", world.ctx)
    assert (entry.st_uid, entry.st_gid) == (1000, 100)
    await world.ops.release(handle)

    def fails(*_: object) -> None:
        raise os_error(errno.EIO)

    before = open_descriptors(), len(world.tree.nodes)
    for owner, name in ((Source, "chown"), (type(world.attributes), "report")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fails)
            await refused(world.ops.tmpfile(ROOT_ID, 0o644, os.O_RDWR, world.ctx), errno.EIO)
        assert (open_descriptors(), len(world.tree.nodes)) == before


# Birth times


@needs_root
async def test_attributes_with_a_birth_time_are_those_without(make_world: MakeWorld) -> None:
    world = make_world(idmap=IdMap([(501, 1000)], [(20, 100)]))
    (world.source / ".git").mkdir()
    (world.source / "file").touch()
    os.chown(world.source / "file", 501, 20)
    os.chmod(world.source / "file", 0o6755)
    for path in ("", "file", ".git"):
        node = await world.id(path)
        world.attributes.presented.clear()
        told = await world.ops.statx(node, world.ctx)
        assert world.attributes.presented == [values(told)], "through the one way out"
        assert values(told) == values(await world.ops.getattr(node, world.ctx))
        assert told.birth_ns == world.tree.source.btime_ns(world.tree.nodes.get(node).fd)
    assert (told.st_mode & 0o7777, told.st_uid) == (0, 0), "a guarded object is masked"
    told = await world.ops.statx(await world.id("file"), world.ctx)
    assert (told.st_uid, told.st_gid, told.st_mode & 0o7777) == (1000, 100, 0o755)


async def test_a_source_without_birth_times(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Source, "btime_ns", lambda *_: 0)
    assert (await world.ops.statx(ROOT_ID, world.ctx)).birth_ns is None


# Ranges


async def test_a_range_is_allocated_and_freed(make_world: MakeWorld) -> None:
    for is_local in (True, False):
        world = make_world(is_local=is_local)
        handle, number = await world.create(ROOT_ID, b"%d" % is_local)
        node = world.tree.nodes.get(number)
        node.reported = 7
        await world.ops.fallocate(handle, 100, 4000, KEEP_SIZE)
        assert (node.size, node.reported) == (0, 0)
        await world.ops.fallocate(handle, 0, 10 * SECTOR, 0)
        assert node.size == (await world.ops.getattr(number, world.ctx)).st_size == 10 * SECTOR
        await world.ops.write(handle, 0, b"x" * 3 * SECTOR)
        await world.ops.fallocate(handle, SECTOR, SECTOR, PUNCH_HOLE | KEEP_SIZE)
        assert await world.ops.read(handle, SECTOR - 1, 3) == b"x\0\0"
        await refused(world.ops.fallocate(handle, 0, 0, 0), errno.EINVAL)
        reading = await world.open(f"{is_local:d}")
        await refused(world.ops.fallocate(reading, 0, 1, 0), errno.EBADF)
        for one in (handle, reading):
            await world.ops.release(one)


async def test_holes_are_found_unless_a_process_may_have_written_to_them(
    make_world: MakeWorld,
) -> None:
    for is_local in (True, False):
        world = make_world(is_local=is_local)
        path = world.source / f"{is_local}"
        with path.open("wb") as file:
            os.pwrite(file.fileno(), b"x", 16 * SECTOR)
        handle = await world.open(path.name)
        seek = world.ops.lseek
        assert await seek(handle, 0, os.SEEK_DATA) == 16 * SECTOR
        assert await seek(handle, 1, os.SEEK_HOLE) == 1
        for whence in (os.SEEK_DATA, os.SEEK_HOLE):
            await refused(seek(handle, 16 * SECTOR + 1, whence), errno.ENXIO)
        await refused(seek(handle, 0, os.SEEK_SET), errno.EINVAL)
        mappable = await world.open(path.name, os.O_RDWR)
        for one in (handle, mappable):
            assert await seek(one, 5, os.SEEK_DATA) == 5
            assert await seek(one, 5, os.SEEK_HOLE) == 16 * SECTOR + 1
            await refused(seek(one, 16 * SECTOR + 1, os.SEEK_HOLE), errno.ENXIO)
            await world.ops.release(one)


async def test_a_range_is_copied(make_world: MakeWorld) -> None:
    for is_local in (True, False):
        world = make_world(is_local=is_local)
        (world.source / "from").write_bytes(b"0123456789")
        source = await world.open("from")
        to, number = await world.create(ROOT_ID, b"to%d" % is_local)
        node = world.tree.nodes.get(number)
        node.reported = 7
        assert await world.ops.copy_file_range(source, 3, to, 5, 4) == 4
        assert (node.size, node.reported, node.unsynced) == (9, 0, 4)
        assert (world.source / f"to{is_local:d}").read_bytes() == bytes(5) + b"3456"
        await refused(world.ops.copy_file_range(to, 0, source, 0, 4), errno.EBADF)
        await refused(world.ops.copy_file_range(source, 0, 10**6, 0, 4), errno.EBADF)
        for one in (source, to):
            await world.ops.release(one)


@pytest.mark.parametrize("options", [{"read_rate": 1e9}, {"write_rate": 1e9}, {}])
async def test_the_guest_copies_where_that_is_counted_or_at_the_end_of_a_file(
    make_world: MakeWorld, options: dict[str, Any]
) -> None:
    world = make_world(**options)
    (world.source / "from").write_bytes(b"text")
    source = await world.open("from")
    to, _ = await world.create(ROOT_ID, b"to", os.O_WRONLY | (0 if options else os.O_APPEND))
    await refused(world.ops.copy_file_range(source, 0, to, 0, 4), errno.EXDEV)
    await refused(world.ops.copy_file_range(source, 0, to | 1 << 52, 0, 4), errno.EXDEV)
    for one in (source, to):
        await world.ops.release(one)


async def test_the_virtual_git_file_has_data_and_no_more(make_world: MakeWorld) -> None:
    world = made(make_world, Asked())
    node = await world.id("a/.git")
    handle = await world.open("a/.git")
    told = await world.ops.statx(node, world.ctx)
    assert values(told) == values(await world.ops.getattr(node, world.ctx))
    assert told.birth_ns is None
    assert await world.ops.lseek(handle, 3, os.SEEK_DATA) == 3
    assert await world.ops.lseek(handle, 3, os.SEEK_HOLE) == told.st_size
    to, _ = await world.create(ROOT_ID, b"to")
    await refused(world.ops.copy_file_range(handle, 0, to, 0, 4), errno.EXDEV)
    await refused(world.ops.copy_file_range(to, 0, handle, 0, 4), errno.EXDEV)
    await refused(world.ops.fallocate(handle, 0, 4, 0), errno.EBADF)
    await refused(world.ops.ioctl(node, GET_FLAGS, b"", world.ctx), errno.ENOTTY)
    for one in (handle, to):
        await world.ops.release(one)


# ioctl


def packed_flags(number: int) -> bytes:
    return struct.pack("I", number)


async def flags_of(world: World, node: int) -> int:
    return int(struct.unpack("I", await world.ops.ioctl(node, GET_FLAGS, b"", world.ctx))[0])


async def test_flags_are_read_and_changed_by_the_owner(world: World) -> None:
    (world.source / "file").touch()
    (world.source / "dir").mkdir()
    for name in ("file", "dir"):
        node = await world.id(name)
        before = await flags_of(world, node)
        assert not before & NODUMP
        assert len(await world.ops.ioctl(node, GET_VERSION, b"", world.ctx)) == 4
        assert len(await world.ops.ioctl(node, GET_XFLAGS, b"", world.ctx)) == 28
        assert not await world.ops.ioctl(node, SET_FLAGS, packed_flags(before | NODUMP), world.ctx)
        assert await flags_of(world, node) == before | NODUMP
        for flag in (CASEFOLD, PROJINHERIT, JOURNAL_DATA):
            call = world.ops.ioctl(node, SET_FLAGS, packed_flags(before | flag), world.ctx)
            await refused(call, errno.EOPNOTSUPP)
        other = Context(uid=1234, gid=1234)
        await refused(world.ops.ioctl(node, SET_FLAGS, packed_flags(before), other), errno.EPERM)
        assert await flags_of(world, node) == before | NODUMP


@needs_root
@pytest.mark.parametrize("flag", [IMMUTABLE, APPEND])
async def test_only_root_makes_a_file_immutable_or_append_only(world: World, flag: int) -> None:
    path = world.source / "file"
    path.touch()
    os.chown(path, 1234, 1234)
    node = await world.id("file")
    before = await flags_of(world, node)
    owner, root = Context(uid=1234, gid=1234), Context(uid=0, gid=0)
    wanted = packed_flags(before | flag)
    await refused(world.ops.ioctl(node, SET_FLAGS, wanted, owner), errno.EPERM)
    assert await flags_of(world, node) == before
    await world.ops.ioctl(node, SET_FLAGS, wanted, root)
    assert await flags_of(world, node) == before | flag
    await refused(world.ops.ioctl(node, SET_FLAGS, packed_flags(before), owner), errno.EPERM)
    await world.ops.ioctl(node, SET_FLAGS, packed_flags(before), root)


@pytest.mark.parametrize("command", [TCGETS, FIGETBSZ, SET_XFLAGS, 0, 2**32 - 1])
async def test_any_other_command_is_enotty(world: World, command: int) -> None:
    (world.source / "file").touch()
    node = await world.id("file")
    await refused(world.ops.ioctl(node, command, bytes(28), world.ctx), errno.ENOTTY)


async def test_flags_of_what_is_guarded_stay(make_world: MakeWorld) -> None:
    world = make_world(rules=GuardRules(GitMode.DENY, protect=("kept",)))
    (world.source / ".git").mkdir()
    (world.source / "kept").touch()
    os.mkfifo(world.source / "fifo")
    for command in (GET_FLAGS, SET_FLAGS):
        await refused(world.ops.ioctl(await world.id(".git"), command, bytes(4), world.ctx))
        fifo = world.ops.ioctl(await world.id("fifo"), command, bytes(4), world.ctx)
        await refused(fifo, errno.ENOTTY)
    kept = await world.id("kept")
    before = await flags_of(world, kept)
    await refused(world.ops.ioctl(kept, SET_FLAGS, packed_flags(before | NODUMP), world.ctx))
    world.tree.check._read_only = True
    (world.source / "file").touch()
    call = world.ops.ioctl(await world.id("file"), SET_FLAGS, packed_flags(before), world.ctx)
    await refused(call, errno.EROFS)


def test_without_the_option_ioctl_is_enotty_and_asks_nobody() -> None:
    asking = client_of(lambda *_: pytest.fail("the tree was asked"))
    client = KernelClient(asking.session._view, lambda _: None, serves_ioctl=False)
    client.send(packed("ioctl", 2, (5, GET_FLAGS, b"", Context())))
    assert checked(client.wire.replies[2]) == (2, errno.ENOTTY, b"")
    for one in (asking, client):
        one.close()
