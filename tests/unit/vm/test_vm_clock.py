"""The guest's clock: the program that keeps it in step, and the session that waits for that."""

import subprocess
import time
from pathlib import Path

import pytest

from gitguardfs.host.vm import keys, provision, ssh
from gitguardfs.host.vm.guest_files import CLOCK_PROGRAM
from gitguardfs.host.vm.settings import Settings
from tests.unit.vm.test_vm_qemu import GUEST
from tests.unit.vm.test_vm_seed import CA

PROGRAM = Path(provision.__file__).with_name("files") / "clock.sh"
LIMIT = 60
"""Seconds after which a script is taken to hang."""
CHECK = """
    . "$0"
    RTC=/dev/null
    times=("$@")
    read() { printf -v "$2" %s "${times[0]}"; times=("${times[@]:1}"); }
    date() { set_to=$1; }
    keep_in_step >/dev/null && echo "${set_to-not set}"
"""
"""A check of the clock with what the RTC says each time that it is read."""


def check(*times: int) -> str:
    words = ["bash", "-c", CHECK, str(PROGRAM), *map(str, times)]
    return subprocess.run(words, capture_output=True, text=True, timeout=LIMIT).stdout.strip()


@pytest.mark.parametrize("apart", [-86400, -3, 3, 60])
def test_a_clock_that_is_apart_is_set_when_a_second_begins(apart: int) -> None:
    """After a pause it is behind; it is ahead if the host's was set back."""
    there = int(time.time()) + apart
    assert check(there, there, there, there + 1) == f"--set=@{there + 1}"


def test_a_clock_in_step_is_left_alone() -> None:
    assert check(int(time.time())) == "not set"


def test_the_program_ends_without_an_rtc_and_is_started_again() -> None:
    done = subprocess.run(
        ["bash", "-c", '. "$0"; RTC=/nowhere; keep_in_step', PROGRAM], stderr=subprocess.DEVNULL
    )
    assert done.returncode != 0
    files = {file.path: file for file in provision.guest_files(Settings("/project"), CA)}
    unit = files["/etc/systemd/system/gitguard-vm-clock.service"].data.decode()
    assert f"ExecStart={CLOCK_PROGRAM}\nRestart=always\n" in unit
    assert files[CLOCK_PROGRAM].mode == 0o755
    guard = files["/etc/systemd/system/gitguard-vm-guard.service"].data.decode()
    assert "gitguard-vm-clock.service" in guard  # a disk that is set up enables no new unit


@pytest.mark.parametrize(("behind", "waits"), [(0, False), (20, True)])
def test_a_session_begins_with_the_clock_in_step(behind: int, waits: bool, tmp_path: Path) -> None:
    """In the guest the clock is set after some looks at it; here nothing sets it."""
    line = ssh.session(GUEST, ("true",), False, keys.AGENT)[-1].partition("; cd")[0]
    now = int(time.time()) - behind
    for name, text in {"date": f"echo {now}; echo >>{tmp_path}/looks", "sleep": ""}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", line], env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True, text=True, timeout=LIMIT,
    )  # fmt: skip
    assert done.stderr == ("the clock of the VM is behind\n" if waits else "")
    assert ((tmp_path / "looks").stat().st_size > 1) == waits
