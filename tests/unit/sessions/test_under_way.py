"""Requests that wait for locks: which are tried, and when."""

import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from gitguardfs.sessions.kernel_session import under_way
from gitguardfs.sessions.kernel_session.under_way import MOST_TRIES, UnderWay

WAITING, OTHER = 7, 8
"""Nodes."""
MANY = 800


class Locks:
    """Requests that wait, by unique, and what was tried since ``tried`` was last taken."""

    def __init__(self, requests: UnderWay) -> None:
        self.requests = requests
        self.free: set[int] = set()
        self._tried: list[int] = []

    def add(self, unique: int, node: int) -> None:
        self.requests.try_later(unique, node, lambda: self._try(unique))

    def _try(self, unique: int) -> bool:
        self._tried.append(unique)
        return unique in self.free

    def tried(self) -> list[int]:
        self.requests.try_again()
        found, self._tried = self._tried, []
        return found


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that sets the clock."""
    time = [0.0]
    monkeypatch.setattr(under_way, "monotonic", lambda: time[0])
    return lambda at: time.__setitem__(0, at)


@pytest.fixture
def locks(now: Callable[[float], None]) -> Iterator[Locks]:
    connection: Any = SimpleNamespace(fd=os.eventfd(0))
    requests = UnderWay(connection)
    locks = Locks(requests)
    now(1.0)
    locks.tried()
    for unique in range(MANY):
        locks.add(unique, WAITING)
    locks.add(MANY, OTHER)
    assert len(locks.tried()) == MOST_TRIES
    yield locks
    requests.close()
    os.close(connection.fd)


def test_a_request_on_another_file_tries_nothing(locks: Locks) -> None:
    locks.requests.try_now(OTHER + 1)
    assert locks.tried() == []
    locks.requests.try_now(OTHER)
    assert locks.tried() == [MANY]


def test_some_are_tried_at_a_time_and_each_in_its_turn(
    locks: Locks, now: Callable[[float], None]
) -> None:
    seen: list[int] = []
    for round_ in range(2 * MANY // MOST_TRIES + 2):
        now(2.0 + round_)
        tried = locks.tried()
        assert len(tried) <= MOST_TRIES
        seen += tried
    assert set(seen) == set(range(MANY + 1))
    assert locks.tried() == [], "the clock stands still"


def test_a_lock_that_many_can_share_is_given_to_all_at_once(locks: Locks) -> None:
    locks.free |= set(range(MANY))
    locks.requests.try_now(WAITING)
    given = [unique for _ in range(MANY // MOST_TRIES + 1) for unique in locks.tried()]
    assert sorted(given) == list(range(MANY))
    assert locks.requests, "one waits for the other file"
    locks.free.add(MANY)
    locks.requests.try_now(OTHER)
    assert locks.tried() == [MANY]
    assert not locks.requests


def test_who_gives_up_is_not_tried(locks: Locks) -> None:
    assert locks.requests.give_up(MANY)
    assert not locks.requests.give_up(MANY)
    locks.requests.try_now(OTHER)
    assert locks.tried() == []
    assert sorted(locks.requests.give_up_all()) == list(range(MANY))
    assert not locks.requests
