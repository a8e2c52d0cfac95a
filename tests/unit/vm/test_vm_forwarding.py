"""Ports that lead into the VM: how they are written, opened, noted, and closed."""

import contextlib
import dataclasses
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gitguardfs.base.errors import UserError
from gitguardfs.base.installation import PACKAGE_PARENT
from gitguardfs.host.commands.vm import up
from gitguardfs.host.vm import (
    driver,
    forwarding,
    keys,
    ports,
    running,
    settings,
    ssh,
    trusted_programs,
)
from gitguardfs.host.vm import state as states
from gitguardfs.host.vm.ports import FORWARD, LOGIN, PUBLISH, OpenPort, Port
from gitguardfs.host.vm.settings import Settings
from gitguardfs.host.vm.state import State
from tests.support.mounting import until

SERVER = """
import os, socket, sys
os.closerange(3, 256)  # as ssh does at its start
servers = [socket.create_server(("127.0.0.1", int(port))) for port in sys.argv[2:]]
open(sys.argv[1], "w").close()
print(flush=True)
for server in servers:
    while True:
        server.accept()[0].sendall(b"guest")
"""
"""Stands for ssh: listens on the ports, but only here."""
FORWARD_PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from gitguardfs.host.vm import forwarding, ssh, state
from gitguardfs.host.vm.ports import Port
server = [sys.executable, "-c", sys.argv[3], sys.argv[2] + "/listening", sys.argv[4]]
ssh.forward = lambda *_: server
where = state.State("/p", sys.argv[2])
sys.exit(forwarding.run(where, None, Port(int(sys.argv[4]), 80)))
"""


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State("/srv/p", str(tmp_path))


@pytest.fixture
def free() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


GUEST = ssh.SshGuest(keys.Keys("/keys"), 1, "/view")


def forwards(state: State, port: int) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-c", FORWARD_PROGRAM, PACKAGE_PARENT, state.directory, SERVER]
    process = subprocess.Popen([*words, str(port)], stderr=subprocess.DEVNULL)
    until(lambda: os.path.exists(state.path("listening")), "it listens")
    return process


def is_open(port: int) -> bool:
    with contextlib.suppress(ConnectionRefusedError):
        with socket.create_connection(("127.0.0.1", port)):
            return True
    return False


# How they are written


def test_how_a_port_is_written() -> None:
    assert ports.parsed("3000") == (3000, 3000)
    assert ports.parsed("8080:80") == (8080, 80)
    assert ports.merged(("3000", "8080:80"), ("8080:81", "3000:3000", "3000")) == (
        "3000",
        "8080:81",
    )


@pytest.mark.parametrize(
    "text",
    ["", "0", "65536", "a", "80:", ":80", "1:2:3", "-1", "٣", "0.0.0.0:80", "*:80", "80:host:80"],
)
def test_what_is_no_port(text: str) -> None:
    with pytest.raises(UserError, match=r"is not a port"):
        ports.parsed(text)
    with pytest.raises(UserError, match=r"is not a port"):
        Settings("/p", publish=(text,))


# Where they listen


def test_they_listen_on_this_machine_alone_and_lead_to_both_addresses_of_the_guests() -> None:
    words = ssh.forward(GUEST, [Port(3000, 80), Port(5173, 5173)])
    targets = [words[i + 1] for i, word in enumerate(words) if word == "-L"]
    assert targets == ["127.0.0.1:3000:localhost:80", "127.0.0.1:5173:localhost:5173"]
    assert not {"-g", "-D", "-R"}.intersection(words)
    assert {"LocalCommand=echo", "ExitOnForwardFailure=yes"} <= set(words)
    assert "PermitLocalCommand=no" in ssh.command(GUEST, keys.AGENT)


@contextlib.contextmanager
def taken(*numbers: int) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for number in numbers:
            stack.enter_context(socket.create_server(("127.0.0.1", number)))
        yield


def hint_of(error: pytest.ExceptionInfo[UserError]) -> list[str]:
    assert error.value.hint is not None
    return shlex.split(error.value.hint.partition(": ")[2])


def test_a_taken_port_is_one_line_with_a_command_that_works(state: State, free: int) -> None:
    with taken(free), pytest.raises(UserError, match=rf"port {free} .*in use") as error:
        forwarding.run(state, GUEST, Port(free, 80))
    *words, other = hint_of(error)
    assert words == ["gitguard", "vm", "forward", "--project", "/srv/p"]
    assert ports.parsed(other).there == 80 and not is_open(ports.parsed(other).here)


def test_the_port_that_up_proposes_is_none_of_the_others(free: int) -> None:
    wanted = [Port(free, 80), Port(free + 1, 81)]
    with taken(free), pytest.raises(UserError) as error:
        forwarding.check_free(wanted)
    words = hint_of(error)
    assert words[::2] == ["--publish"] * 3
    old = Settings("/p", publish=tuple(map(str, wanted)))
    other, kept = settings.merged(old, {"publish": words[1::2]}).publish
    assert kept == str(wanted[1])
    assert ports.parsed(other).there == 80 and not is_open(ports.parsed(other).here)


def test_one_port_of_this_machine_cannot_lead_to_two() -> None:
    with pytest.raises(UserError, match=r"port 80 of this machine cannot lead to two"):
        ports.merged((), ("80:1", "80:2"))
    with pytest.raises(UserError, match=r"cannot lead to two"):
        Settings("/p", publish=("80:1", "80:2"))


def test_up_refuses_a_taken_port_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "s"))
    monkeypatch.setattr(states, "SOCKET_PATH_BYTES", 300)
    monkeypatch.setattr(driver, "check_installed", lambda *_: None)
    monkeypatch.setattr(trusted_programs, "check", lambda *_, **__: None)
    (tmp_path / "p").mkdir()
    state = states.state_of(str(tmp_path / "p"))
    states.create(state)
    settings.save(state, Settings(state.project, publish=("1", "2")))
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = str(busy.getsockname()[1])
        given = Settings(state.project, hide=("customers.csv",), git="deny", publish=("2", port))
        with pytest.raises(UserError, match=rf"cannot listen on port {port} "):
            driver.up(state, driver.UpArguments(given, allow=("npm",)))
    assert not state.has_disk
    # The next start must not fail too, and must not share more.
    assert settings.load(state) == dataclasses.replace(given, publish=("2",))
    assert "# Preset: npm\n" in Path(state.path("allowlist.txt")).read_text()


# How long they are open


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL])
def test_the_end_of_the_command_closes_its_port(
    state: State, free: int, number: signal.Signals
) -> None:
    process = forwards(state, free)
    assert ports.opened(state) == [OpenPort(Port(free, 80), FORWARD)]
    assert is_open(free)
    with (
        pytest.raises(UserError, match=r"into this VM already"),
        ports.noted(state, Port(free, 1), PUBLISH),
    ):
        pass
    process.send_signal(number)
    status = {signal.SIGINT: 0, signal.SIGKILL: -signal.SIGKILL}.get(number, 128 + number)
    assert process.wait(60) == status
    until(lambda: not ports.opened(state), "it is closed")
    assert not is_open(free)


EARLY = """
import os, signal, subprocess, sys
whole = subprocess.Popen.__init__

