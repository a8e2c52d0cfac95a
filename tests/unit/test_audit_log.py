"""Refusals are counted and written as JSON, and no request waits for that."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitguardfs.errors import UserError
from gitguardfs.guard.rules import Refused
from gitguardfs.linux import safe_open
from gitguardfs.serving import audit_log as audit
from gitguardfs.serving.audit_log import AuditLog

FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
PROMPT = 0.5
"""Seconds in which a thousand refusals have to be noted, even if the log's reader hangs."""


def opened(path: Path) -> int:
    return safe_open.open_file(str(path), os.geteuid() == 0, FLAGS)


def refused(rule: str, path: bytes) -> Refused:
    return Refused(rule, lambda: path)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@pytest.fixture
def written(tmp_path: Path) -> Iterator[tuple[AuditLog, Path]]:
    path = tmp_path / "log"
    log = AuditLog(opened(path))
    log.start()
    yield log, path
    log.close()


def test_without_a_file_it_counts() -> None:
    log = AuditLog(None)
    log.start()
    for rule in ("git", "git", "fake repository"):
        log.refuse("open", refused(rule, b".git"), 1000, 1)
    log.close()
    assert log.refused == {"git": 2, "fake repository": 1}


def test_one_line_says_who_what_and_why(written: tuple[AuditLog, Path]) -> None:
    log, path = written
    log.refuse("unlink", refused("git", b"a/.git"), 1000, os.getpid())
    log.close()
    (line,) = lines(path)
    assert time.strptime(line.pop("time"), "%Y-%m-%dT%H:%M:%SZ")
    comm = Path("/proc/self/comm").read_text().rstrip("\n")
    assert line == {
        "operation": "unlink", "path": "a/.git", "uid": 1000, "pid": os.getpid(),
        "command": comm, "rule": "git",
    }  # fmt: skip
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_process_that_is_gone_has_no_name(written: tuple[AuditLog, Path]) -> None:
    log, path = written
    log.refuse("open", refused("git", b".git"), 1000, 2**22 + 1)
    log.close()
    assert lines(path)[0]["command"] == ""


def test_lines_are_appended(tmp_path: Path) -> None:
    for _ in range(2):
        log = AuditLog(opened(tmp_path / "log"))
        log.start()
        log.refuse("open", refused("git", b".git"), 0, 0)
        log.close()
    assert len(lines(tmp_path / "log")) == 2


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=5))
def test_any_path_is_valid_json_on_one_line(paths: list[bytes]) -> None:
    readable, writable = os.pipe()
    log = AuditLog(None)
    log._fd = writable
    log.start()
    for path in paths:
        log.refuse("open", refused("git", path), 0, 0)
    log.close()
    with os.fdopen(readable, "rb") as pipe:
        found = [json.loads(line.decode("ascii")) for line in pipe.read().splitlines()]
    assert [line["path"] for line in found] == [p.decode(errors="backslashreplace") for p in paths]


def test_a_flood_is_cut_and_the_rest_is_told_as_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr("gitguardfs.serving.audit_log.time.monotonic", lambda: clock[0])
    log = AuditLog(opened(tmp_path / "log"))
    log.start()
    for _ in range(audit.BURST + 500):
        log.refuse("open", refused("git", b".git"), 0, 0)
    clock[0] += 2.0
    for _ in range(500):
        log.refuse("open", refused("git", b".git"), 0, 0)
    clock[0] += 1000.0
    log.refuse("open", refused("git", b".git"), 0, 0)
    log.close()
    found = lines(tmp_path / "log")
    assert len(found) == audit.BURST + 2 * audit.LINES_PER_SECOND + 1
    assert found[audit.BURST]["dropped"] == 500
    assert found[-1]["dropped"] == 500 - 2 * audit.LINES_PER_SECOND
    assert sum("dropped" in line for line in found) == 2
    assert log.refused["git"] == audit.BURST + 1001


def _never_read_fifo(tmp_path: Path) -> tuple[Path, int]:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    return fifo, reader


def test_a_disk_that_hangs_holds_up_nobody_and_all_is_told_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "BURST", 10**6)
    monkeypatch.setattr(audit, "QUEUE_LENGTH", 50)
    fifo, reader = _never_read_fifo(tmp_path)
    log = AuditLog(opened(fifo))
    log.start()
    started = time.monotonic()
    for _ in range(1000):
        log.refuse("open", refused("git", b"x" * 4000), 0, 0)
    assert time.monotonic() - started < PROMPT
    assert log.refused["git"] == 1000
    parts: list[bytes] = []
    drain = threading.Thread(target=_drain, args=(reader, parts))
    drain.start()
    while b"".join(parts).count(b"\n") < 50:
        time.sleep(0.01)
    log.refuse("open", refused("git", b".git"), 0, 0)
    log.close()
    drain.join()
    found = [json.loads(line) for line in b"".join(parts).splitlines()]
    assert len(found) + sum(line.get("dropped", 0) for line in found) == 1001


def _drain(reader: int, parts: list[bytes]) -> None:
    os.set_blocking(reader, True)
    while part := os.read(reader, 1 << 16):
        parts.append(part)
    os.close(reader)


def test_a_reader_that_goes_away_is_no_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fifo, reader = _never_read_fifo(tmp_path)
    log = AuditLog(opened(fifo))
    log.start()
    os.close(reader)
    with caplog.at_level(logging.ERROR):
        log.refuse("open", refused("git", b".git"), 0, 0)
        log.close()
    assert "audit log" in caplog.text
    assert log.refused["git"] == 1


def test_a_fifo_without_a_reader_does_not_hang_the_start(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    code = (
        "import os, sys; from gitguardfs.linux.safe_open import open_file;"
        "open_file(sys.argv[1], os.geteuid() == 0, os.O_WRONLY)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "fifo")], stderr=subprocess.PIPE
    )
    try:
        process.communicate(timeout=3)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("make", ["missing/log", "link", "."])
def test_what_cannot_be_appended_to_is_an_error_at_once(tmp_path: Path, make: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(OSError):
        opened(tmp_path / make)
    assert not (tmp_path / "target").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("fault", ["owner", "links", "mode", "group's mode"])
def test_root_opens_no_file_that_another_user_may_have_placed(tmp_path: Path, fault: str) -> None:
    path = tmp_path / "log"
    path.touch(mode=0o600)
    assert safe_open.open_file(str(path), True, FLAGS) >= 0
    if fault == "owner":
        os.chown(path, 1000, 0)
    elif fault == "links":
        os.link(path, tmp_path / "other")
    else:
        path.chmod(0o602 if fault == "mode" else 0o620)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(UserError):
        safe_open.open_file(str(path), True, FLAGS)
    assert os.listdir("/proc/self/fd") == before
    assert safe_open.open_file(str(path), False, FLAGS) >= 0


def test_a_long_silence_allows_no_more_than_one_burst(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr("gitguardfs.serving.audit_log.time.monotonic", lambda: clock[0])
    log = AuditLog(opened(tmp_path / "log"))
    log.start()
    clock[0] += 10**6
    for _ in range(audit.BURST + 100):
        log.refuse("open", refused("git", b".git"), 0, 0)
    log.close()
    assert len(lines(tmp_path / "log")) == audit.BURST


def test_the_counts_are_logged_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    log = AuditLog(None)
    log.refuse("open", refused("git", b".git"), 0, 0)
    with caplog.at_level(logging.INFO):
        log.close()
    assert "refused 1 requests (git: 1)" in caplog.text
