"""Mounts and processes of an isolated command are its own and end with it, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import isolated
from tests.support.mounting import until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for namespaces")


def start(script: str, *arguments: str | Path) -> subprocess.Popen[bytes]:
    command = ["sh", "-c", script, "sh", *map(str, arguments)]
    return subprocess.Popen(
        [sys.executable, isolated.__file__, *command], stdout=subprocess.PIPE
    )  # fmt: skip


def processes_with(word: str) -> list[str]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if word.encode() in line.split(b"\0"):
            found.append(pid)
    return found


@pytest.mark.parametrize(
    ("script", "status"), [("exit 7", 7), ("kill -9 $$", 137), ("/no/such/program", 127)]
)
def test_the_status_is_the_command_s(script: str, status: int) -> None:
    done = start(script)
    done.communicate(timeout=60)
    assert done.returncode == status


def test_what_it_mounts_is_not_seen_outside(tmp_path: Path) -> None:
    done = start("mount -t tmpfs x $1 && touch $1/inside && ls $1", tmp_path)
    assert done.communicate(timeout=60)[0] == b"inside\n"
    assert os.listdir(tmp_path) == []


def test_it_sees_its_own_processes_only() -> None:
    done = start("ls -d /proc/[0-9]* | wc -l")
    assert int(done.communicate(timeout=60)[0]) < 10


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_daemons_end_with_it_even_if_it_is_killed(number: signal.Signals) -> None:
    word = f"86400.{os.getpid()}{number:d}"
    process = start("setsid sleep $1 & echo ready; sleep 86401 & wait", word)
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    until(lambda: processes_with(word), "the daemon runs")
    process.send_signal(number)
    assert process.wait(60) in (-number, 128 + number)
    until(lambda: not processes_with(word), "the daemon is gone")
    process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_not_lost_while_it_starts(number: signal.Signals) -> None:
    """It ends at once, whenever the signal comes; the command would go on for ten minutes."""
    for _ in range(8):
        process = start("exec sleep 600")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while not children.read_text():
            pass
        process.send_signal(number)
        process.communicate(timeout=60)
        assert process.returncode in (-number, 128 + number)


def test_without_the_right_to_isolate_it_says_so() -> None:
    done = subprocess.run(
        [sys.executable, isolated.__file__, "true"], user=65534, capture_output=True, text=True
    )
    assert done.returncode == 1 and "which takes root" in done.stderr
    assert "Traceback" not in done.stderr


def test_each_process_with_tests_has_mounts_of_its_own() -> None:
    def namespace(pid: int | str) -> str:
        return os.readlink(f"/proc/{pid}/ns/mnt")

    assert namespace("self") != namespace(os.getppid())
    options = Path("/proc/self/mountinfo").read_text()
    assert "shared:" not in options and "master:" not in options
