"""The block of `vm ssh-config`, and the command in it that connects to the guest's sshd."""

import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gitguardfs.base import installation
from gitguardfs.base.errors import UserError
from gitguardfs.host.commands.vm import group
from gitguardfs.host.vm import connecting, keys, qmp, running, settings, ssh
from gitguardfs.host.vm import state as states
from gitguardfs.host.vm.settings import Settings
from gitguardfs.host.vm.state import State
from tests.support.mounting import REPOSITORY

needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="not installed: ssh")
ODD = "a b'c\"d$e%h\\f;g"
"""A name in which a shell and ssh(1) find characters of their own."""


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> State:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "s"))
    monkeypatch.setattr(states, "SOCKET_PATH_BYTES", 250)
    monkeypatch.setattr(connecting, "_LOOK_EVERY", 0.02)
    (tmp_path / ODD).mkdir()
    state = states.state_of(str(tmp_path / ODD))
    states.create(state)
    Path(state.disk).touch()
    settings.save(state, Settings(state.project))
    return state


def vm(state: State, *words: str) -> Result:
    return CliRunner().invoke(group.command, [*words, "--project", state.project])


# The block


def block(state: State, *words: str) -> tuple[str, dict[str, str]]:
    """Return the host and the options of the block that is printed."""
    done = vm(state, "ssh-config", *words)
    assert done.exit_code == 0, done.exception
    first, *rest = done.output.splitlines()
    found = (line.split(maxsplit=1) for line in rest)
    return first.removeprefix("Host "), {name: value for name, value in found if name != "#"}


