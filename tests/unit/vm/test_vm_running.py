"""Finding and ending a VM: with real processes, and a real QEMU where it is installed."""

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gitguardfs.base import installation
from gitguardfs.base.errors import UserError
from gitguardfs.host.vm import driver, keys, launch, qmp, running, ssh, status_text
from gitguardfs.host.vm import state as states
from gitguardfs.host.vm.settings import Settings
from gitguardfs.host.vm.state import State
from gitguardfs.host.vm.status import facts
from tests.support.mounting import REPOSITORY, until

QEMU = "qemu-system-x86_64"
needs_qemu = pytest.mark.skipif(shutil.which(QEMU) is None, reason=f"not installed: {QEMU}")

BOOT: Any = SimpleNamespace(run=lambda *_: None)


def launch_of(proxy: subprocess.Popen[bytes]) -> Any:
    """Return as much of a launch as its tunnel needs."""
    return SimpleNamespace(proxy=SimpleNamespace(port=1, process=proxy), exported=("/srv/p",))


HOLDER = """
import os, signal, sys, time
from gitguardfs.host.vm.state import take
lock, name, obeys = sys.argv[1:4]
fd = take(lock)
os.pwrite(fd, str(os.getpid()).encode(), 0)
if name:
    with open("/proc/self/comm", "w") as comm:
        comm.write(name)
if not obeys:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(1000)
"""


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> State:
    monkeypatch.setattr(qmp, "ANSWER_LIMIT", 0.3)
    monkeypatch.setattr(running, "QUIT_LIMIT", 0.5)
    monkeypatch.setattr(running, "CLEAN_UP_LIMIT", 20.0)
    monkeypatch.setattr(states, "LOCK_PATIENCE", 0.1)
    monkeypatch.chdir(tmp_path)
    return State("/srv/p", os.path.relpath(tmp_path))  # short enough for a socket


@contextmanager
def holder(lock: str, name: str = "", obeys: str = "yes") -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, lock, name, obeys], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_vm_that_was_left_and_does_not_answer_is_killed(state: State) -> None:
    with holder(state.lock, name=QEMU, obeys="") as qemu:
        os.kill(qemu.pid, signal.SIGSTOP)  # it can neither answer nor end
        running.stop(state)
        assert qemu.wait(20) == -signal.SIGKILL
    assert not running.is_running(state)


def test_a_lock_of_an_unknown_process_is_one_line(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "QUIT_LIMIT", 0.2)
    with holder(state.lock):
        with pytest.raises(UserError, match=r"another process holds the VM"):
            running.take_lock(state)
        with pytest.raises(UserError, match=r"did not stop"):
            running.stop(state)


def test_stop_asks_the_command_that_the_vm_belongs_to(state: State) -> None:
    with holder(state.session_lock) as session, holder(state.lock) as qemu:
        assert running.session_pid(state) == session.pid
        until(lambda: qemu.poll() is None, "it runs")
        qemu.kill()
        running.stop(state)
        assert session.wait(20) == -signal.SIGTERM
    assert running.session_pid(state) is None


def test_a_second_up_is_told_whose_it_is(state: State) -> None:
    with holder(state.session_lock) as session:
        with pytest.raises(UserError, match=rf"by process {session.pid}.*gitguard vm ssh"):
            with driver._session(state):
                raise AssertionError("two sessions")


def test_a_signal_takes_the_way_back(state: State) -> None:
    done = []
    with pytest.raises(UserError, match=r"^stopped$"):
        with driver._session(state):
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                signal.pause()
            finally:
                done.append("cleaned up")
    assert done == ["cleaned up"]
    assert not states.is_held(state.session_lock)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_nothing_is_made_for_a_project_that_may_not_be_shared(state: State) -> None:
    if shutil.which(QEMU) is None:
        pytest.skip(f"not installed: {QEMU}")
    etc = State("/etc", state.path("vm"))
    with pytest.raises(UserError, match=r"belongs to this machine's system"):
        driver.up(etc, driver.UpArguments(Settings("/etc")))
    assert not etc.exists


def test_nobody_gets_in_before_the_project_is_guarded(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qmp, "ssh_port", lambda _: 40000)
    monkeypatch.setattr(qmp, "status", lambda _: "running")
    with holder(state.lock):
        with pytest.raises(UserError, match=r"still starting"):
            running.guest(state)
        assert running.guest(state, early=True).port == 40000
        Path(state.ready).touch()
        assert running.guest(state).port == 40000


