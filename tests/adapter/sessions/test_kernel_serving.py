"""The kernel's session while it serves: signals, helpers, answers that are held back.

A socket that keeps messages apart stands in for /dev/fuse.
"""

import errno
import mmap
import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest

from gitguardfs.base.signals import ENDING
from gitguardfs.fs.audit_log import AuditLog
from gitguardfs.fs.blocking import QUICK_IN_A_ROW, Blocking, LatencyTracker
from gitguardfs.sessions.kernel_session import session as module
from gitguardfs.sessions.kernel_session.session import KernelSession
from gitguardfs.view.view import View
from tests.adapter.world import Context, open_descriptors
from tests.support.kernel_client import KernelClient, checked, packed, request

LIMIT = 30.0
PAUSE = 0.1
"""Seconds for what must not happen."""
CONTEXT = Context(0, 0, 1)
INTERRUPT = 36


class FakeTree:
    """A tree with the given requests; statfs is answered with an errno, to be recognized."""

    def __init__(self, **verbs: Callable[..., Any]) -> None:
        self.descriptors = SimpleNamespace(request=0, passing=[])
        vars(self).update(verbs)

    def statfs(self, _caller: object) -> None:
        raise OSError(errno.EDQUOT, "")


def view_of(**verbs: Callable[..., Any]) -> View:
    return View(FakeTree(**verbs), AuditLog(None))  # type: ignore[arg-type]


class Quick(LatencyTracker):
    """One whose next call is expected to be quick."""

    def __init__(self) -> None:
        super().__init__()
        self._in_a_row = QUICK_IN_A_ROW


class Rate:
    """A rate limit that holds everything back for some seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def delay(self, *_: object) -> float:
        return self.seconds


def blocking(call: Callable[..., Any], *args: Any, **how: Any) -> Blocking[Any]:
    latency = how.pop("latency", None) or LatencyTracker()
    return Blocking(latency, call, *args, **{"is_small": True, "is_local": False, **how})


def done(reply: Any, **how: Any) -> Blocking[Any]:
    return blocking(lambda: reply, latency=Quick(), **{"is_local": True, **how})


class Device:
    """The kernel's end of a connection."""

    def __init__(self, session: KernelSession) -> None:
        self.session = session
        ours, self._kernel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._kernel.settimeout(LIMIT)
        self.has_ended = threading.Event()
        session._connection.fd = ours.detach()
        self._unique = 0

    def send(self, name: str, *args: Any) -> int:
        self._unique += 2
        self._kernel.send(packed(name, self._unique, args))
        return self._unique

    def interrupt(self) -> None:
        """Send a request that has no answer: it ends a read(2)."""
        self._unique += 2
        self._kernel.send(request(INTERRUPT, self._unique, 0, bytes(8)))

    def receive(self) -> tuple[int, int, bytes]:
        return checked(self._kernel.recv(1 << 21))

    def receives_nothing(self, seconds: float = PAUSE) -> bool:
        self._kernel.settimeout(seconds)
        try:
            return not self._kernel.recv(1 << 21)
        except TimeoutError:
            return True
        finally:
            self._kernel.settimeout(LIMIT)

    def is_served(self) -> bool:
        """Whether a plain request is answered, before any other."""
        unique = self.send("statfs", CONTEXT)
        return self.receive() == (unique, errno.EDQUOT, b"")

    def close(self) -> None:
        self._kernel.close()
        self.session.close()


@contextmanager
def serving(**verbs: Callable[..., Any]) -> Iterator[Device]:
    """Serve on a thread of its own."""
    device = Device(KernelSession(view_of(**verbs)))
    thread = threading.Thread(target=device.session.serve, args=(lambda: None,))
    thread.start()
    try:
        yield device
    finally:
        device.session.stop()
        device.interrupt()
        thread.join(LIMIT)
        assert not thread.is_alive()
        device.close()


@pytest.fixture(autouse=True)
def no_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "gc", SimpleNamespace(collect=int, freeze=int))


# Calls that wait


