"""The limit on this machine's CPU latency: set during requests, dropped after them."""

import os
import struct
import time
from pathlib import Path

import pytest

from gitguardfs.sessions.pyfuse3_session import cpu_latency
from tests.support.mounting import gitguardfs

UNLIMITED = 2_000_000_000
REQUESTS = 300


def _limit() -> int:
    """Return the kernel's limit in microseconds; UNLIMITED if it has no such file."""
    try:
        return int(struct.unpack("i", cpu_latency.DEVICE.read_bytes())[0])
    except FileNotFoundError:
        return UNLIMITED


def _can_be_kept_awake() -> bool:
    try:
        driver = cpu_latency.DRIVER.read_text()
    except FileNotFoundError:
        return False
    few = (os.cpu_count() or 1) <= cpu_latency.PROCESSORS
    return few and "haltpoll" in driver and cpu_latency.DEVICE.exists()


def _settled() -> int:
    """Return the limit after a pause; other views of this machine may be busy for a while."""
    for _ in range(100):
        time.sleep(0.05)
        if _limit() != 0:
            break
    return _limit()


def _ask_often(directory: Path) -> set[int]:
    """Make many requests in a row; returns the limits that were seen meanwhile."""
    seen = set()
    for number in range(REQUESTS):
        os.stat(directory)
        if number % 16 == 0:
            seen.add(_limit())
    return seen


def _has_the_device_open(pid: int) -> bool:
    opened = Path(f"/proc/{pid}/fd").iterdir()
    return str(cpu_latency.DEVICE) in {os.readlink(fd) for fd in opened}


@pytest.mark.parametrize("ends_at_once", [False, True])
def test_from_many_requests_in_a_row_to_the_pause(tmp_path: Path, ends_at_once: bool) -> None:
    (tmp_path / "source").mkdir()
    before = _settled()
    with gitguardfs(
        tmp_path / "source", tmp_path / "view", "--no-seal", "--cache-timeout", "0", "--no-cpu-idle"
    ) as view:
        assert (0 in _ask_often(view.path)) == _can_be_kept_awake()
        assert _has_the_device_open(view.process.pid) == _can_be_kept_awake()
        if not ends_at_once:
            assert _settled() == before
    assert _settled() == before


def test_unless_it_is_asked_for_the_device_stays_closed(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    with gitguardfs(
        tmp_path / "source", tmp_path / "view", "--no-seal", "--cache-timeout", "0"
    ) as view:
        _ask_often(view.path)
        assert not _has_the_device_open(view.process.pid)
