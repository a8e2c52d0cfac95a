"""Processes whose mount namespaces keep a guard from starting."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gitguardfs.linux import holders, mountinfo, processes
from gitguardfs.linux.namespaces import MountNamespace
from gitguardfs.mounting import seal_bypasses


@pytest.mark.parametrize(
    ("process", "uids", "makers", "expected"),
    [
        ("/proc/7", {0}, set(), False),
        ("/proc/7", {0, 1000}, set(), True),
        ("/proc/7", {0}, {1000}, True),
        ("/proc/7", {1000}, None, True),
        ("", {0}, None, True),
        # As the first process of a container is, if it has more rights than root there.
        ("/proc/1", {0}, None, False),
    ],
)
def test_a_namespace_counts_if_a_user_can_get_into_it(
    process: str, uids: set[int], makers: set[int] | None, expected: bool
) -> None:
    known = None if makers is None else frozenset(makers)
    space = MountNamespace((4, 7), "/x", "x", process, frozenset(uids), known)
    assert seal_bypasses._is_users(space) is expected


@pytest.mark.parametrize(
    ("newest", "ends"),
    [
        pytest.param({0}, True, id="roots"),
        pytest.param({1000}, False, id="a user's"),
        pytest.param({0, 1000}, False, id="set-uid"),
        pytest.param(set(), False, id="ended"),
    ],
)
def test_only_what_users_start_keeps_a_search_from_ending(
    newest: set[int], ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time that processes are listed, one more has started."""
    started: list[str] = []

    def pids(_proc: str) -> list[str]:
        started.append(str(len(started) + 2))
        (tmp_path / started[-1] / "task").mkdir(parents=True)
        (tmp_path / started[-1] / "maps").touch()
        return started

    def uids_of(process: str) -> set[int]:
        if not newest:
            raise FileNotFoundError
        return newest

    monkeypatch.setattr(processes, "pids", pids)
    monkeypatch.setattr(processes, "uids_of", uids_of)
    if ends:
        assert holders.find_holders([], str(tmp_path)) == []
    else:
        with pytest.raises(BlockingIOError, match="too fast"):
            holders.find_holders([], str(tmp_path))


SHARED_MEMORY = """
import mmap, os, time
memory = os.memfd_create("x")
os.ftruncate(memory, 4096)
maps = mmap.mmap(memory, 4096), mmap.mmap(-1, 4096)
print(flush=True)
time.sleep(60)
"""


def test_shared_memory_is_nothing_of_the_share(tmp_path: Path) -> None:
    """Its mount may have the number 0, and is in no namespace."""
    fd = os.open(tmp_path, os.O_RDONLY)
    table, number = mountinfo.listed(), mountinfo.number_of(fd)
    mount = next(one for one in table if one.mnt_id == number)
    places = holders.with_shares_below(bytes(tmp_path), mount, table, os.fstat(fd).st_dev)
    (tmp_path / "proc").mkdir()
    with subprocess.Popen(
        [sys.executable, "-I", "-c", SHARED_MEMORY],
        stdout=subprocess.PIPE, cwd="/", user=1000, pass_fds=(fd,),
    ) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()
        (tmp_path / f"proc/{process.pid}").symlink_to(f"/proc/{process.pid}")
        found = holders.find_holders(places, str(tmp_path / "proc"))
        process.kill()
    os.close(fd)
    assert [one.held for one in found] == [(f"descriptor {fd}",)]