def told_meanwhile(self, *words, **how):
    whole(self, *words, **how)
    os.kill(os.getpid(), int(sys.argv[5]))

subprocess.Popen.__init__ = told_meanwhile
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_ssh_is_started_closes_it_as_well(
    state: State, free: int, number: signal.Signals
) -> None:
    words = [sys.executable, "-c", EARLY + FORWARD_PROGRAM, PACKAGE_PARENT, state.directory]
    done = subprocess.run(
        [*words, SERVER, str(free), str(int(number))], timeout=60, stderr=subprocess.DEVNULL
    )
    assert done.returncode == 128 + number
    until(lambda: not ports.opened(state), "it is closed")
    assert not is_open(free)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, state: State) -> None:
    def listening(_: object, wanted: list[Port]) -> list[str]:
        here = [str(port.here) for port in wanted]
        return [sys.executable, "-c", SERVER, state.path("listening"), *here]

    monkeypatch.setattr(ssh, "forward", listening)


def test_published_ports_are_open_within_the_session(state: State, free: int, server: None) -> None:
    with forwarding.published(state, GUEST, [Port(free, 80)]):
        assert is_open(free)
        assert ports.opened(state) == [OpenPort(Port(free, 80), PUBLISH)]
    assert not is_open(free)
    assert ports.opened(state) == []
    with forwarding.published(state, GUEST, []):
        assert ports.opened(state) == []