def test_it_is_the_same_whether_the_vm_runs_or_not(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, options = block(state)
    assert host == f"gitguard-{state.name}"
    assert "Port" not in options and "HostName" not in options
    assert (options["User"], options["ConnectTimeout"]) == ("agent", "20")
    assert options["HostKeyAlias"] == keys.HOST_ALIAS and options["StrictHostKeyChecking"] == "yes"
    assert "--start" not in options["ProxyCommand"]
    with running_vm(state, monkeypatch, 4711):
        assert block(state) == (host, options)
        _, options = block(state, "--port")
        assert (options["HostName"], options["Port"]) == ("127.0.0.1", "4711")
        assert "ProxyCommand" not in options
    _, starting = block(state, "--start")
    assert starting["ProxyCommand"].endswith(" --start")
    assert int(starting["ConnectTimeout"]) >= 900


def test_a_port_is_of_a_vm_that_runs(state: State) -> None:
    assert "is not running" in str(vm(state, "ssh-config", "--port").exception)
    assert vm(state, "ssh-config", "--port", "--start").exit_code == 2


@needs_ssh
def test_a_shell_reads_the_command_as_it_was_made(state: State, tmp_path: Path) -> None:
    """A program that the desktop starts may not have these variables."""
    host, _ = block(state)
    config = tmp_path / "ssh_config"
    config.write_text(vm(state, "ssh-config").output)
    found = subprocess.run(
        ["ssh", "-G", "-F", config, host], capture_output=True, text=True, check=True
    )
    line = found.stdout.split("\nproxycommand ")[1].splitlines()[0].replace("%%", "%")
    shown = subprocess.run(
        ["sh", "-c", f"printf '%s\\0' {line}"], capture_output=True, text=True, check=True
    )
    words = shown.stdout.split("\0")[:-1]
    assert words == connecting.words(state, False)
    assert words[:2] == ["env", f"XDG_STATE_HOME={os.environ['XDG_STATE_HOME']}"]
    assert words[-2:] == ["--project", state.project]


@needs_ssh
def test_a_host_for_all_lends_nothing_to_the_guest(state: State, tmp_path: Path) -> None:
    """The block is to be included in the first line, as --help says."""
    said = vm(state, "ssh-config", "--help").output
    (include,) = re.findall("Include (gitguard)\n", said)
    (tmp_path / include).write_text(vm(state, "ssh-config").output)
    theirs = "Host *\nForwardAgent yes\nForwardX11 yes\nIdentityAgent /x\nPermitLocalCommand yes\n"
    config = tmp_path / "config"
    config.write_text(f"Include {tmp_path}/{include}\n{theirs}")
    host, _ = block(state)
    done = subprocess.run(["ssh", "-G", "-F", config, host], capture_output=True, text=True)
    options = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
    names = ("forwardagent", "forwardx11", "permitlocalcommand", "identityagent")
    assert [options[name] for name in names] == ["no", "no", "no", "none"]


@needs_ssh
def test_ssh_talks_through_the_command(state: State, tmp_path: Path) -> None:
    """Here to a server that only says what it is."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = (
            f"import sys; sys.path.insert(0, {str(REPOSITORY)!r}); import socket\n"
            "from gitguardfs.host.vm.connecting import copy\n"
            "copy(0, 1, socket.create_connection(('127.0.0.1', int(sys.argv[2]))))"
        )
        program = tmp_path / ODD / "program"
        program.write_text(code)
        words = [sys.executable, "-I", str(program), ODD, str(server.getsockname()[1])]
        config = tmp_path / "ssh_config"
        config.write_text(ssh.stable_config(keys.Keys(str(tmp_path)), "vm", words, 20))
        with subprocess.Popen(
            ["ssh", "-F", config, "vm", "true"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
        ) as client:
            server.settimeout(60)
            peer, _ = server.accept()
            with peer:
                peer.sendall(b"SSH-2.0-stand-in\r\n")
                assert peer.recv(8) == b"SSH-2.0-"
            assert client.wait(60) == ssh.FAILED


# Copying


def test_bytes_pass_both_ways_until_the_guest_has_ended() -> None:
    here, there = socket.socketpair()
    source, source_end = os.pipe()
    target_end, target = os.pipe()
    large = os.urandom(3_000_000)
    got: list[bytes] = []

    def guest() -> None:
        with there:
            taken = b""
            while data := there.recv(1 << 16):  # until the client's end of file
                taken += data
            got.append(taken)
            there.sendall(large)

    def client() -> None:
        with os.fdopen(source_end, "wb") as end:
            end.write(large[::-1])
        with os.fdopen(target_end, "rb") as end:
            got.append(end.read(len(large)))

    threads = [threading.Thread(target=each) for each in (guest, client)]
    for thread in threads:
        thread.start()
    with here:
        connecting.copy(source, target, here)
    for thread in threads:
        thread.join(60)
    assert got == [large[::-1], large]
    os.close(source)
    os.close(target)


def test_a_client_that_has_ended_is_no_error() -> None:
    here, there = socket.socketpair()
    target_end, target = os.pipe()
    os.close(target_end)
    with here, there:
        there.sendall(b"to nobody")
        connecting.copy(os.open(os.devnull, os.O_RDONLY), target, here)
    os.close(target)


# The start

UP = """
import os, sys, time
sys.path.insert(0, {repository!r})
from gitguardfs.host.vm import state
one = state.State({project!r}, {directory!r})
print("words", sys.argv[1:], flush=True)
if {how!r} == "fails":
    sys.exit("there is no image")
session, lock = state.take(one.session_lock), state.take(one.lock)
if not session:
    sys.exit("the VM is already in use")
open(one.path("starts"), "a").write("x")
time.sleep(0.3)
open(one.ready, "w").close()
sys.stdin.read()
time.sleep(3)
"""


@contextmanager
def running_vm(state: State, monkeypatch: pytest.MonkeyPatch, port: int) -> Iterator[None]:
    """Let the VM be taken to run, with this port."""
    monkeypatch.setattr(qmp, "ssh_port", lambda _: port)
    monkeypatch.setattr(qmp, "status", lambda _: "running")
    lock = states.take(state.lock)
    assert lock is not None
    Path(state.ready).touch()
    yield
    os.close(lock)


@pytest.fixture
def starts(state: State, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let `vm up` be a program of ours."""

    def let(how: str) -> None:
        code = UP.format(
            repository=str(REPOSITORY), project=state.project, directory=state.directory, how=how
        )
        monkeypatch.setattr(
            installation, "command", lambda *words, **_: [sys.executable, "-c", code, *words]
        )

    monkeypatch.setattr(qmp, "ssh_port", lambda _: 1)
    return let


def test_two_connections_start_one_vm_and_wait_for_its_guest(
    state: State, starts: Callable[[str], None], capfd: pytest.CaptureFixture[str]
) -> None:
    starts("works")
    started: list[subprocess.Popen[bytes] | None] = []
    threads = [
        threading.Thread(target=lambda: started.append(connecting.start(state))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert os.path.exists(state.ready) and running.is_running(state)
    assert Path(state.path("starts")).read_text() == "x"
    assert "gitguard vm stop stops it" in capfd.readouterr().err
    assert connecting.start(state) is None  # it runs
    for process in filter(None, started):
        process.wait(30)
    assert connecting.UNTIL_STOPPED in Path(state.path(connecting.LOG)).read_text()


def test_a_start_that_fails_says_where_the_reason_is(
    state: State, starts: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    starts("fails")
    with pytest.raises(UserError, match=r"did not start \(.*start\.log says why\)"):
        connecting.start(state)
    log = Path(state.path(connecting.LOG))
    assert "there is no image" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600
    os.unlink(state.disk)
    with pytest.raises(UserError, match=r"was never started \(gitguard vm up makes it\)"):
        connecting.start(state)


def test_a_start_that_hangs_is_given_up(
    state: State, starts: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "START_LIMIT", 0.1)
    lock = states.take(state.lock)
    assert lock is not None
    with pytest.raises(UserError, match="did not start"):
        connecting.start(state)
    os.close(lock)


def test_without_start_a_vm_that_is_not_running_is_said(state: State) -> None:
    assert "the VM is not running (gitguard vm up starts it)" in str(vm(state, "connect").exception)
    assert "connect" not in CliRunner().invoke(group.command, ["--help"]).output.split()
