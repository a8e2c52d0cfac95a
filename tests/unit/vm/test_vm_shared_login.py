"""The login that the agent's sessions share: when they do, and when not."""

import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner

from gitguardfs.host.commands.vm import guest as commands
from gitguardfs.host.vm import keys, provision, running, shared_login, ssh, tell_guest
from gitguardfs.host.vm import state as states
from gitguardfs.host.vm.state import State

LOGIN = """
import socket, sys
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
print(flush=True)
while True:
    server.accept()
"""
"""Stands for ssh: listens on its socket."""
GUEST = ssh.SshGuest(keys.Keys("/keys"), 1, "/view")


@pytest.fixture
def state() -> Iterator[State]:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # a socket's path cannot be long
        yield State("/srv/p", short)


@pytest.fixture
def login(monkeypatch: pytest.MonkeyPatch) -> None:
    def words(_: ssh.SshGuest, path: str) -> list[str]:
        return [sys.executable, "-c", LOGIN, path]

    monkeypatch.setattr(ssh, "login", words)


@pytest.mark.usefixtures("login")
def test_sessions_share_a_login_as_long_as_it_lasts(state: State) -> None:
    assert shared_login.path(state) == ""
    with shared_login.opened(state, GUEST):
        assert shared_login.path(state) == state.path(shared_login.SOCKET)
    assert shared_login.path(state) == ""
    assert list(Path(state.directory).iterdir()) == []


def test_a_login_that_does_not_come_is_not_waited_for(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh, "CONNECT_LIMIT", 0.1)
    monkeypatch.setattr(ssh, "login", lambda *_: ["sleep", "60"])
    with shared_login.opened(state, GUEST):
        assert shared_login.path(state) == ""


@pytest.mark.usefixtures("login")
def test_a_socket_that_a_killed_start_has_left_is_replaced(state: State) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(state.path(shared_login.SOCKET))
        left.listen()
    assert shared_login.path(state) == ""
    with shared_login.opened(state, GUEST):
        assert shared_login.path(state) != ""


@pytest.mark.usefixtures("login")
def test_a_path_too_long_for_a_socket_is_no_fault(tmp_path: Path) -> None:
    state = State("/srv/p", str(tmp_path / ("n" * 90)))
    with shared_login.opened(state, GUEST):
        assert shared_login.path(state) == ""


def test_a_login_that_fails_is_no_fault(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "login", lambda *_: ["false"])
    with shared_login.opened(state, GUEST):
        assert shared_login.path(state) == ""


def test_the_command_of_a_session_names_the_socket() -> None:
    command = ssh.session(GUEST, ("true",), False, keys.AGENT, login="/of 50%/mux")
    assert command[command.index("-S") + 1] == "/of 50%%/mux"
    assert "-S" not in ssh.session(GUEST, ("true",), False, keys.AGENT)


@pytest.mark.usefixtures("login")
@pytest.mark.parametrize("root", [False, True])
def test_after_a_session_of_roots_sessions_log_in(
    root: bool, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent is in its new groups then."""
    ran: list[list[str]] = []
    monkeypatch.setattr(subprocess, "call", lambda words: ran.append(words) or 0)
    monkeypatch.setattr(running, "guest", lambda *_, **__: GUEST)
    monkeypatch.setattr(states, "existing", lambda _: state)
    with shared_login.opened(state, GUEST):
        for words in (["--root", "true"] if root else [], ["true"]):
            done = CliRunner().invoke(commands.ssh, words)
            assert done.exit_code == 0, done.output
    assert ["-S" in words for words in ran] == ([False, False] if root else [True, True])


@pytest.mark.usefixtures("login")
def test_a_login_of_the_time_of_roots_session_is_not_shared_after_it(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be older than what root has changed."""
    start = ExitStack()

    def session(_: list[str]) -> int:
        start.enter_context(shared_login.opened(state, GUEST))
        return 0

    monkeypatch.setattr(subprocess, "call", session)
    monkeypatch.setattr(running, "guest", lambda *_, **__: GUEST)
    monkeypatch.setattr(states, "existing", lambda _: state)
    with start:
        done = CliRunner().invoke(commands.ssh, ["--root", "usermod -aG docker agent"])
        assert done.exit_code == 0, done.output
        assert shared_login.path(state) == ""


@pytest.mark.usefixtures("login")
def test_after_a_change_of_secrets_sessions_log_in(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise they would have the variables of before."""
    monkeypatch.setattr(running, "is_running", lambda _: True)
    monkeypatch.setattr(running, "guest", lambda _: GUEST)
    monkeypatch.setattr(tell_guest, "ca_certificate", lambda _: "")
    monkeypatch.setattr(provision, "guest_files", lambda *_: [])
    monkeypatch.setattr(ssh, "command", lambda *_, **__: ["true"])
    Path(state.ready).touch()
    with shared_login.opened(state, GUEST):
        assert tell_guest.tell_guest(state) is None
        assert shared_login.path(state) == ""
