"""When an ending daemon stops waiting for its source."""

import itertools
import time
from threading import Event

import pytest

from gitguardfs.mounting import drain

FOR_EVER = 1000.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "CHECK_PERIOD", 0.01)


def test_a_source_that_goes_on_answering_is_given_up_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drain, "SILENCE", FOR_EVER)
    monkeypatch.setattr(drain, "LIMIT", 0.05)
    given_up = Event()
    answers = itertools.count()
    with drain.Drain(lambda: next(answers), given_up.set) as watch:
        watch.begin()
        assert given_up.wait(30)


def test_answers_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer resets the time without an answer; the clock is the test's own."""
    clock = itertools.count(step=drain.SILENCE * 0.6)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(drain, "LIMIT", FOR_EVER)
    given_up, enough = Event(), Event()
    answers = itertools.count()

    def answer() -> int:
        count = next(answers)
        if count > 20:
            enough.set()
        return count

    with drain.Drain(answer, given_up.set) as watch:
        watch.begin()
        assert enough.wait(30)
        assert not given_up.is_set()


def test_nothing_is_given_up_before_the_end_and_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "SILENCE", 0.0)
    given_up = Event()
    watch = drain.Drain(lambda: 7, given_up.set)
    with watch:
        assert not watch._done.wait(0.1)
    assert not given_up.is_set()
