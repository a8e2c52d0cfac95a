"""Root's signals to the daemon: each is noted at once and acted on between two requests."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from threading import Timer

import pytest

from gitguardfs.base.signals import ENDING, REREAD, STOP_KEEP_SEAL, UNMOUNTED
from gitguardfs.mounting import signals
from gitguardfs.mounting.signals import SignalReceiver


class _Session:
    """A session whose requests never end; it makes calls when the test says so."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.has_ended = False
        self.stopped = 0

    def call_soon(self, call: Callable[[], None]) -> None:
        if not self.has_ended:
            self.calls.append(call)

    def stop(self) -> None:
        self.stopped += 1

    def make_calls(self) -> None:
        while self.calls:
            self.calls.pop(0)()


class _Mount:
    """A mount with its receiver of signals, and what that did."""

    def __init__(self) -> None:
        self.session = _Session()
        self.is_unmounted = False
        self.began_to_end = 0
        self.reread = 0
        self.receiver = SignalReceiver(
            self.session,  # type: ignore[arg-type]
            lambda: self.is_unmounted,
            lambda: setattr(self, "began_to_end", self.began_to_end + 1),
            lambda: setattr(self, "reread", self.reread + 1),
            lambda: None,
        )
        self.receiver.install()

    def send(self, number: signal.Signals) -> None:
        os.kill(os.getpid(), number)
        self.session.make_calls()

    def end(self, *, waits: bool = True) -> signal.Signals | None:
        self.session.has_ended = True
        return self.receiver.end(waits=waits)


@pytest.fixture
def mount() -> Iterator[_Mount]:
    before = {number: signal.getsignal(number) for number in (*ENDING, UNMOUNTED, REREAD)}
    yield _Mount()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_stops_the_session_and_is_returned(mount: _Mount, number: signal.Signals) -> None:
    mount.receiver.note_ready()
    mount.send(number)
    assert (mount.session.stopped, mount.began_to_end) == (1, 1)
    assert mount.end() == number


def test_before_the_mount_answers_every_signal_keeps_the_seal(mount: _Mount) -> None:
    mount.send(signal.SIGTERM)
    assert mount.session.stopped == 1
    mount.receiver.note_ready()
    assert mount.end() == STOP_KEEP_SEAL


def test_nothing_is_done_in_the_handler_itself(mount: _Mount) -> None:
    """The handler may interrupt the event loop anywhere."""
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), REREAD)
    assert (mount.session.stopped, mount.reread) == (0, 0)
    mount.session.make_calls()
    assert (mount.session.stopped, mount.reread) == (1, 1)


def test_a_view_without_a_seal_does_not_wait_for_it(mount: _Mount) -> None:
    mount.is_unmounted = True
    since = time.monotonic()
    assert mount.end(waits=False) is None
    assert time.monotonic() - since < signals.HELPER_LIMIT


@pytest.mark.one_thread
def test_held_signals_are_received_once_the_receiver_is_installed(mount: _Mount) -> None:
    mount.receiver.note_ready()
    signals.hold()
    signal.raise_signal(signal.SIGTERM)  # to this thread: others of the test run do not hold it
    assert mount.session.stopped == 0
    mount.receiver.install()
    mount.session.make_calls()
    assert mount.session.stopped == 1


def test_a_signal_that_the_session_has_not_acted_on_is_not_lost(mount: _Mount) -> None:
    mount.receiver.note_ready()
    os.kill(os.getpid(), signal.SIGTERM)
    assert mount.end() == signal.SIGTERM


def test_the_helpers_signal_counts_only_once_the_view_is_unmounted(mount: _Mount) -> None:
    mount.receiver.note_ready()
    mount.send(UNMOUNTED)
    assert mount.end() is None


def test_processes_that_still_use_the_view_are_served(mount: _Mount) -> None:
    mount.receiver.note_ready()
    mount.is_unmounted = True
    mount.send(UNMOUNTED)
    assert mount.session.stopped == 0
    mount.send(signal.SIGTERM)
    assert mount.session.stopped == 1
    assert mount.end() == signal.SIGTERM


@pytest.mark.parametrize("number", [UNMOUNTED, signal.SIGTERM])
def test_after_an_unmount_the_helpers_signal_is_waited_for(
    mount: _Mount, number: signal.Signals
) -> None:
    mount.receiver.note_ready()
    mount.is_unmounted = True
    timer = Timer(0.1, os.kill, (os.getpid(), number))
    timer.start()
    assert mount.end() == number
    timer.join()


def test_it_is_not_waited_for_for_ever(mount: _Mount, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "HELPER_LIMIT", 0.05)
    mount.is_unmounted = True
    assert mount.end() is None
    assert mount.began_to_end == 1


def test_without_an_unmount_it_is_not_waited_for(mount: _Mount) -> None:
    since = time.monotonic()
    assert mount.end() is None
    assert time.monotonic() - since < signals.HELPER_LIMIT


def test_in_the_end_all_signals_are_ignored(mount: _Mount) -> None:
    mount.receiver.note_ready()
    mount.send(signal.SIGTERM)
    assert mount.end() == signal.SIGTERM
    for number in (*ENDING, UNMOUNTED, REREAD):
        os.kill(os.getpid(), number)
    assert (mount.session.stopped, mount.reread) == (1, 0)
