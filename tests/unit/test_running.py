"""Which process is taken for a guard's daemon."""

from __future__ import annotations

import pytest

from gitguardfs.guest import running
from gitguardfs.mounts import FSTYPE, Mount

GUARD = Mount(device="0:77", path=b"/view", fstype=FSTYPE, source="/source", number=5)
FORMER, CURRENT = (10, 100), (20, 200)
"""Process number and start; the former one is still ending."""


@pytest.mark.parametrize("listed", [(FORMER, CURRENT), (CURRENT, FORMER)])
@pytest.mark.parametrize("device", [77, None], ids=["told by the kernel", "by the arguments"])
def test_of_two_with_the_same_connection_the_last_one_to_be_started_is_the_daemon(
    monkeypatch: pytest.MonkeyPatch, listed: tuple[tuple[int, int], ...], device: int | None
) -> None:
    processes = [
        running._Process(
            running.Daemon(pid, ()), frozenset({device}), ("/source", "/view"), True, start
        )
        for pid, start in listed
    ]
    monkeypatch.setattr(running, "_processes", lambda: iter(processes))
    found = running.daemon_of(GUARD)
    assert found is not None and found.pid == CURRENT[0]


def test_what_serves_another_connection_is_not_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    other = running._Process(
        running.Daemon(10, ()), frozenset({78}), ("/source", "/view"), True, 100
    )
    monkeypatch.setattr(running, "_processes", lambda: iter([other]))
    assert running.daemon_of(GUARD) is None
