"""Reading and writing, and what the kernel may keep in its page cache."""

import errno
import os
import time
from collections.abc import Callable

import pytest

from gitguardfs.base.protocol import Caller, GuestGid, GuestUid
from gitguardfs.fs.content import PAGE
from gitguardfs.fs.files import RACY_NS
from gitguardfs.fs.nodes import ROOT_ID
from gitguardfs.fs.source import Source
from gitguardfs.options.change_policy import XattrPolicy
from tests.adapter.conftest import MakeWorld
from tests.adapter.world import World, refused


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


PAGES = 3 * PAGE
SHOWN = PAGES + 5000
"""What the kernel takes for the size of the file."""


@pytest.mark.parametrize(
    ("mappable", "shown", "offset", "length"),
    [
        (False, SHOWN, 0, PAGE),  # nobody can have mapped it
        (True, PAGES, PAGES, PAGE),  # behind the end
        (True, SHOWN, PAGES, 10),  # no whole page, nor up to the end
        (True, SHOWN, SHOWN - 1000, 1000),  # to the end, but not from where a page begins
    ],
)
async def test_only_whole_pages_of_a_mapping_go_where_the_kernel_says(
    world: World, mappable: bool, shown: int, offset: int, length: int
) -> None:
    """The host has made the file longer: any other write is an append, behind the new end."""
    path = world.source / "f"
    path.write_bytes(b"x" * shown)
    handle = await world.open("f", (os.O_RDWR if mappable else os.O_WRONLY) | os.O_APPEND)
    with path.open("ab") as host:
        host.write(b"host" * 5000)
    before = path.read_bytes()
    assert await world.ops.write(handle, offset, b"y" * length) == length
    assert path.read_bytes() == before + b"y" * length
    await world.ops.release(handle)


async def test_a_page_of_another_file_s_mapping_is_no_page_of_this_one(world: World) -> None:
    (world.source / "other").write_bytes(b"x" * 100)
    (world.source / "f").write_bytes(b"x" * SHOWN)
    other = await world.open("other", os.O_RDWR)
    handle = await world.open("f", os.O_WRONLY | os.O_APPEND)
    assert await world.ops.write(handle, 0, b"y" * PAGE) == PAGE
    assert (world.source / "f").read_bytes() == b"x" * SHOWN + b"y" * PAGE
    for each in (other, handle):
        await world.ops.release(each)


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY])
async def test_a_file_that_the_host_replaces_all_the_time_is_opened(
    world: World, flags: int
) -> None:
    """The kernel looks a name up again once after ESTALE, and says ESTALE after the next one."""

    async def replaced_before_open(text: str) -> int:
        node = (await world.entry("f")).st_ino
        (world.source / "new").write_text(f"after {text}")
        (world.source / "new").rename(world.source / "f")
        return int((await world.ops.open(node, flags, world.ctx)).fh)

    (world.source / "f").write_text("first")
    await refused(replaced_before_open("first"), errno.ESTALE)
    for text in ("second", "third"):
        (world.source / "f").write_text(text)
        handle = await replaced_before_open(text)
        if flags == os.O_RDONLY:
            assert bytes(await world.ops.read(handle, 0, 100)) == text.encode()
        else:
            await world.ops.write(handle, 0, b"lost")
            assert (world.source / "f").read_text() == f"after {text}"
        await world.ops.release(handle)
    (world.source / "f").unlink()
    await refused(world.entry("f"), errno.ENOENT)


@pytest.mark.parametrize("is_git", [True, False])
async def test_a_file_that_the_host_has_replaced_by_a_symlink_to_it_is_not_opened(
    world: World, is_git: bool
) -> None:
    """Its number says that it is the same file, but nothing has checked its new place."""
    away = world.source / (".git" if is_git else "away")
    away.mkdir()
    (world.source / "f").write_text("text")
    node = await world.id("f")
    os.rename(world.source / "f", away / "f")
    (world.source / "f").symlink_to(away / "f")
    for flags in (os.O_RDONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC):
        await refused(world.ops.open(node, flags, world.ctx), errno.ESTALE)
    assert (away / "f").read_text() == "text"


# Close-to-open: what the kernel may keep


async def _open_close(world: World, path: str) -> tuple[bool, bool]:
    """Open and close. Returns whether pages are kept and attributes were invalidated."""
    world.invalidated.clear()
    info = await world.ops.open(await world.id(path), os.O_RDONLY, world.ctx)
    await world.ops.release(info.fh)
    return bool(info.keep_cache), bool(world.invalidated)


async def test_pages_are_kept_while_nothing_changed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (world.source / "f").write_text("one")
    node = await world.id("f")
    changed = (world.source / "f").stat().st_ctime_ns
    monkeypatch.setattr("gitguardfs.fs.files.time.time_ns", lambda: changed + RACY_NS)
    assert await _open_close(world, "f") == (False, False), "it was changed a moment ago"
    monkeypatch.setattr("gitguardfs.fs.files.time.time_ns", lambda: changed + 10 * RACY_NS)
    assert await _open_close(world, "f") == (True, False)
    (world.source / "f").write_text("two!")
    world.invalidated.clear()
    info = await world.ops.open(node, os.O_RDONLY, world.ctx)
    await world.ops.release(info.fh)
    assert not info.keep_cache and world.invalidated == [node]
    assert await _open_close(world, "f") == (True, False)