def test_a_slow_call_keeps_nobody_else_waiting() -> None:
    goes_on = threading.Event()

    def slow(_handle: int, _offset: int, size: int) -> bytes:
        assert goes_on.wait(LIMIT)
        return b"x" * size

    with serving(read=lambda *args: blocking(slow, *args)) as device:
        reads = {device.send("read", 1, 0, 5) for _ in range(3)}
        for _ in range(3):
            assert device.is_served()
        assert device.receives_nothing()
        goes_on.set()
        replies = [device.receive() for _ in reads]
        assert {unique for unique, *_ in replies} == reads
        assert all(rest == [0, b"xxxxx"] for _, *rest in replies)
        assert device.is_served()
        assert os.get_blocking(device.session._connection.fd)


def test_calls_of_one_queue_wait_for_one_another() -> None:
    under_way: list[int] = []
    most: dict[Any, int] = {}
    both = threading.Barrier(2)

    def call(queue: object, meets: bool) -> None:
        under_way.append(1)
        most[queue] = max(most.get(queue, 0), len(under_way))
        if meets:
            both.wait(LIMIT)
        else:
            time.sleep(0.01)
        under_way.pop()

    def fsync(handle: int, is_data: bool) -> Blocking[None]:
        queue = "a queue" if handle == 1 else None
        return blocking(call, queue, handle != 1, queue=queue)

    with serving(fsync=fsync) as device:
        for handle, count in ((1, 5), (2, 2)):
            sent = [device.send("fsync", handle, False) for _ in range(count)]
            got = [device.receive()[0] for _ in sent]
            assert sorted(got) == sent
            assert got == sent or handle == 2
        assert device.is_served()
        assert set(device.session._under_way._helpers) == {None}, (
            "the helper of a queue ends with its calls"
        )
    assert most == {"a queue": 1, None: 2}


def test_a_call_for_which_no_thread_can_be_started_is_never_made() -> None:
    """The executor keeps it, and a helper that it has would make it when the request is over."""
    made: list[int] = []
    goes_on, cleaned = threading.Event(), threading.Event()
    start = threading.Thread.start

    def fsync(handle: int, is_data: bool) -> Blocking[None]:
        if handle == 1:
            return blocking(goes_on.wait, LIMIT, finish=lambda _: None)
        return blocking(lambda: made.append(handle), cleanup=cleaned.set)

    with serving(fsync=fsync) as device, pytest.MonkeyPatch.context() as patch:
        first = device.send("fsync", 1, False)
        assert device.is_served()
        patch.setattr(threading.Thread, "start", lambda self: fail(self, start))
        second = device.send("fsync", 2, False)
        assert device.receive() == (second, errno.EAGAIN, b"")
        assert cleaned.is_set()
        goes_on.set()
        assert device.receive()[0] == first
        assert device.is_served()
    assert not made


def fail(thread: threading.Thread, start: Callable[[threading.Thread], None]) -> None:
    if thread.name.startswith("ThreadPoolExecutor"):
        raise RuntimeError("can't start new thread")
    start(thread)


def test_a_write_keeps_its_bytes_until_its_call_has_ended() -> None:
    goes_on = threading.Event()
    written: list[bytes] = []

    def write(_handle: int, _offset: int, data: memoryview) -> int:
        assert goes_on.wait(LIMIT)
        written.append(bytes(data))
        return len(data)

    with serving(write=lambda *args: blocking(write, *args)) as device:
        for _ in range(2):
            goes_on.clear()
            written.clear()
            texts = [bytes([letter]) * 5000 for letter in b"abc"]
            for text in texts:
                device.send("write", 1, 0, text)
                assert device.is_served()
            goes_on.set()
            for _ in texts:
                assert device.receive()[2][:4] == (5000).to_bytes(4, "little")
            assert sorted(written) == texts
        assert len(device.session._buffers) == module.SPARE_BUFFERS, "they are used again"


@pytest.mark.parametrize("is_quick", [True, False])
def test_a_call_that_is_expected_to_be_quick_is_awaited(
    monkeypatch: pytest.MonkeyPatch, is_quick: bool
) -> None:
    """It is answered before the next request is read; a call with a queue may take minutes."""
    monkeypatch.setattr(module, "QUICK_LIMIT", LIMIT)
    calls = [blocking(time.sleep, PAUSE, latency=Quick())]
    if not is_quick:
        calls = [
            blocking(time.sleep, PAUSE, latency=Quick(), queue="a queue"),
            blocking(time.sleep, PAUSE),
            blocking(time.sleep, PAUSE, latency=Quick()),  # with others under way
        ]
    client = KernelClient(view_of(fsync=lambda *_: calls.pop(0)), lambda _: None)
    count = len(calls)
    for unique in range(count):
        client.send(packed("fsync", unique, (1, False)))
        assert (unique in client.wire.replies) == is_quick
    while client.session._under_way.with_helpers:
        client.session._under_way.wait(-1)
        client.session._take_returned()
    assert len(client.wire.replies) == count
    client.close()


