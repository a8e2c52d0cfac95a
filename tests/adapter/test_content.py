"""Reading, writing and what the kernel may keep of it."""

from __future__ import annotations

import errno
import os
import time

import pytest

from gitguardfs.core.files import RACY_NS
from gitguardfs.core.inodes import ROOT_ID
from gitguardfs.core.policy import XattrPolicy
from gitguardfs.fuse.operations import AT_ONCE
from tests.adapter.conftest import MakeWorld
from tests.adapter.world import World, refused


async def test_appends_go_to_the_end_that_the_host_made(world: World) -> None:
    path = world.source / "f"
    path.write_bytes(b"0123")
    handle = await world.open("f", os.O_WRONLY | os.O_APPEND)
    with path.open("ab") as host:
        host.write(b"host")
    assert await world.ops.write(handle, 4, b"guest") == 5
    assert path.read_bytes() == b"0123hostguest"
    await world.ops.release(handle)


async def test_a_page_written_back_through_an_append_handle_goes_where_it_belongs(
    world: World,
) -> None:
    path = world.source / "f"
    path.write_bytes(b"x" * 5000)
    handle = await world.open("f", os.O_RDWR | os.O_APPEND)
    assert await world.ops.write(handle, 0, b"y" * 4096) == 4096
    assert path.read_bytes() == b"y" * 4096 + b"x" * 904
    assert await world.ops.write(handle, 5000, b"end") == 3
    assert path.read_bytes()[4090:] == b"y" * 6 + b"x" * 904 + b"end"
    await world.ops.release(handle)


async def test_append_after_append_is_in_order(world: World) -> None:
    info, _ = await world.ops.create(ROOT_ID, b"f", 0o644, os.O_WRONLY | os.O_APPEND, world.ctx)
    at = 0
    for part in (b"one", b"two", b"three"):
        assert await world.ops.write(info.fh, at, part) == len(part)
        at += len(part)
    await world.ops.release(info.fh)
    assert (world.source / "f").read_bytes() == b"onetwothree"


async def test_writes_elsewhere_go_where_they_are_sent(world: World) -> None:
    handle, node = await world.create(ROOT_ID, b"f")
    assert await world.ops.write(handle, 5, b"end") == 3
    assert await world.ops.write(handle, 0, b"start") == 5
    assert await world.ops.read(handle, 0, 100) == b"startend"
    assert (await world.ops.getattr(node, world.ctx)).st_size == 8
    await world.ops.release(handle)


@pytest.mark.parametrize("size", [0, 1, 4096, AT_ONCE, AT_ONCE + 1, 1 << 20])
@pytest.mark.parametrize("flags", [os.O_RDWR, os.O_RDWR | os.O_SYNC])
async def test_all_sizes_arrive_whole(world: World, size: int, flags: int) -> None:
    data = os.urandom(size)
    handle, _ = await world.create(ROOT_ID, b"f", flags)
    assert await world.ops.write(handle, 0, data) == size
    await world.ops.fsync(handle, False)
    assert bytes(await world.ops.read(handle, 0, size + 10)) == data
    assert bytes(await world.ops.read(handle, size, 10)) == b""
    assert bytes(await world.ops.read(handle, size + 100, 10)) == b""
    await world.ops.release(handle)


async def test_each_handle_has_its_own_mode(world: World) -> None:
    (world.source / "f").write_text("text")
    reader, writer = await world.open("f"), await world.open("f", os.O_WRONLY)
    await refused(world.ops.write(reader, 0, b"x"), errno.EBADF)
    await refused(world.ops.read(writer, 0, 1), errno.EBADF)
    for handle in (reader, writer):
        await world.ops.release(handle)


@pytest.mark.parametrize("through_handle", [False, True])
async def test_truncation(world: World, through_handle: bool) -> None:
    handle, node = await world.create(ROOT_ID, b"f")
    await world.ops.write(handle, 0, b"0123456789")
    fh = handle if through_handle else None
    assert (await world.setattr(node, fh, size=3)).st_size == 3
    assert (await world.setattr(node, fh, size=6)).st_size == 6
    assert await world.ops.read(handle, 0, 10) == b"012\0\0\0"
    await world.ops.release(handle)
    handle = await world.open("f", os.O_WRONLY | os.O_TRUNC)
    assert (await world.ops.getattr(node, world.ctx)).st_size == 0
    await world.ops.release(handle)


