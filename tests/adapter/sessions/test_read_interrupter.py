"""Results of threads are delivered although the read of the next request does not return."""

import ctypes
import errno
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest
import trio
import trio.testing

from gitguardfs.sessions.pyfuse3_session.io_thread import IoThread
from gitguardfs.sessions.pyfuse3_session.read_interrupter import PERIOD, ReadInterrupter
from gitguardfs.sessions.pyfuse3_session.request_loop import RequestLoop

pytestmark = pytest.mark.timeout(0)  # pytest-timeout uses the timer that is tested here


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    handler = signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, handler)


@pytest.fixture
def read_in_vain() -> Iterator[Callable[[], int]]:
    """Read what does not come, or only when the test has failed; returns the errno, or 0."""
    libc = ctypes.PyDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(1)
    readable, writable = os.pipe()
    late = subprocess.Popen(["sh", "-c", "sleep 20; echo"], stdout=writable)

    def read() -> int:
        return 0 if libc.read(readable, buffer, 1) >= 0 else ctypes.get_errno()

    yield read
    late.kill()
    late.wait()
    os.close(readable)
    os.close(writable)


@pytest.mark.parametrize("helps", [False, True], ids=["thread", "io"])
async def test_a_read_is_interrupted_while_a_thread_has_something_to_deliver(
    read_in_vain: Callable[[], int], helps: bool
) -> None:
    requests = RequestLoop()
    requests._io_thread = IoThread() if helps else None
    requests._interrupter.install()
    delivered: list[object] = []

    async def wait() -> None:
        delivered.append(await requests.run_in_thread(time.sleep, PERIOD / 2))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert read_in_vain() == errno.EINTR
    assert delivered == [None]
    if requests._io_thread is not None:
        requests._io_thread.close()


async def test_it_ends_when_everything_is_delivered() -> None:
    interrupter = ReadInterrupter()
    interrupter.install()
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    interrupter.start()
    interrupter.start()
    interrupter.stop()
    for _ in range(3):
        await trio.sleep(PERIOD)
        assert signal.getitimer(signal.ITIMER_REAL)[1] == pytest.approx(PERIOD)
    interrupter.stop()
    with trio.fail_after(20):
        while signal.getitimer(signal.ITIMER_REAL) != (0, 0):
            await trio.sleep(PERIOD)
    interrupter.start()
    assert signal.getitimer(signal.ITIMER_REAL)[1] == pytest.approx(PERIOD)


def test_a_signal_that_nobody_catches_is_not_sent() -> None:
    ReadInterrupter().start()
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