def test_a_login_comes_back_by_its_port_and_a_taken_one_ends_nothing(
    state: State, free: int, server: None, capsys: pytest.CaptureFixture[str]
) -> None:
    port = Port(free, free)
    with forwarding.for_login(state, GUEST, [port]):
        assert is_open(free)
        assert ports.opened(state) == [OpenPort(port, LOGIN)]
        with forwarding.for_login(state, GUEST, [port]):  # a second session of the agent
            assert is_open(free)
    assert not is_open(free)
    assert capsys.readouterr().err == ""
    with taken(free), forwarding.for_login(state, GUEST, [port]):
        assert ports.opened(state) == []
    assert f"port {free} of this machine" in capsys.readouterr().err


def test_a_port_is_no_longer_open_once_ssh_has_ended(
    state: State, monkeypatch: pytest.MonkeyPatch, free: int, capfd: pytest.CaptureFixture[str]
) -> None:
    brief = SERVER.replace("while True:", "for _ in range(1):")
    monkeypatch.setattr(
        ssh, "forward",
        lambda *_: [sys.executable, "-c", brief, state.path("listening"), str(free)],
    )  # fmt: skip
    with forwarding.published(state, GUEST, [Port(free, 80)]):
        assert ports.opened(state) == [OpenPort(Port(free, 80), PUBLISH)]
        assert is_open(free)
        until(lambda: not ports.opened(state), "it is closed")
    assert "closed the ports of --publish" in capfd.readouterr().err


