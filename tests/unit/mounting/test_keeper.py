"""The process that starts a killed daemon again, with daemons that mount nothing."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.mounting import LIMIT, REPOSITORY

KEEPER = """
import os, signal, sys
from gitguardfs.mounting import fd_store, keeper

def end(how):
    if how < 0:
        os.kill(os.getpid(), -how)
    return how

def first(ready):
    {first}

def again(former, ready):
    {again}

def log(text):
    print(text.rpartition("; ")[2], flush=True)

{settings}
relay = fd_store.Relay(None)
relay.open()
keeper.keep("view", first, again, {tell}, log, relay)
"""


def _keeper(
    first: str,
    again: str = "return 0",
    settings: str = "",
    tell: str = "lambda answer: None",
    argument: str | Path = "",
) -> subprocess.Popen[str]:
    program = KEEPER.format(first=first, again=again, settings=settings, tell=tell)
    return subprocess.Popen(
        [sys.executable, "-c", program, argument], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    )


def _said(keeper: subprocess.Popen[str], code: int) -> list[str]:
    """Wait for its end, by this exit code; return the lines of its log."""
    lines = keeper.communicate(timeout=LIMIT)[0].splitlines()
    assert keeper.returncode == code
    return lines


@pytest.mark.parametrize("how", [1, 2, 32, -signal.SIGKILL, -signal.SIGTERM])
def test_it_ends_as_a_daemon_that_never_was_ready(how: int) -> None:
    """A service manager goes by that."""
    assert _said(_keeper(f"return end({how})"), how) == []


def test_it_ends_as_the_last_daemon() -> None:
    keeper = _keeper("ready(b''); return end(-9)", "return 1", "keeper.PAUSE = 0.01")
    assert _said(keeper, 1) == ["it is started again in 0.01 s"]


ENDS_SOON = "ready(b''); return end(-9) if keeper.turns() else 0"
COUNTS = """
keeper.PAUSE = 0.01
left = [0] * 4
keeper.turns = lambda: left
def log(text, log=log):
    left.pop()
    log(text)
"""


@pytest.mark.parametrize(("soon", "factors"), [(LIMIT, (1, 2, 4, 8)), (0, (1, 1, 1, 1))])
def test_a_daemon_that_ends_soon_is_started_less_and_less_often(
    soon: float, factors: tuple[int, ...]
) -> None:
    keeper = _keeper(ENDS_SOON, ENDS_SOON, f"{COUNTS}keeper.SOON = {soon}")
    assert _said(keeper, 0) == [f"it is started again in {0.01 * n:g} s" for n in factors]


READY = "lambda answer: print('ready', flush=True)"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_daemon_that_was_told_to_end_is_not_started_again(number: signal.Signals) -> None:
    """One whose source hangs ends with an error."""
    waits = f"signal.signal({int(number)}, lambda *_: os._exit(2)); ready(b''); signal.pause()"
    keeper = _keeper(waits, tell=READY)
    assert keeper.stdout is not None and keeper.stdout.readline() == "ready\n"
    keeper.send_signal(number)
    assert _said(keeper, 2) == []


def test_the_signal_to_read_groups_again_reaches_the_daemon() -> None:
    """It may be sent to the main process of the service."""
    waits = "signal.signal(10, lambda *_: os._exit(0)); ready(b''); signal.pause()"
    keeper = _keeper(waits, tell=READY)
    assert keeper.stdout is not None and keeper.stdout.readline() == "ready\n"
    keeper.send_signal(signal.SIGUSR1)
    assert _said(keeper, 0) == []


def test_a_daemon_writes_nothing_more_to_its_answer(tmp_path: Path) -> None:
    """A user's file may have got the number of the pipe since."""
    takes_its_number = (
        "ready(b''); fds = [os.open(sys.argv[1], os.O_WRONLY) for _ in range(20)]; return 0"
    )
    file = tmp_path / "file"
    file.touch()
    keeper = _keeper(takes_its_number, argument=file)
    assert _said(keeper, 0) == []
    assert file.read_bytes() == b""
