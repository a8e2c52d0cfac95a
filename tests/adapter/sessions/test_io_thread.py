"""Calls that may be slow: quick ones end at once, slow ones do not hold up other requests."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from gitguardfs.sessions.pyfuse3_session.internals import INLINE_WAIT
from gitguardfs.sessions.pyfuse3_session.io_thread import IoThread
from gitguardfs.sessions.pyfuse3_session.request_loop import RequestLoop

LIMIT = 20


@pytest.fixture
def requests() -> Iterator[RequestLoop]:
    made = RequestLoop()
    made._io_thread = IoThread()
    yield made
    made._io_thread.close()


async def test_what_it_returns_and_raises_is_the_callers(requests: RequestLoop) -> None:
    assert await requests.run_in_thread(divmod, 7, 3) == (2, 1)
    with pytest.raises(ZeroDivisionError):
        await requests.run_in_thread(divmod, 7, 0)
    with pytest.raises(OSError, match="Bad file descriptor"):
        await requests.run_in_thread(os.fsync, 10**6)
    assert await requests.run_in_thread(divmod, 9, 4) == (2, 1)
    assert await requests.run_in_thread(threading.get_ident) != threading.get_ident()


async def test_others_go_on_while_one_takes_its_time(requests: RequestLoop) -> None:
    """The others may be slow, too."""
    goes_on = threading.Event()
    done = []

    async def slow() -> None:
        done.append(await requests.run_in_thread(goes_on.wait, LIMIT))

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(slow)
        await trio.testing.wait_all_tasks_blocked()
        assert await requests.run_in_thread(divmod, 7, 3) == (2, 1)
        assert done == []
        goes_on.set()
    assert done == [True] * 3
    assert await requests.run_in_thread(divmod, 9, 4) == (2, 1)


async def test_it_is_not_waited_for_behind_another(
    requests: RequestLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each slow call would hold up all requests for as long as INLINE_WAIT."""
    monkeypatch.setattr("gitguardfs.sessions.pyfuse3_session.internals.INLINE_WAIT", LIMIT * 1000)
    goes_on = threading.Event()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(requests.pause, LIMIT)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(requests.run_in_thread, goes_on.wait, LIMIT)
        await trio.testing.wait_all_tasks_blocked()
        assert not requests._io_thread.is_idle
        goes_on.set()
        requests._ending.set()


async def test_a_request_is_not_kept_waiting_by_one_that_is_not_expected_to_be_quick(
    requests: RequestLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gitguardfs.sessions.pyfuse3_session.internals.INLINE_WAIT", LIMIT * 1000)
    goes_on = threading.Event()
    readable, writable = os.pipe()
    os.write(writable, b"request")
    await requests._request_wait.wait_readable(readable)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(requests.run_in_thread, goes_on.wait, LIMIT)
        await trio.testing.wait_all_tasks_blocked()
        assert await requests.run_in_thread(divmod, 7, 3) == (2, 1)
        goes_on.set()
    os.close(readable)
    os.close(writable)


async def test_who_gives_up_does_not_leave_it_half_done(requests: RequestLoop) -> None:
    """A call that has begun finishes, and the next caller gets its own result."""
    goes_on = threading.Event()
    done = []

    async def release() -> None:
        await trio.sleep(5 * INLINE_WAIT / 1000)
        goes_on.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(release)
        with trio.CancelScope() as scope:
            scope.cancel()
            done.append(await requests.run_in_thread(goes_on.wait, LIMIT))
    assert done == [True]
    assert await requests.run_in_thread(divmod, 7, 3) == (2, 1)


def test_its_end_leaves_neither_thread_nor_descriptor() -> None:
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    io_thread = IoThread()
    assert threading.active_count() == threads + 1
    io_thread.close()
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_call_that_never_ends_does_not_keep_the_process() -> None:
    code = (
        "import threading; from gitguardfs.sessions.pyfuse3_session.io_thread import IoThread;"
        "IoThread().submit(threading.Event().wait, ())"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=LIMIT)
