"""Finding the process that is a guard's daemon."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gitguardfs.base.constants import FSTYPE
from gitguardfs.doctor import mount_checks
from gitguardfs.linux import mountinfo
from gitguardfs.linux.mountinfo import MountInfo
from gitguardfs.mounting import guards
from gitguardfs.mounting.guards import GuardDaemon

GUARD = MountInfo(device="0:77", mount_point=b"/view", fstype=FSTYPE, source="/source", mnt_id=5)


def _daemon(
    pid: int, connection: int | None, view: str = "/view", *, uid: int = 0, start: int = 100
) -> GuardDaemon:
    arguments = ("gitguardfs", "/source", view)
    return GuardDaemon(pid, uid, arguments, frozenset({connection}), uid, start)


FORMER, CURRENT = (10, 100), (20, 200)
"""Process id and start time of two daemons; the former is still ending."""


@pytest.mark.parametrize("listed", [(FORMER, CURRENT), (CURRENT, FORMER)])
@pytest.mark.parametrize("device", [77, None], ids=["told by the kernel", "by the arguments"])
def test_of_two_with_the_same_connection_the_last_one_to_be_started_is_the_daemon(
    monkeypatch: pytest.MonkeyPatch, listed: tuple[tuple[int, int], ...], device: int | None
) -> None:
    processes = [_daemon(pid, device, start=start) for pid, start in listed]
    monkeypatch.setattr(guards, "servers", lambda: iter(processes))
    found = guards.daemon_of(GUARD)
    assert found is not None and found.pid == CURRENT[0]


def test_what_serves_another_connection_is_not_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    other = _daemon(10, 78)
    monkeypatch.setattr(guards, "servers", lambda: iter([other]))
    assert guards.daemon_of(GUARD) is None


@pytest.mark.parametrize(
    "given", ["/home/view", "/home/view/", "/home/../home/view", "view", "./view/", "link/view"]
)
def test_a_mount_point_is_recognised_however_it_was_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str
) -> None:
    """Before Linux 6.17 a daemon is found by its arguments only."""
    (tmp_path / "home/view").mkdir(parents=True)
    (tmp_path / "link").symlink_to("home")
    path = given if given in ("view", "./view/") else f"{tmp_path}/{given.lstrip('/')}"
    guard = replace(GUARD, mount_point=bytes(tmp_path / "home/view"))
    process = _daemon(10, None, path)
    monkeypatch.setattr(guards, "servers", lambda *_: iter([process]))
    assert guards.daemon_of(guard) == process
    monkeypatch.setattr(mountinfo, "listed", lambda: [guard])
    assert not guards.is_orphan("10")


def test_another_mount_point_is_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    process = _daemon(10, None, "/other/preview")
    monkeypatch.setattr(guards, "servers", lambda *_: iter([process]))
    assert guards.daemon_of(GUARD) is None


@pytest.mark.parametrize("connection", [77, None])
def test_what_a_user_has_started_is_found_and_is_never_the_daemon(
    monkeypatch: pytest.MonkeyPatch, connection: int | None
) -> None:
    """Nor does root follow a path in its arguments: that could lead to a server that hangs."""
    followed: list[str] = []
    theirs = _daemon(10, connection, "/home/user/hangs/view", uid=1000)
    with monkeypatch.context() as noted:
        noted.setattr(os.path, "realpath", lambda path: followed.append(path) or path)
        assert guards.daemon_of(GUARD, [theirs]) is None
        assert mount_checks.serving(GUARD, [theirs]) == ((theirs,) if connection else ())
    assert followed == []


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A process that has a stand-in for the FUSE device open, as its last descriptor."""
    device = tmp_path / "fuse"
    device.touch()
    monkeypatch.setattr(guards, "FUSE_DEVICE", str(device))
    code = f"import time; file = open({str(device)!r}); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield str(process.pid)
        process.kill()


def test_a_server_that_closes_a_file_meanwhile_is_found(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.listdir

    def listdir(path: str) -> list[str]:
        # A descriptor that was closed after it was listed.
        return (["987654"] if path.endswith("/fd") else []) + whole(path)

    monkeypatch.setattr(os, "listdir", listdir)
    (found,) = guards.servers([server])
    assert (found.pid, found.uid, found.real_uid) == (int(server), os.getuid(), os.getuid())
    assert found.arguments[:2] == (sys.executable, "-c")
    assert found.connections == {None}


def test_a_process_without_a_fuse_device_is_none() -> None:
    assert list(guards.servers([str(os.getpid()), "987654321"])) == []