def test_a_call_that_is_quick_against_expectation_holds_nobody_up() -> None:
    goes_on = threading.Event()
    with serving(fsync=lambda *_: blocking(goes_on.wait, LIMIT, latency=Quick())) as device:
        device.send("fsync", 1, False)
        assert device.is_served()
        goes_on.set()
        assert device.receive()[1] == errno.EIO, "the call returned something"


def test_a_local_call_that_is_quick_runs_on_the_serving_thread() -> None:
    threads: list[str] = []

    def call() -> None:
        threads.append(threading.current_thread().name)

    def fsync(handle: int, _is_data: bool) -> Blocking[None]:
        return blocking(call, latency=Quick() if handle == 1 else None, is_local=True)

    with serving(fsync=fsync) as device:
        for handle in (1, 2):
            device.send("fsync", handle, False)
            assert device.receive()[1] == 0
    assert threads[0].startswith("Thread-")
    assert threads[1].startswith("ThreadPoolExecutor")


def test_helpers_leave_the_signals_to_the_main_thread() -> None:
    """The thread that watches the end of the daemon sees those that no thread takes."""
    blocked: list[set[int]] = []

    def call() -> None:
        blocked.append({*signal.pthread_sigmask(signal.SIG_BLOCK, [])})

    with serving(fsync=lambda *_: blocking(call)) as device:
        device.send("fsync", 1, False)
        assert device.receive()[1] == 0
    assert blocked[0] >= {*ENDING}


@pytest.mark.parametrize("step", ["call", "finish", "rate", "reply", "cleanup"])
@pytest.mark.parametrize("is_local", [True, False])
def test_a_step_that_fails_is_one_answer(
    step: str, is_local: bool, caplog: pytest.LogCaptureFixture
) -> None:
    cleaned: list[int] = []

    def fails(*_: object) -> Any:
        raise KeyError("put in by hand")

    def cleanup() -> None:
        cleaned.append(1)
        if step == "cleanup":
            fails()

    how: dict[str, Any] = {"latency": Quick(), "is_local": is_local, "cleanup": cleanup}
    if step == "finish":
        how["finish"] = fails
    if step == "rate":
        how["rate"] = SimpleNamespace(delay=fails)
    call = fails if step == "call" else lambda: "text" if step == "reply" else b"x"
    with serving(read=lambda *_: blocking(call, **how)) as device:
        unique = device.send("read", 1, 0, 5)
        assert device.receive() == (unique, errno.EIO, b"")
        assert device.is_served()
    assert cleaned == [1]
    assert "read failed" in caplog.text


# Rates


def test_an_answer_is_held_back_until_it_is_due_and_holds_up_none() -> None:
    with serving(read=lambda *_: done(b"x", rate=Rate(0.3))) as device:
        since = time.monotonic()
        first, second = device.send("read", 1, 0, 1), device.send("read", 1, 0, 1)
        assert device.is_served()
        assert time.monotonic() - since < 0.3
        assert [device.receive()[0], device.receive()[0]] == [first, second]
        assert 0.3 <= time.monotonic() - since < 5
        assert device.is_served()
        assert os.get_blocking(device.session._connection.fd)


def test_the_answer_that_is_due_first_comes_first() -> None:
    rates = iter([0.4, 0.1])
    with serving(read=lambda *_: done(b"x", rate=Rate(next(rates)))) as device:
        first, second = device.send("read", 1, 0, 1), device.send("read", 1, 0, 1)
        assert [device.receive()[0], device.receive()[0]] == [second, first]


