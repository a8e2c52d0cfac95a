"""Refusals are counted and written as JSON, and no request waits for that."""

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

from gitguardfs.base.errors import UserError
from gitguardfs.fs import audit_log as audit
from gitguardfs.fs.audit_log import AuditLog
from gitguardfs.linux import rotating_file
from gitguardfs.linux.rotating_file import RotatingFile
from gitguardfs.names.rules import Refused

PROMPT = 0.5
"""Seconds in which a thousand refusals have to be noted, even if the log's reader hangs."""


def opened(path: Path) -> RotatingFile:
    return RotatingFile(str(path), os.geteuid() == 0)


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


class _Lines:
    def __init__(self, written: list[bytes]) -> None:
        self.write = written.append

    def close(self) -> None:
        pass


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=5))
def test_any_path_is_valid_json_on_one_line(paths: list[bytes]) -> None:
    written: list[bytes] = []
    log = AuditLog(_Lines(written))
    log.start()
    for path in paths:
        log.refuse("open", refused("git", path), 0, 0)
    log.close()
    assert all(line.index(b"\n") == len(line) - 1 for line in written)
    found = [json.loads(line.decode("ascii")) for line in written]
    assert [line["path"] for line in found] == [p.decode(errors="backslashreplace") for p in paths]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found = [100.0]
    monkeypatch.setattr("gitguardfs.fs.audit_log.time.monotonic", lambda: found[0])
    return found


def test_a_flood_is_cut_and_the_rest_is_told_as_a_number(
    clock: list[float], written: tuple[AuditLog, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "BURST", 10**6)
    log, path = written
    log._allowance = 0.0
    flood = 20_000
    for wait in (4.0, 2.0):
        clock[0] += wait
        for _ in range(flood):
            log.refuse("open", refused("git", b".git"), 0, 0)
    clock[0] += 1000.0
    log.refuse("open", refused("git", b".git"), 0, 0)
    log.close()
    found = lines(path)
    size = path.stat().st_size
    assert size == pytest.approx(6 * audit.BYTES_PER_SECOND, abs=1000)
    assert sum(line.get("dropped", 0) for line in found) + len(found) == 2 * flood + 1
    assert sum("dropped" in line for line in found) == 2
    assert log.refused["git"] == 2 * flood + 1


def test_long_names_do_not_keep_short_ones_out(
    clock: list[float], written: tuple[AuditLog, Path]
) -> None:
    log, path = written
    log._allowance = 0.0
    longest = b"/".join([b"\xff" * 255] * 40)
    for _ in range(100):
        clock[0] += 0.1
        log.refuse("open", refused("git", longest + b"/.git"), 0, 0)
    log.close()
    assert len(lines(path)) == 100
    assert lines(path)[0]["path"].startswith("\\xff\\xff")
    assert lines(path)[0]["path"].endswith("\\xff/.git")


def test_text_that_takes_many_bytes_is_cut_as_well(
    clock: list[float], written: tuple[AuditLog, Path]
) -> None:
    log, path = written
    for _ in range(1000):
        clock[0] += 0.001
        log.refuse("open", refused("git", "\U0001f600".encode() * 600), 0, 0)
    log.close()
    assert path.stat().st_size < audit.BURST + audit.BYTES_PER_SECOND + 10_000


def test_two_that_append_to_one_file_lose_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As two views with one --audit-log do: the second finds that the file was renamed."""
    monkeypatch.setattr(rotating_file, "SIZE", 1000)
    path = tmp_path / "log"
    one, two = opened(path), opened(path)
    for _ in range(100):
        one.write(b"123456789\n")
    one.write(b"one\n")
    two.write(b"two\n")
    assert path.read_text() == "one\ntwo\n"
    assert (tmp_path / "log.1").stat().st_size == 1000
    one.close()
    two.close()


def test_a_full_file_is_kept_once_beside_the_new_one(
    written: tuple[AuditLog, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotating_file, "SIZE", 1000)
    log, path = written
    for number in range(100):
        log.refuse("open", refused("git", b"%d" % number), 0, 0)
    log.close()
    kept = lines(path.with_name("log.1")) + lines(path)
    assert [int(line["path"]) for line in kept] == list(range(100 - len(kept), 100))
    assert sorted(each.name for each in path.parent.iterdir()) == ["log", "log.1"]
    assert all(each.stat().st_size < 1300 for each in path.parent.iterdir())
    assert all(each.stat().st_mode & 0o777 == 0o600 for each in path.parent.iterdir())


def test_a_file_that_cannot_be_renamed_grows_no_further(
    written: tuple[AuditLog, Path], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(rotating_file, "SIZE", 1000)
    log, path = written
    path.with_name("log.1").mkdir()
    with caplog.at_level(logging.ERROR):
        for _ in range(100):
            log.refuse("open", refused("git", b".git"), 0, 0)
        log.close()
    assert path.stat().st_size < 1300
    assert "audit log: Is a directory" in caplog.text


def _never_read_fifo(tmp_path: Path) -> tuple[Path, int]:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    return fifo, reader


def test_a_disk_that_hangs_holds_up_nobody_and_all_is_told_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "BURST", 10**8)
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
    refusals = 1000
    while b'".git"' not in b"".join(parts):
        log.refuse("open", refused("git", b".git"), 0, 0)
        refusals += 1
        time.sleep(0.01)
    log.close()
    drain.join()
    found = [json.loads(line) for line in b"".join(parts).splitlines()]
    assert len(found) + sum(line.get("dropped", 0) for line in found) == refusals


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
        "import os, sys; from gitguardfs.linux.rotating_file import RotatingFile;"
        "RotatingFile(sys.argv[1], os.geteuid() == 0)"
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
    RotatingFile(str(path), True).close()
    if fault == "owner":
        os.chown(path, 1000, 0)
    elif fault == "links":
        os.link(path, tmp_path / "other")
    else:
        path.chmod(0o602 if fault == "mode" else 0o620)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(UserError):
        RotatingFile(str(path), True)
    assert os.listdir("/proc/self/fd") == before
    RotatingFile(str(path), False).close()


def test_a_long_silence_allows_no_more_than_one_burst(
    clock: list[float], written: tuple[AuditLog, Path]
) -> None:
    log, path = written
    clock[0] += 10**6
    for _ in range(2000):
        log.refuse("open", refused("git", b".git"), 0, 0)
    log.close()
    assert path.stat().st_size == pytest.approx(audit.BURST, abs=500)
