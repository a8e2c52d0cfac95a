"""What relies on the insides of pyfuse3: how requests are waited for, and the lock of its loop."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pyfuse3
import pytest
import trio
import trio.testing

from gitguardfs.sessions.pyfuse3_session import internals
from gitguardfs.sessions.pyfuse3_session.session import Pyfuse3Session
from gitguardfs.view.view import View


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def _low(is_alone: bool = True, on_end: Callable[[], None] = lambda: None) -> internals.RequestWait:
    return internals.RequestWait(lambda: is_alone, on_end)


async def test_what_is_there_is_not_waited_for_in_the_loop(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = []

    async def wait_readable(fd: int) -> None:
        waited.append(fd)

    low = _low()
    monkeypatch.setattr(trio.lowlevel, "wait_readable", wait_readable)
    os.write(pipe[1], b"x")
    for _ in range(internals.REQUESTS_IN_A_ROW):
        await low.wait_readable(pipe[0])
    assert waited == []
    for _ in range(internals.REQUESTS_IN_A_ROW + 1):
        await low.wait_readable(pipe[0])
    assert waited == [pipe[0]]


async def test_something_else_is_waited_for_until_there_is_a_request(pipe: tuple[int, int]) -> None:
    low = _low()
    other, make_readable = os.pipe()
    try:
        assert not low.comes_first(other, alone=False), "before anybody has waited for requests"
        os.write(pipe[1], b"x")
        await low.wait_readable(pipe[0])
        third = os.dup(other)
        assert not low.comes_first(third, alone=False), "a request is there"
        os.read(pipe[0], 1)
        assert not low.comes_first(third, alone=False)
        os.write(make_readable, b"x")
        assert low.comes_first(third, alone=False)
        os.write(pipe[1], b"x")
        assert low.comes_first(third, alone=False)
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


@pytest.mark.parametrize("passes", [0, internals.REQUESTS_IN_A_ROW])
async def test_the_end_of_the_connection_is_told_to_who_holds_answers_back(passes: int) -> None:
    ends: list[bool] = []
    low = _low(on_end=lambda: ends.append(True))
    readable, writable = os.pipe()
    low._in_a_row = passes
    os.close(readable)  # the other end then reports POLLERR, as /dev/fuse does
    await low.wait_readable(writable)
    os.close(writable)
    assert ends == [True]


async def test_one_task_at_a_time_has_the_lock_and_none_waits_for_ever() -> None:
    lock, order = internals._Lock(), []

    async def takes(name: str) -> None:
        async with lock:
            order.append(name)
            await trio.testing.wait_all_tasks_blocked()
            order.append(name)

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            for name in "abc":
                nursery.start_soon(takes, name)
    assert order[::2] == order[1::2]
    assert sorted(order) == [*"aabbcc"]


def test_a_lock_that_pyfuse3_creates_in_init_is_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Releases before 3.4.1 create it there, later ones at the first request."""
    locks: list[object] = []

    def init(_handlers: object, _mountpoint: str, _options: set[str]) -> None:
        locks.append(pyfuse3.trio.Lock())  # type: ignore[attr-defined]

    monkeypatch.setattr(pyfuse3, "init", init)
    monkeypatch.setattr(pyfuse3, "trio", trio)
    operations = cast("View", None)
    session = Pyfuse3Session(operations)
    fd = os.open(tmp_path, os.O_PATH)
    session.mount("/", fd, set())
    os.close(fd)
    assert [type(lock) for lock in locks] == [internals._Lock]


@pytest.mark.parametrize(("version", "is_known"), [("3.1.9", False), ("3.2", True), ("3.5.1", True),
                                                   ("3.6.0", False), ("4.0", False)])  # fmt: skip
def test_an_unknown_pyfuse3_is_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch, version: str, is_known: bool
) -> None:
    monkeypatch.setattr(pyfuse3, "__version__", version)
    monkeypatch.setattr(pyfuse3, "trio", trio)
    _low().install()
    assert (pyfuse3.trio is not trio) == is_known  # type: ignore[attr-defined]
    assert internals.NamesOnlyEntry().works == is_known