@pytest.mark.parametrize("has_helper", [True, False])
def test_answers_that_are_held_back_come_at_once_at_the_end(has_helper: bool) -> None:
    goes_on = threading.Event()
    since = time.monotonic()

    def flush(_handle: int, _owner: int) -> Blocking[None]:
        return blocking(lambda: goes_on.wait(LIMIT) and None)

    with serving(read=lambda *_: done(b"x", rate=Rate(1e9)), flush=flush) as device:
        flushed = device.send("flush", 1) if has_helper else None
        unique = device.send("read", 1, 0, 1)
        assert device.is_served()
        device.session.stop()
        assert device.receive()[0] == unique
        goes_on.set()
        if has_helper:
            assert device.receive()[0] == flushed
    assert time.monotonic() - since < LIMIT


def test_a_connection_that_is_cut_waits_for_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the answers any more."""
    monkeypatch.setattr(module, "_ENDED", (errno.ECONNRESET,))
    device = Device(KernelSession(view_of(read=lambda *_: done(b"x", rate=Rate(1000)))))
    thread = threading.Thread(target=device.session.serve, args=(lambda: None,))
    monkeypatch.setattr(device.session._connection, "send", lambda *_: None)
    os.write(device.session._connection.fd, b"unread")  # so that closing is a reset
    thread.start()
    device.send("read", 1, 0, 1)
    while not device.session._under_way._held_back:
        time.sleep(0.01)
    device._kernel.close()
    thread.join(LIMIT / 3)
    ended = not thread.is_alive()
    device.session.stop()
    thread.join(LIMIT)
    device.session.close()
    assert ended


# Signals, which Python gives to the main thread: that one serves here

SIGNAL = signal.SIGUSR1


@contextmanager
def handled(handler: Callable[[], None]) -> Iterator[None]:
    before = signal.signal(SIGNAL, lambda *_: handler())
    try:
        yield
    finally:
        signal.signal(SIGNAL, before)


def serve_with(device: Device, kernel: Callable[[], None], handler: Callable[[], None]) -> None:
    """Serve on this thread while ``kernel`` runs on another; a signal calls ``handler``."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            kernel()
        except BaseException as error:
            failures.append(error)
            device.session.stop()
        finally:
            with suppress(OSError):
                device.interrupt()  # so that a session that should have ended does, too

    thread = threading.Thread(target=run)
    with handled(handler):
        thread.start()
        device.session.serve(lambda: None)
        device.has_ended.set()
        thread.join(LIMIT)
    device.close()
    assert not thread.is_alive()
    assert not failures, failures


