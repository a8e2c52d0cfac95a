"""Making files and directories: completely or not at all, and never with the wrong owner."""

import errno
import os
import time
from collections.abc import Awaitable, Callable
from stat import S_IFIFO, S_IFREG
from typing import Any

import pytest

from gitguardfs.base.errors import os_error
from gitguardfs.fs.nodes import ROOT_ID
from gitguardfs.fs.source import Source
from tests.adapter.conftest import MakeWorld
from tests.adapter.world import Context, World, needs_root, open_descriptors, refused

MAKERS: dict[str, Callable[[World, Context], Awaitable[Any]]] = {
    "create": lambda w, c: w.ops.create(ROOT_ID, b"new", 0o644, os.O_RDWR, c),
    "mkdir": lambda w, c: w.ops.mkdir(ROOT_ID, b"new", 0o755, c),
    "mknod": lambda w, c: w.ops.mknod(ROOT_ID, b"new", S_IFREG | 0o644, 0, c),
    "mkfifo": lambda w, c: w.ops.mknod(ROOT_ID, b"new", S_IFIFO | 0o644, 0, c),
    "symlink": lambda w, c: w.ops.symlink(ROOT_ID, b"new", b"target", c),
}


@pytest.mark.parametrize("flags", [os.O_RDWR, os.O_WRONLY, os.O_RDWR | os.O_TRUNC])
async def test_a_file_that_is_there_is_stale_or_with_excl_an_error(
    world: World, flags: int
) -> None:
    """The kernel has not checked permissions; on ESTALE it looks up, checks and opens."""
    (world.source / "f").write_text("content")
    before = open_descriptors()
    call = world.ops.create
    await refused(call(ROOT_ID, b"f", 0o644, flags, world.ctx), errno.ESTALE)
    await refused(call(ROOT_ID, b"f", 0o644, flags | os.O_EXCL, world.ctx), errno.EEXIST)
    assert (world.source / "f").read_text() == "content"
    assert open_descriptors() == before


@needs_root
async def test_what_another_guard_moved_to_a_new_name_is_neither_given_away_nor_removed(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(can_chown=True)
    old = world.source / "old"
    old.mkdir()
    os.chmod(old, 0o700)
    time.sleep(0.05)  # older than a tick of the file system's clock
    (world.source / "later").touch()
    mkdir = Source.mkdir

    def and_swap(self: Source, dir_fd: int, name: bytes, mode: int) -> None:
        mkdir(self, dir_fd, name, mode)
        old.rename(world.source / os.fsdecode(name))

    monkeypatch.setattr(Source, "mkdir", and_swap)
    context = Context(uid=1234, gid=1234)
    await refused(world.ops.mkdir(ROOT_ID, b"new", 0o755, context), errno.ESTALE)
    st = (world.source / "new").stat()
    assert (st.st_uid, st.st_mode & 0o777) == (0, 0o700)


@pytest.mark.parametrize("target", ["f", "none", ".git"])
async def test_a_symlink_that_is_there_is_never_followed(world: World, target: str) -> None:
    (world.source / "f").write_text("content")
    (world.source / "link").symlink_to(target)
    await refused(world.ops.create(ROOT_ID, b"link", 0o644, os.O_RDWR, world.ctx), errno.ESTALE)
    assert sorted(os.listdir(world.source)) == ["f", "link"]
    assert (world.source / "f").read_text() == "content"


def refuse_chown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the source refuse to change any owner."""

    def refuse(*_: object) -> None:
        raise os_error(errno.EPERM)

    monkeypatch.setattr(Source, "chown", refuse)


@needs_root
@pytest.mark.parametrize("maker", MAKERS)
async def test_an_owner_that_cannot_be_set_undoes_it(
    world: World, make_world: MakeWorld, maker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chown(world.source, 4321, 4321)
    world = make_world()  # one that knows the new owner of the share
    refuse_chown(monkeypatch)
    before = open_descriptors()
    await refused(MAKERS[maker](world, Context(uid=5555, gid=5555)), errno.EPERM)
    assert os.listdir(world.source) == []
    assert len(world.tree.nodes) == 1
    assert open_descriptors() == before


@needs_root
async def test_a_creator_s_own_files_need_no_right_to_give_away(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []
    monkeypatch.setattr(Source, "chown", lambda *args: calls.append(args))
    info, _ = await MAKERS["create"](world, Context(uid=0, gid=0))
    await world.ops.release(info.fh)
    assert not calls


async def test_what_only_a_directory_can_hold(world: World) -> None:
    (world.source / "f").touch()
    file = await world.id("f")
    await refused(world.ops.mkdir(file, b"x", 0o755, world.ctx), errno.ENOTDIR)
    await refused(world.ops.lookup(file, b"x", world.ctx), errno.ENOTDIR)


async def test_only_regular_files_are_opened_here(world: World) -> None:
    """The guest's kernel serves FIFOs and sockets itself; the daemon must never wait for one."""
    os.mkfifo(world.source / "fifo")
    (world.source / "link").symlink_to("fifo")
    for name in ("fifo", "link", ""):
        node = await world.id(name)
        await refused(world.ops.open(node, os.O_RDONLY, world.ctx), errno.ENXIO)


async def test_a_file_that_the_host_swapped_for_a_fifo_does_not_hang(world: World) -> None:
    (world.source / "f").write_text("x")
    node = await world.id("f")
    os.unlink(world.source / "f")
    os.mkfifo(world.source / "f")
    await refused(world.ops.open(node, os.O_RDONLY, world.ctx), errno.ESTALE)
    await refused(world.ops.open(node, os.O_WRONLY, world.ctx), errno.ESTALE)