# Close-to-open: what the kernel may keep


async def _open_close(world: World, path: str) -> tuple[bool, bool]:
    """Open and close; whether pages are kept, and whether attributes were invalidated."""
    world.invalidated.clear()
    info = await world.ops.open(await world.id(path), os.O_RDONLY, world.ctx)
    await world.ops.release(info.fh)
    return bool(info.keep_cache), bool(world.invalidated)


async def test_pages_are_kept_while_nothing_changed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (world.source / "f").write_text("one")
    node = await world.id("f")
    assert await _open_close(world, "f") == (False, False), "changed a moment ago"
    later = time.time_ns() + 10 * RACY_NS
    monkeypatch.setattr("gitguardfs.core.files.time.time_ns", lambda: later)
    assert await _open_close(world, "f") == (True, False)
    (world.source / "f").write_text("two!")
    world.invalidated.clear()
    info = await world.ops.open(node, os.O_RDONLY, world.ctx)
    await world.ops.release(info.fh)
    assert not info.keep_cache and world.invalidated == [node]
    assert await _open_close(world, "f") == (True, False)


async def test_a_failed_invalidation_is_no_failed_open(world: World) -> None:
    (world.source / "f").write_text("one")
    node = await world.id("f")
    (world.source / "f").write_text("two!")

    def gone(_: int) -> None:
        raise OSError(errno.ENOENT, "not known to the kernel")

    world.ops._invalidate = gone
    info = await world.ops.open(node, os.O_RDONLY, world.ctx)
    await world.ops.release(info.fh)


# Extended attributes


async def test_only_user_attributes_are_served(make_world: MakeWorld) -> None:
    world = make_world(xattr=XattrPolicy.RW)
    (world.source / "f").touch()
    node, ctx = await world.id("f"), world.ctx
    await world.ops.setxattr(node, b"user.a", b"value", ctx)
    assert await world.ops.getxattr(node, b"user.a", ctx) == b"value"
    assert list(await world.ops.listxattr(node, ctx)) == [b"user.a"]
    for name in (b"security.capability", b"trusted.x", b"system.posix_acl_access", b"user"):
        await refused(world.ops.setxattr(node, name, b"v", ctx), errno.EOPNOTSUPP)
        await refused(world.ops.removexattr(node, name, ctx), errno.EOPNOTSUPP)
        await refused(world.ops.getxattr(node, name, ctx), errno.ENODATA)
    await world.ops.removexattr(node, b"user.a", ctx)
    await refused(world.ops.getxattr(node, b"user.a", ctx), errno.ENODATA)


@pytest.mark.parametrize(
    ("policy", "reading", "writing"),
    [
        (XattrPolicy.NONE, errno.ENOSYS, errno.EOPNOTSUPP),
        (XattrPolicy.RO, errno.ENODATA, errno.EACCES),
    ],
)
async def test_less_is_served_when_less_is_asked_for(
    make_world: MakeWorld, policy: XattrPolicy, reading: int, writing: int
) -> None:
    world = make_world(xattr=policy)
    (world.source / "f").touch()
    node, ctx = await world.id("f"), world.ctx
    await refused(world.ops.getxattr(node, b"user.a", ctx), reading)
    await refused(world.ops.setxattr(node, b"user.a", b"v", ctx), writing)
    await refused(world.ops.removexattr(node, b"user.a", ctx), writing)


async def test_statfs_is_the_source_s(world: World) -> None:
    have, real = await world.ops.statfs(world.ctx), os.statvfs(world.source)
    assert (have.f_bsize, have.f_blocks, have.f_namemax) == (
        real.f_bsize, real.f_blocks, real.f_namemax,
    )  # fmt: skip