def send_signal() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, SIGNAL)


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def is_asleep() -> bool:
    """Whether the main thread waits in a system call."""
    with open(f"/proc/self/task/{os.getpid()}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "S"


def test_a_call_is_made_at_once_while_the_session_is_idle() -> None:
    made: list[int] = []
    device = Device(KernelSession(view_of()))

    def kernel() -> None:
        assert device.is_served()
        wait_until(is_asleep)
        send_signal()
        wait_until(lambda: made)
        assert device.is_served()
        device.session.call_soon(device.session.stop)

    serve_with(device, kernel, lambda: device.session.call_soon(lambda: made.append(1)))
    assert made == [1]


def test_a_signal_that_another_thread_takes_is_obeyed_while_the_session_is_idle() -> None:
    """As one that comes just before read(2): no system call of the main thread is interrupted."""
    made: list[int] = []
    before = open_descriptors()
    device = Device(KernelSession(view_of()))

    def kernel() -> None:
        assert device.is_served()
        wait_until(is_asleep)
        signal.pthread_kill(threading.get_ident(), SIGNAL)
        wait_until(lambda: made)
        device.session.call_soon(device.session.stop)

    serve_with(device, kernel, lambda: device.session.call_soon(lambda: made.append(1)))
    assert made == [1]
    assert open_descriptors() == before


def test_stop_ends_a_session_that_is_idle() -> None:
    device = Device(KernelSession(view_of()))

    def kernel() -> None:
        assert device.is_served()
        wait_until(is_asleep)
        send_signal()
        assert device.has_ended.wait(LIMIT / 3)

    serve_with(device, kernel, device.session.stop)


def test_a_call_within_a_request_is_made_after_its_answer() -> None:
    made: list[int] = []

    def access(*_: object) -> None:
        signal.raise_signal(SIGNAL)
        assert not made

    session = KernelSession(view_of(access=access))
    device = Device(session)

    def call() -> None:
        made.append(session.answers)
        session.stop()

    def kernel() -> None:
        unique = device.send("access", 1, os.R_OK, CONTEXT)
        assert device.receive() == (unique, 0, b"")

    serve_with(device, kernel, lambda: session.call_soon(call))
    assert made == [1]


def test_a_stop_within_a_request_comes_after_its_answer_and_before_the_next() -> None:
    asked: list[int] = []

    def access(_caller: object, node: int, _mask: int) -> None:
        asked.append(node)
        signal.raise_signal(SIGNAL)

    device = Device(KernelSession(view_of(access=access)))

    def kernel() -> None:
        unique = device.send("access", 1, os.R_OK, CONTEXT)
        device.send("access", 2, os.R_OK, CONTEXT)
        assert device.receive() == (unique, 0, b"")
        assert device.receives_nothing()

    serve_with(device, kernel, device.session.stop)
    assert asked == [1]


class Trapped(KernelSession):
    """A session that gets signals just before read(2), as many as ``signals`` says."""

    signals = 0

    @property
    def _buffer(self) -> mmap.mmap:
        if self.signals and self._is_between_requests:
            self.signals -= 1
            signal.raise_signal(SIGNAL)
        return self._kept

    @_buffer.setter
    def _buffer(self, buffer: mmap.mmap) -> None:
        self._kept = buffer


def test_a_signal_just_before_read_is_not_missed() -> None:
    made: list[int] = []
    session = Trapped(view_of())
    device = Device(session)
    session.signals = 1

    def call() -> None:
        made.append(session.answers)
        session.stop()

    def kernel() -> None:
        assert device.has_ended.wait(LIMIT / 3)

    serve_with(device, kernel, lambda: session.call_soon(call))
    assert made == [0]


def test_a_request_that_is_there_when_the_stop_comes_is_answered_or_left() -> None:
    """The kernel fails those that nobody has read when the connection ends; it loses none."""
    session = Trapped(view_of())
    device = Device(session)
    sent = [device.send("statfs", CONTEXT) for _ in range(3)]
    session.signals = 1
    serve_with(device, lambda: device.has_ended.wait(LIMIT / 3), session.stop)
    assert session.answers in (0, 1), sent


class SignalledQueue(deque[Any]):
    """Calls to be made; a signal comes when the session has just seen that there are any."""

    looks = 0
    at = 0
    """The look at which the signal comes."""

    def __bool__(self) -> bool:
        has_any = len(self) > 0
        self.looks += has_any
        if has_any and self.looks == self.at:
            signal.raise_signal(SIGNAL)
        return has_any


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_second_signal_while_calls_are_made_takes_none_away(at: int) -> None:
    made: list[str] = []
    session = KernelSession(view_of())
    device = Device(session)
    session._calls = SignalledQueue()
    session._calls.at = at
    session.call_soon(lambda: made.append("first"))

    def kernel() -> None:
        assert device.is_served()
        session.call_soon(session.stop)

    serve_with(device, kernel, lambda: session.call_soon(lambda: made.append("second")))
    assert sorted(made) == ["first", "second"][: 1 + (session._calls.looks >= at)]


@pytest.mark.parametrize("is_stop", [True, False])
def test_a_signal_while_a_helper_works(is_stop: bool) -> None:
    goes_on = threading.Event()
    made: list[int] = []

    def slow(*_: object) -> bytes:
        assert goes_on.wait(LIMIT)
        return b"x"

    session = KernelSession(view_of(read=lambda *args: blocking(slow, *args)))
    device = Device(session)

    def call() -> None:
        made.append(session.answers)
        if is_stop:
            session.stop()

    def kernel() -> None:
        unique = device.send("read", 1, 0, 1)
        assert device.is_served()
        wait_until(is_asleep)
        send_signal()
        wait_until(lambda: made)
        if not is_stop:
            assert device.is_served()
        goes_on.set()
        assert device.receive() == (unique, 0, b"x")
        session.call_soon(session.stop)

    serve_with(device, kernel, lambda: session.call_soon(call))
    assert made == [1]


def test_calls_before_serving_are_made_there() -> None:
    made: list[str] = []
    session = KernelSession(view_of())
    device = Device(session)
    session.call_soon(lambda: made.append("early"))
    session.call_soon(session.stop)
    assert made == []
    serve_with(device, lambda: None, lambda: None)
    assert made == ["early"]
    session.call_soon(lambda: made.append("late"))
    assert made == ["early"]