def test_a_port_that_ssh_does_not_open_ends_the_start(
    state: State, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    monkeypatch.setattr(ssh, "forward", lambda *_: ["sh", "-c", "exit 255"])
    refused(state, free)


def test_a_port_that_another_program_takes_meanwhile_ends_the_start(
    state: State, free: int, server: None
) -> None:
    with socket.create_server(("127.0.0.1", free)):
        refused(state, free)


def refused(state: State, free: int) -> None:
    with (
        pytest.raises(UserError, match=r"did not open the ports"),
        forwarding.published(state, GUEST, [Port(free, 80)]),
    ):
        raise AssertionError("it is not open")


def test_files_that_nobody_holds_are_no_ports(state: State) -> None:
    assert ports.opened(state) == []
    with ports.noted(state, Port(80, 81), FORWARD):
        (path,) = Path(state.path("ports")).iterdir()
        assert re.fullmatch(r"\d+", path.name)
        assert path.stat().st_mode & 0o777 == 0o600
        path.write_text("damaged")
        assert ports.opened(state) == []
    path.write_text('{"guest_port": 81, "by": "x"}')
    assert ports.opened(state) == []


# For a VM that runs


@pytest.fixture
def running_vm(state: State, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(running, "guest", lambda _: GUEST)
    locks = [states.take(state.lock), states.take(state.session_lock)]
    os.pwrite(locks[1] or 0, b"1", 0)
    yield
    for lock in locks:
        os.close(lock or 0)


PUBLISHING = """
import sys
sys.path.insert(0, sys.argv[1])
from gitguardfs.host.vm import forwarding, running, ssh, state
running.guest = lambda _: None
server = [sys.executable, "-c", sys.argv[3], sys.argv[2] + "/listening", sys.argv[4]]
ssh.forward = lambda *_: server
forwarding.publish(state.State("/srv/p", sys.argv[2]), [f"{sys.argv[4]}:80"])
"""


def test_a_vm_that_runs_gets_a_port_that_outlives_the_command_and_is_remembered(
    state: State, free: int, running_vm: None
) -> None:
    settings.save(state, Settings("/srv/p", publish=("1",)), Settings("/srv/p"), ("publish",))
    words = [sys.executable, "-c", PUBLISHING, PACKAGE_PARENT, state.directory, SERVER, str(free)]
    # It keeps neither the terminal nor a pipe of the caller's: this ends.
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert f"http://127.0.0.1:{free}/ is port 80 of the VM" in done.stderr
    assert ports.opened(state) == [OpenPort(Port(free, 80), PUBLISH)]
    assert is_open(free)
    saved = settings.load_saved(state)
    assert saved.settings.publish == ("1", f"{free}:80")
    assert saved.remembered.publish == (f"{free}:80",) and saved.file_keys == ("publish",)
    # Once more: nothing to do.
    again = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert again.returncode == 0, again.stderr
    pids = map(int, filter(str.isdecimal, os.listdir("/proc")))
    shell, server = sorted(pid for pid in pids if f"listening\0{free}".encode() in cmdline(pid))
    assert os.getsid(server) == shell  # the end of a terminal reaches neither
    os.kill(server, signal.SIGTERM)  # as when the connection to the guest ends
    until(lambda: not ports.opened(state), "it is closed")


def cmdline(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


@pytest.mark.parametrize("script", ["echo no >&2; exit 255", "exit 255"])
def test_a_port_that_a_running_vm_cannot_get_is_not_remembered(
    state: State, free: int, running_vm: None, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    settings.save(state, Settings("/srv/p"))
    monkeypatch.setattr(ssh, "forward", lambda *_: ["sh", "-c", script])
    with pytest.raises(UserError, match=r"did not open the ports") as error:
        forwarding.publish(state, [str(free)])
    assert error.value.hint == ("no" if "no" in script else "")
    with taken(free), pytest.raises(UserError, match=rf"port {free} .*in use") as error:
        forwarding.publish(state, [str(free), "2"])
    *words, first, _, second = hint_of(error)
    assert words == ["gitguard", "vm", "up", "--project", "/srv/p", "--publish"]
    assert ports.parsed(first).there == free and second == "2"
    assert settings.load(state).publish == () and not ports.opened(state)


@pytest.mark.parametrize(
    ("words", "opens"),
    [
        (["--publish", "3000"], True),
        (["--publish", "3000", "--publish", "8080:80"], True),
        (["--publish", ""], False),
        (["--publish", "3000", "--memory", "1G"], False),
        (["--publish", "3000", "--no-hardened"], False),
        (["--publish", "3000", "--no-local"], False),
        (["--publish", "3000", "--", "npm", "start"], False),
        ([], False),
    ],
)
def test_only_ports_are_opened_in_a_vm_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], opens: bool
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "s"))
    monkeypatch.setattr(states, "SOCKET_PATH_BYTES", 300)
    monkeypatch.setattr(driver, "refuse_root", lambda: None)
    asked: list[object] = []
    monkeypatch.setattr(forwarding, "publish", lambda _, texts: asked.append(texts))

    def refuses(*_: object) -> int:
        raise UserError("the VM is already in use")

    monkeypatch.setattr(driver, "up", refuses)
    (tmp_path / "p").mkdir()
    state = states.state_of(str(tmp_path / "p"))
    states.create(state)
    locks = [states.take(state.lock), states.take(state.session_lock)]
    os.pwrite(locks[1] or 0, b"1", 0)
    command = up.up.make_context("up", ["--project", state.project, *words])
    with contextlib.nullcontext() if opens else pytest.raises(UserError, match=r"in use"):
        up.up.invoke(command)
    for lock in locks:
        os.close(lock or 0)
    assert bool(asked) == opens
