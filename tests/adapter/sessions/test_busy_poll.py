"""Waiting for requests: a poll first, then trio's loop if none comes."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pyfuse3
import pytest
import trio
import trio.testing

from gitguardfs.sessions.pyfuse3_session import busy_poll
from gitguardfs.sessions.pyfuse3_session.cpu_latency import CpuLatencyRequest
from gitguardfs.sessions.pyfuse3_session.read_interrupter import ReadInterrupter
from gitguardfs.sessions.pyfuse3_session.request_loop import RequestLoop
from gitguardfs.sessions.pyfuse3_session.session import Pyfuse3SessionFactory
from gitguardfs.view.view import View


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def _low(
    is_alone: bool = True, is_ending: Callable[[], bool] = lambda: False
) -> busy_poll.BusyPoll:
    return busy_poll.BusyPoll(lambda: is_alone, is_ending, ReadInterrupter())


async def test_what_is_there_is_not_waited_for_in_the_loop(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = []

    async def wait_readable(fd: int) -> None:
        waited.append(fd)

    low = _low()
    monkeypatch.setattr(trio.lowlevel, "wait_readable", wait_readable)
    os.write(pipe[1], b"x")
    for _ in range(busy_poll.REQUESTS_IN_A_ROW):
        await low.wait_readable(pipe[0])
    assert waited == []
    for _ in range(busy_poll.REQUESTS_IN_A_ROW + 1):
        await low.wait_readable(pipe[0])
    assert waited == [pipe[0]]


async def test_something_else_is_waited_for_until_there_is_a_request(pipe: tuple[int, int]) -> None:
    low = _low()
    other, make_readable = os.pipe()
    try:
        assert not low.comes_first(other, 1), "before anybody has waited for requests"
        os.write(pipe[1], b"x")
        await low.wait_readable(pipe[0])
        third = os.dup(other)
        assert not low.comes_first(third, 20_000), "a request is there"
        os.read(pipe[0], 1)
        assert not low.comes_first(third, 1)
        os.write(make_readable, b"x")
        assert low.comes_first(third, 20_000)
        os.write(pipe[1], b"x")
        assert low.comes_first(third, 20_000)
        os.close(third)
    finally:
        os.close(other)
        os.close(make_readable)


async def test_a_connection_has_ended_when_its_descriptor_says_so() -> None:
    low = _low()
    assert not low.has_ended(), "before anybody has waited for requests"
    readable, writable = os.pipe()
    try:
        os.write(writable, b"x")
        await low.wait_readable(readable)
        assert not low.has_ended()
        os.close(writable)
        assert low.has_ended()
    finally:
        os.close(readable)


@pytest.mark.parametrize("is_alone", [True, False])
async def test_what_comes_later_is_waited_for(pipe: tuple[int, int], is_alone: bool) -> None:
    low = _low(is_alone)
    seen = []

    async def reader() -> None:
        await low.wait_readable(pipe[0])
        seen.append(os.read(pipe[0], 1))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader)
        await trio.testing.wait_all_tasks_blocked()
        assert seen == []
        os.write(pipe[1], b"x")
    assert seen == [b"x"]


async def test_the_end_is_seen_whenever_it_is_said(
    pipe: tuple[int, int], autojump_clock: trio.testing.MockClock
) -> None:
    """That holds in the pass of the event loop that drops the limit on latency, too."""
    for _ in range(50):  # trio runs what is due at one time in either order
        ended: list[bool] = []
        low = _low(is_ending=lambda ended=ended: bool(ended))  # type: ignore[misc]
        low._cpu_latency = _CpuLatencyRequest()
        low._cpu_latency.acquire()
        low._in_a_row = busy_poll.REQUESTS_IN_A_ROW

        async def end(ended: list[bool] = ended) -> None:
            await trio.sleep(busy_poll.INLINE_WAIT / 1000)
            ended.append(True)
            trio.lowlevel.notify_closing(pipe[0])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(end)
            with trio.fail_after(10), pytest.raises(trio.ClosedResourceError):
                await low.wait_readable(pipe[0])


async def test_processors_are_let_go_at_the_end_although_a_call_is_still_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def ends(*_: object) -> None:
        pass

    monkeypatch.setattr(pyfuse3, "_session_loop", ends)
    requests = RequestLoop()
    requests._busy_poll = low = _low()
    low._cpu_latency = request = _CpuLatencyRequest()
    request.acquire()
    requests._tasks, requests._waiting = 2, 1
    await requests._loop(None)  # type: ignore[arg-type]
    assert not request.held


class _CpuLatencyRequest(CpuLatencyRequest):
    """A request that every machine allows, and that notes its calls."""

    def __init__(self) -> None:
        self.held = False
        self.said: list[str] = []

    def acquire(self) -> bool:
        self.said.append("acquire")
        was, self.held = self.held, True
        return not was

    def release(self) -> bool:
        self.said.append("release")
        was, self.held = self.held, False
        return was


def test_a_lock_that_pyfuse3_creates_in_init_does_not_lock(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Releases before 3.4.1 create it there, later ones at the first request."""
    locks: list[object] = []

    def init(_handlers: object, _mountpoint: str, _options: set[str]) -> None:
        locks.append(pyfuse3.trio.Lock())  # type: ignore[attr-defined]

    monkeypatch.setattr(pyfuse3, "init", init)
    monkeypatch.setattr(pyfuse3, "trio", trio)
    operations = cast("View", None)
    session = Pyfuse3SessionFactory()(operations)
    fd = os.open(tmp_path, os.O_PATH)
    session.mount("/", fd, set())
    os.close(fd)
    assert [type(lock) for lock in locks] == [busy_poll._NoLock]
