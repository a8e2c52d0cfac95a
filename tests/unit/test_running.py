"""Which process is taken for a guard's daemon."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gitguardfs.linux.mountinfo import FSTYPE, MountInfo
from gitguardfs.mounting import guards

GUARD = MountInfo(device="0:77", mount_point=b"/view", fstype=FSTYPE, source="/source", mnt_id=5)
FORMER, CURRENT = (10, 100), (20, 200)
"""Process number and start; the former one is still ending."""


@pytest.mark.parametrize("listed", [(FORMER, CURRENT), (CURRENT, FORMER)])
@pytest.mark.parametrize("device", [77, None], ids=["told by the kernel", "by the arguments"])
def test_of_two_with_the_same_connection_the_last_one_to_be_started_is_the_daemon(
    monkeypatch: pytest.MonkeyPatch, listed: tuple[tuple[int, int], ...], device: int | None
) -> None:
    processes = [
        guards._Process(
            guards.Daemon(pid, ()), frozenset({device}), ("/source", "/view"), True, start
        )
        for pid, start in listed
    ]
    monkeypatch.setattr(guards, "_processes", lambda: iter(processes))
    found = guards.daemon_of(GUARD)
    assert found is not None and found.pid == CURRENT[0]


def test_what_serves_another_connection_is_not_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    other = guards._Process(guards.Daemon(10, ()), frozenset({78}), ("/source", "/view"), True, 100)
    monkeypatch.setattr(guards, "_processes", lambda: iter([other]))
    assert guards.daemon_of(GUARD) is None


@pytest.mark.parametrize(
    "given", ["/home/view", "/home/view/", "/home/../home/view", "view", "./view/", "link/view"]
)
def test_a_mount_point_is_recognised_however_it_was_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str
) -> None:
    """Before Linux 6.17 the arguments are all there is."""
    (tmp_path / "home/view").mkdir(parents=True)
    (tmp_path / "link").symlink_to("home")
    path = given if given in ("view", "./view/") else f"{tmp_path}/{given.lstrip('/')}"
    guard = replace(GUARD, mount_point=bytes(tmp_path / "home/view"))
    process = guards._Process(
        guards.Daemon(10, ()), frozenset({None}), ("/source", path), True, 100
    )
    monkeypatch.setattr(guards, "_processes", lambda *_: iter([process]))
    assert guards.daemon_of(guard) == process.daemon
    monkeypatch.setattr(guards.mountinfo, "listed", lambda: [guard])
    assert not guards.serves_nothing("10")


def test_another_mount_point_is_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    process = guards._Process(
        guards.Daemon(10, ()), frozenset({None}), ("/source", "/other/preview"), True, 100
    )
    monkeypatch.setattr(guards, "_processes", lambda *_: iter([process]))
    assert guards.daemon_of(GUARD) is None
