"""Waiting for requests: at once if one is there, in trio's loop if none comes."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pyfuse3
import pytest
import trio
import trio.testing

from gitguardfs.fuse import turns


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


async def test_what_is_there_is_not_waited_for_in_the_loop(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = []

    async def wait_readable(fd: int) -> None:
        waited.append(fd)

    low = turns._LowLevel(lambda: True)
    monkeypatch.setattr(trio.lowlevel, "wait_readable", wait_readable)
    os.write(pipe[1], b"x")
    for _ in range(turns.REQUESTS_IN_A_ROW):
        await low.wait_readable(pipe[0])
    assert waited == []
    for _ in range(turns.REQUESTS_IN_A_ROW + 1):
        await low.wait_readable(pipe[0])
    assert waited == [pipe[0]]


@pytest.mark.parametrize("is_alone", [True, False])
async def test_what_comes_later_is_waited_for(pipe: tuple[int, int], is_alone: bool) -> None:
    low = turns._LowLevel(lambda: is_alone)
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


async def test_it_is_trio_in_everything_else() -> None:
    stand_in = turns._Trio(lambda: True)
    assert stand_in.lowlevel.current_task() is trio.lowlevel.current_task()
    assert stand_in.ClosedResourceError is trio.ClosedResourceError
    async with stand_in.Lock():
        pass


def test_a_pyfuse3_that_does_not_know_trio_by_that_name_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = object()
    monkeypatch.setattr(pyfuse3, "trio", other)
    turns.save_turns(lambda: True)
    assert pyfuse3.trio is other  # type: ignore[attr-defined]
    monkeypatch.setattr(pyfuse3, "trio", trio)
    turns.save_turns(lambda: True)
    assert isinstance(pyfuse3.trio, turns._Trio)  # type: ignore[attr-defined]
