"""Calls that may take their time: at once if they do not, and nobody else waits for long."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from gitguardfs.sessions.pyfuse3_session.busy_poll import Turns
from gitguardfs.sessions.pyfuse3_session.io_thread import Helper
from gitguardfs.sessions.pyfuse3_session.read_interrupter import Tick
from gitguardfs.sessions.pyfuse3_session.request_loop import PATIENCE, Requests

LIMIT = 20


@pytest.fixture
def requests() -> Iterator[Requests]:
    made = Requests()
    made._helper = Helper()
    yield made
    made._helper.close()


async def test_what_it_returns_and_raises_is_the_callers(requests: Requests) -> None:
    assert await requests.wait(divmod, 7, 3) == (2, 1)
    with pytest.raises(ZeroDivisionError):
        await requests.wait(divmod, 7, 0)
    with pytest.raises(OSError, match="Bad file descriptor"):
        await requests.wait(os.fsync, 10**6)
    assert await requests.wait(divmod, 9, 4) == (2, 1)
    assert await requests.wait(threading.get_ident) != threading.get_ident()


async def test_a_quick_one_is_waited_for_without_a_turn_of_the_loop(
    requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gitguardfs.sessions.pyfuse3_session.request_loop.PATIENCE", LIMIT * 1000)
    turns = []

    async def other() -> None:
        turns.append("other")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        for _ in range(5):
            await requests.wait(divmod, 7, 3, quick=True)
        assert turns == []


async def test_others_go_on_while_one_takes_its_time(requests: Requests) -> None:
    """Also others that take their time."""
    goes_on = threading.Event()
    done = []

    async def slow() -> None:
        done.append(await requests.wait(goes_on.wait, LIMIT))

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(slow)
        await trio.testing.wait_all_tasks_blocked()
        assert await requests.wait(divmod, 7, 3) == (2, 1)
        assert done == []
        goes_on.set()
    assert done == [True] * 3
    assert await requests.wait(divmod, 9, 4) == (2, 1)


async def test_it_is_not_waited_for_behind_another(
    requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each that takes its time would cost everybody the patience."""
    monkeypatch.setattr("gitguardfs.sessions.pyfuse3_session.request_loop.PATIENCE", LIMIT * 1000)
    goes_on = threading.Event()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(requests.pause, LIMIT)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(requests.wait, goes_on.wait, LIMIT)
        await trio.testing.wait_all_tasks_blocked()
        assert not requests._helper.is_idle
        goes_on.set()
        requests._ending.set()


async def test_a_request_is_not_kept_waiting_by_one_that_is_not_expected_to_be_quick(
    requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gitguardfs.sessions.pyfuse3_session.request_loop.PATIENCE", LIMIT * 1000)
    requests._turns = turns = Turns(lambda: True, lambda: False, Tick())
    goes_on = threading.Event()
    readable, writable = os.pipe()
    os.write(writable, b"request")
    await turns.wait_readable(readable)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(requests.wait, goes_on.wait, LIMIT)
        await trio.testing.wait_all_tasks_blocked()
        assert await requests.wait(divmod, 7, 3) == (2, 1)
        goes_on.set()
    os.close(readable)
    os.close(writable)


async def test_who_gives_up_does_not_leave_it_half_done(requests: Requests) -> None:
    """What it has begun is done to its end, and the next caller gets his own answer."""
    goes_on = threading.Event()
    done = []

    async def let_go() -> None:
        await trio.sleep(5 * PATIENCE / 1000)
        goes_on.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(let_go)
        with trio.CancelScope() as scope:
            scope.cancel()
            done.append(await requests.wait(goes_on.wait, LIMIT))
    assert done == [True]
    assert await requests.wait(divmod, 7, 3) == (2, 1)


def test_its_end_leaves_neither_thread_nor_descriptor() -> None:
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    helper = Helper()
    assert threading.active_count() == threads + 1
    helper.close()
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_call_that_never_ends_does_not_keep_the_process() -> None:
    code = (
        "import threading; from gitguardfs.sessions.pyfuse3_session.io_thread import Helper;"
        "Helper().give(threading.Event().wait, ())"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=LIMIT)
