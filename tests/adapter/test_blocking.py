"""Calls that may wait run on a thread, unless the last ones were quick."""

import fcntl
import os
import threading
from typing import Any

import pytest
import trio
import trio.testing

from gitguardfs.fs import blocking, content
from gitguardfs.fs.blocking import INLINE_LIMIT
from gitguardfs.fs.nodes import ROOT_ID
from tests.adapter.conftest import MakeWorld
from tests.adapter.world import World


@pytest.fixture
def threads(world: World, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return spied(world, monkeypatch)


def spied(world: World, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the calls that went to a thread."""
    seen: list[str] = []
    run_in_thread = world.ops.request_loop.run_in_thread

    async def spy(run: Any, **how: Any) -> Any:
        seen.append(run.__self__.call.__name__)
        return await run_in_thread(run, **how)

    monkeypatch.setattr(world.ops.request_loop, "run_in_thread", spy)
    return seen


@pytest.fixture
def always_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "QUICK", 1e9)


def uncached(*_: object) -> None:
    """Stand in for ``read_nowait`` when nothing is in memory."""


@pytest.mark.parametrize("flag", [os.O_SYNC, os.O_DSYNC])
async def test_writes_that_wait_for_the_disk_go_to_a_thread(
    world: World, threads: list[str], flag: int
) -> None:
    handle, node = await world.create(ROOT_ID, b"f", os.O_RDWR | flag)
    again = int((await world.ops.open(node, os.O_WRONLY | flag, world.ctx)).fh)
    for each in (handle, again):
        await world.ops.write(each, 0, b"x")
        fd = world.tree.handles.file(each).fd
        assert fcntl.fcntl(fd, fcntl.F_GETFL) & flag == flag
        await world.ops.release(each)
    assert threads == ["write"] * 2


@pytest.mark.usefixtures("always_quick")
async def test_syncs_that_were_quick_need_no_thread(world: World, threads: list[str]) -> None:
    handle, _ = await world.create(ROOT_ID, b"f")
    for _ in range(blocking.QUICK_IN_A_ROW + 3):
        await world.ops.write(handle, 0, b"x")
        await world.ops.fsync(handle, False)
    assert threads == ["fsync"] * blocking.QUICK_IN_A_ROW
    listing = await world.ops.opendir(ROOT_ID, world.ctx)
    await world.ops.fsyncdir(listing, True)
    assert len(threads) == blocking.QUICK_IN_A_ROW
    await world.ops.releasedir(listing)
    await world.ops.release(handle)


@pytest.mark.usefixtures("always_quick")
async def test_much_that_is_not_on_disk_needs_one(world: World, threads: list[str]) -> None:
    handle, _ = await world.create(ROOT_ID, b"f")
    for _ in range(blocking.QUICK_IN_A_ROW):
        await world.ops.fsync(handle, False)
    threads.clear()
    await world.ops.write(handle, 0, bytes(INLINE_LIMIT))
    await world.ops.write(handle, 0, b"x")
    await world.ops.fsync(handle, False)
    assert threads == ["fsync"]
    await world.ops.fsync(handle, False)
    assert threads == ["fsync"]
    await world.ops.release(handle)


@pytest.mark.usefixtures("always_quick")
async def test_what_would_wait_for_one_on_a_thread_is_not_quick(
    world: World, threads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, _ = await world.create(ROOT_ID, b"f")
    for _ in range(blocking.QUICK_IN_A_ROW):
        await world.ops.fsync(handle, False)
    threads.clear()
    goes_on = threading.Event()

    def slow(_: int) -> None:
        assert goes_on.wait(20)

    slow.__name__ = "fsync"
    monkeypatch.setattr(os, "fsync", slow)
    await world.ops.write(handle, 0, bytes(INLINE_LIMIT))
    await world.ops.write(handle, 0, b"x")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.ops.fsync, handle, False)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(world.ops.fsync, handle, False)
        await trio.testing.wait_all_tasks_blocked()
        assert threads == ["fsync"] * 2
        goes_on.set()
    await world.ops.release(handle)


@pytest.mark.usefixtures("always_quick")
async def test_servers_are_always_waited_for_on_threads(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source may be quick with a hundred files and then slow with another."""
    world = make_world(is_local=False)
    threads = spied(world, monkeypatch)
    monkeypatch.setattr(content, "read_nowait", uncached)
    handle, _ = await world.create(ROOT_ID, b"f")
    for _ in range(blocking.QUICK_IN_A_ROW + 3):
        await world.ops.write(handle, 0, b"x")
        await world.ops.fsync(handle, False)
        assert bytes(await world.ops.read(handle, 0, 10)) == b"x"
    assert threads == ["write", "fsync", "read"] * (blocking.QUICK_IN_A_ROW + 3)
    await world.ops.release(handle)


@pytest.mark.usefixtures("always_quick")
async def test_reads_of_what_is_not_in_memory(
    world: World, threads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (world.source / "f").write_bytes(b"0123456789")
    handle = await world.open("f")
    assert bytes(await world.ops.read(handle, 2, 4)) == b"2345"
    assert threads == []
    monkeypatch.setattr(content, "read_nowait", uncached)
    for _ in range(blocking.QUICK_IN_A_ROW + 2):
        assert bytes(await world.ops.read(handle, 2, 4)) == b"2345"
    assert threads == ["read"] * blocking.QUICK_IN_A_ROW
    assert bytes(await world.ops.read(handle, 0, INLINE_LIMIT + 1)) == b"0123456789"
    assert len(threads) == blocking.QUICK_IN_A_ROW + 1
    await world.ops.release(handle)


@pytest.mark.usefixtures("always_quick")
async def test_an_error_is_the_callers_with_and_without_a_thread(
    world: World, threads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, _ = await world.create(ROOT_ID, b"f")

    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    fail.__name__ = "fsync"
    monkeypatch.setattr(os, "fsync", fail)
    for _ in range(blocking.QUICK_IN_A_ROW + 2):
        with pytest.raises(Exception) as caught:
            await world.ops.fsync(handle, False)
        assert getattr(caught.value, "errno", None) == 5
    assert threads == ["fsync"] * blocking.QUICK_IN_A_ROW
    await world.ops.release(handle)


@pytest.mark.parametrize("before", [100, 4096])
@pytest.mark.parametrize("grown", [101, 4096, 5000, 8192])
async def test_a_file_that_has_grown_is_read_to_its_new_end(
    world: World, before: int, grown: int
) -> None:
    path = world.source / "f"
    data = os.urandom(grown)
    path.write_bytes(data[:before])
    handle = await world.open("f")
    assert bytes(await world.ops.read(handle, 0, 1 << 16)) == data[:before]
    with path.open("ab") as file:
        file.write(data[before:])
    assert bytes(await world.ops.read(handle, 0, 1 << 16)) == max(data, data[:before], key=len)
    path.write_bytes(b"now short")
    assert bytes(await world.ops.read(handle, 0, 1 << 16)) == b"now short"
    await world.ops.release(handle)