async def test_what_the_guest_has_written_is_not_what_the_kernel_was_told(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That holds if time stamp and size stay the same, within one tick of the clock, too."""
    (world.source / "f").write_text("text")
    node = await world.id("f")
    later = time.time_ns() + 10 * RACY_NS
    monkeypatch.setattr("gitguardfs.fs.files.time.time_ns", lambda: later)
    assert await _open_close(world, "f") == (True, False)
    handle = await world.open("f", os.O_WRONLY)
    with monkeypatch.context() as patch:
        patch.setattr(Source, "write", lambda _self, _fd, _offset, data: len(data))
        assert await world.ops.write(handle, 0, b"TEXT") == 4
    world.invalidated.clear()
    info = await world.ops.open(node, os.O_RDONLY, world.ctx)
    assert (info.keep_cache, world.invalidated) == (False, [node])
    for each in (info.fh, handle):
        await world.ops.release(each)


def _cut(size: int) -> Callable[..., int]:
    """preadv(2) with no more than ``size`` bytes of the file in memory."""
    read = os.preadv

    def preadv(fd: int, buffers: list[bytearray], offset: int, flags: int = 0) -> int:
        there = max(0, size - offset)
        if not there:
            raise BlockingIOError
        return read(fd, [memoryview(buffers[0])[:there]], offset)

    return preadv


@pytest.mark.parametrize(
    ("in_memory", "size", "grown"),
    [
        (PAGE, 2 * PAGE, 0),  # up to the end of a page
        (PAGE, PAGE, 100),  # where the file has ended when it was opened
        (100, PAGE, 0),  # within a page, as no file system should
    ],
)
async def test_a_read_is_not_cut_where_memory_ends(
    world: World, monkeypatch: pytest.MonkeyPatch, in_memory: int, size: int, grown: int
) -> None:
    content = os.urandom(size + grown)
    (world.source / "f").write_bytes(content[:size])
    handle = await world.open("f")
    (world.source / "f").write_bytes(content)
    monkeypatch.setattr(os, "preadv", _cut(in_memory))
    assert bytes(await world.ops.read(handle, 0, 1 << 16)) == content
    monkeypatch.setattr(os, "preadv", _cut(1 << 20))
    assert bytes(await world.ops.read(handle, 0, 1 << 16)) == content
    await world.ops.release(handle)


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


@pytest.mark.parametrize("name", ["security.capability", "trusted.x"])
async def test_only_attributes_of_users_are_served(make_world: MakeWorld, name: str) -> None:
    """Others hold capabilities, labels and ids, and the daemon is root."""
    world = make_world(xattr=XattrPolicy.RW)
    (world.source / "f").touch()
    value = bytes.fromhex("0100000200000000000000000000000000000000")  # VFS_CAP_REVISION_2
    for there in (name, "user.a"):
        os.setxattr(world.source / "f", there, value)
    node, ctx = await world.id("f"), world.ctx
    assert list(await world.ops.listxattr(node, ctx)) == [b"user.a"]
    await refused(world.ops.getxattr(node, name.encode(), ctx), errno.ENODATA)
    await refused(world.ops.setxattr(node, name.encode(), value, ctx), errno.EOPNOTSUPP)
    await refused(world.ops.removexattr(node, name.encode(), ctx), errno.EOPNOTSUPP)


@pytest.mark.parametrize("policy", XattrPolicy)
async def test_xattrs_of_a_repository_are_not_served(
    make_world: MakeWorld, policy: XattrPolicy
) -> None:
    """With xattrs off, the kernel learns so and asks no more: ls(1) complains about EACCES."""
    world = make_world(xattr=policy)
    (world.source / ".git").mkdir()
    os.setxattr(world.source / ".git", "user.a", b"value")
    node, ctx = await world.id(".git"), world.ctx
    reading = errno.ENOSYS if policy is XattrPolicy.NONE else errno.EACCES
    await refused(world.ops.getxattr(node, b"user.a", ctx), reading)
    await refused(world.ops.listxattr(node, ctx), reading)
    await refused(world.ops.setxattr(node, b"user.a", b"v", ctx), errno.EACCES)
    await refused(world.ops.removexattr(node, b"user.a", ctx), errno.EACCES)
    assert os.getxattr(world.source / ".git", "user.a") == b"value"


@pytest.mark.parametrize("is_ninep", [False, True])
def test_a_file_over_9p_is_not_lent_to_the_kernel(make_world: MakeWorld, is_ninep: bool) -> None:
    """A descriptor over 9p is a path: another file may be there by now."""
    world = make_world(is_local=False, is_ninep=is_ninep)
    caller = Caller(GuestUid(0), GuestGid(0), 1)
    opened, _ = world.requests.create(caller, ROOT_ID, b"f", 0o644, os.O_RDWR)
    assert (opened.backing_fd < 0) == is_ninep