def test_a_closed_terminal_does_not_cut_the_guests_way_down_short(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When SIGHUP comes, since a window was closed, each write to that terminal fails."""
    terminal, ours = os.openpty()
    os.close(terminal)
    process = subprocess.Popen(["sleep", "1000"])
    monkeypatch.setattr(qmp, "power_down", lambda _: process.terminate())
    closed = open(ours, "w", buffering=1)  # noqa: SIM115 (closing it fails as well)
    monkeypatch.setattr(sys, "stderr", closed)
    launch._end(state, process)
    with suppress(OSError):
        closed.close()
    assert process.wait() == -signal.SIGTERM  # as asked, and not killed


def test_a_vm_that_a_full_disk_has_paused_goes_on_when_there_is_room(
    state: State, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = []
    monkeypatch.setattr(qmp, "status", lambda _: "io-error")
    monkeypatch.setattr(qmp, "ssh_port", lambda _: 40000)
    monkeypatch.setattr(qmp, "resume", lambda _: done.append("cont"))
    Path(state.ready).touch()
    with holder(state.lock):
        with monkeypatch.context() as full:
            full.setattr(running, "MIN_FREE_TO_RESUME", 1 << 60)
            with pytest.raises(UserError, match=r"paused: the host's disk is full; make room"):
                running.guest(state)
        assert done == []
        assert "paused (the host's disk is full; make room" in status_text.text(facts(state), 1000)
        assert running.guest(state).port == 40000
        assert done == ["cont"]
        monkeypatch.setattr(qmp, "status", lambda _: "running")
        running.guest(state)
        assert done == ["cont"]
    assert "it goes on" in capsys.readouterr().err


# A real QEMU


def listens(path: str) -> bool:
    """The socket's file is there a moment before anybody listens."""
    with socket.socket(socket.AF_UNIX) as peer:
        return peer.connect_ex(path) == 0


@pytest.fixture
def qemu(state: State) -> Iterator[subprocess.Popen[bytes]]:
    """A QEMU without a machine, with the network and the monitor that a VM has."""
    command = [
        QEMU, "-machine", "none", "-nodefaults", "-display", "none",
        "-netdev", "user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:0-:22",
        "-qmp", f"unix:{state.qmp},server=on,wait=off",
    ]  # fmt: skip
    lock = states.take(state.lock)
    assert lock is not None
    with open(state.qemu_log, "wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log, pass_fds=(lock,))
    os.close(lock)
    until(lambda: listens(state.qmp) or process.poll() is not None, "QEMU listens")
    yield process
    process.kill()
    process.wait()


@needs_qemu
def test_qemu_is_asked_for_its_port_and_state(
    state: State, qemu: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qmp, "ANSWER_LIMIT", 20.0)
    assert 1024 < qmp.ssh_port(state) < 65536
    assert qmp.ssh_port(state) == qmp.ssh_port(state)
    assert qmp.status(state) == "running"
    qmp.resume(state)
    qmp.power_down(state)
    qmp.quit(state)
    assert qemu.wait(20) == 0
    assert not running.is_running(state)
    with pytest.raises(qmp.NoAnswerError):
        qmp.status(state)


@needs_qemu
def test_a_qemu_that_was_left_is_ended(
    state: State, qemu: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qmp, "ANSWER_LIMIT", 20.0)
    monkeypatch.setattr(
        running, "POWERDOWN_LIMIT", 0.2
    )  # without a machine nobody hears the button
    monkeypatch.setattr(running, "QUIT_LIMIT", 20.0)
    assert running.is_running(state)
    running.stop(state)
    assert qemu.wait(20) == 0


# The tunnel of a hardened VM

SSH = """#!/bin/sh
case "$*" in *" -R "*) echo $$ >>"$TUNNELS"; exec sleep 1000 ;; esac
"""


@pytest.fixture
def tunnel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Let ssh be a program that writes down its number; return what waits for that tunnel."""
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    tunnels = tmp_path / "tunnels"
    monkeypatch.setenv("TUNNELS", str(tunnels))

    def started() -> int:
        until(lambda: tunnels.exists() and tunnels.read_text().endswith("\n"), "it is there")
        return os.pidfd_open(int(tunnels.read_text()))

    return started


def test_the_tunnel_to_a_proxy_that_has_ended_ends_as_well(
    state: State, tunnel: Callable[[], int]
) -> None:
    """Another program may then get its port, and the guest must not reach that."""
    process = subprocess.Popen(["sleep", "1000"])
    guest = ssh.SshGuest(keys.Keys(state.path("keys")), 1, "/p")
    try:
        with launch._tunnel(BOOT, guest, launch_of(process)):
            ssh_process = tunnel()
            process.kill()
            assert select.select([ssh_process], [], [], 20)[0], "the tunnel is still there"
            os.close(ssh_process)
    finally:
        process.kill()
        process.wait()


STARTER = """
import subprocess, sys, time
sys.path[:0] = sys.argv[1:]
from gitguardfs.host.vm import keys, launch, ssh
from tests.unit.vm.test_vm_running import BOOT, launch_of
proxy = subprocess.Popen(["sleep", "1000"], start_new_session=True)
print(proxy.pid, flush=True)
guest = ssh.SshGuest(keys.Keys("/none"), 1, "/p")
with launch._tunnel(BOOT, guest, launch_of(proxy)):
    time.sleep(1000)
"""


def test_the_tunnel_ends_with_a_starter_that_is_killed(tunnel: Callable[[], int]) -> None:
    """Its proxy ends as well, and another program may then get the port."""
    words = [sys.executable, "-c", STARTER, installation.PACKAGE_PARENT, REPOSITORY]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        proxy = int(starter.stdout.readline())
        try:
            ssh_process = tunnel()
            starter.kill()
            ended = select.select([ssh_process], [], [], 20)[0]
            if not ended:
                signal.pidfd_send_signal(ssh_process, signal.SIGKILL)
            os.close(ssh_process)
            assert ended, "the tunnel is still there"
        finally:
            starter.kill()
            os.kill(proxy, signal.SIGKILL)
