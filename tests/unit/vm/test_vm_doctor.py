"""The doctor on the host of VMs: what it says of their guards, and how it asks their guests."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gitguardfs.base.errors import UserError
from gitguardfs.commands import doctor
from gitguardfs.doctor.attack_checks import STOPPING
from gitguardfs.host.commands import doctor as host_doctor
from gitguardfs.host.commands.vm.group import command as vm_command
from gitguardfs.host.vm import guest_doctor, keys, running, settings, ssh
from gitguardfs.host.vm import state as states
from gitguardfs.host.vm.settings import Settings
from gitguardfs.host.vm.state import State
from gitguardfs.linux.mountinfo import MountInfo, parse

GUEST = ssh.SshGuest(keys.Keys("/keys"), 1, "/view")
TABLE = "30 1 0:30 / {} rw - fuse.gitguardfs x rw\n"


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """The command handles these until its process ends."""
    before = {number: signal.getsignal(number) for number in STOPPING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> State:
    for name in ("STATE", "CONFIG", "DATA", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    monkeypatch.delenv("SUDO_UID", raising=False)
    monkeypatch.setattr(states, "SOCKET_PATH_BYTES", 1000)
    (tmp_path / "p/inside").mkdir(parents=True)
    found = states.state_of(str(tmp_path / "p"))
    states.create(found)
    settings.save(found, Settings(found.project))
    Path(found.disk).touch()
    monkeypatch.chdir(tmp_path)
    mounted(monkeypatch)
    return found


def mounted(monkeypatch: pytest.MonkeyPatch, *views: str) -> None:
    text = "".join(TABLE.format(view) for view in views)
    table: tuple[MountInfo, ...] = tuple(parse(text.encode()))
    monkeypatch.setattr(doctor, "read_table", lambda: table)
    monkeypatch.setattr(host_doctor, "read_table", lambda: table)


@pytest.fixture
def runs(state: State, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    lock = states.take(state.lock)
    assert lock is not None
    monkeypatch.setattr(running, "guest", lambda _: GUEST)
    yield
    os.close(lock)


def guest(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Let a script of the shell stand for ssh; $1 is the line for the guest's shell."""
    monkeypatch.setattr(
        ssh, "command", lambda *_, remote: ["sh", "-c", script, "sh", remote]
    )  # fmt: skip


def said(*words: str) -> Result:
    return CliRunner().invoke(doctor.command, words)


# What the guest says


@pytest.mark.parametrize(
    ("status", "expected"), [(0, 0), (1, 1), (2, 2), (3, 3), (ssh.FAILED, 3), (127, 127)]
)
def test_the_guests_text_and_exit_code_are_passed_on(
    state: State, runs: None, monkeypatch: pytest.MonkeyPatch, status: int, expected: int,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    guest(monkeypatch, f"echo \"$1\"; echo '    two   columns'; echo why >&2; exit {status}")
    assert guest_doctor.run(state, ["--attack"]) == expected
    out, err = capfd.readouterr()
    assert out == "gitguard doctor --attack\n    two   columns\n"
    assert err == "why\n"


def test_a_terminal_only_shows_what_the_guest_says(
    state: State, runs: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    hostile = r"printf '\033[2J\r\233\377 \342\200\256x\nno end'"
    guest(monkeypatch, f"{hostile}; {hostile} >&2; head -c 200000 /dev/zero >&2; echo")
    assert guest_doctor.run(state, []) == 0
    for text in capfd.readouterr():
        assert text.startswith("\\x1b[2J") and "no end" in text
        assert text.replace("\n", "").isprintable()


@pytest.mark.parametrize("end", ["", " >&2"])
def test_a_guest_that_writes_without_end_is_cut_off(
    state: State, runs: None, monkeypatch: pytest.MonkeyPatch, end: str,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(guest_doctor, "MOST", 1 << 12)
    guest(monkeypatch, f"exec seq 200000{end}")
    assert guest_doctor.run(state, []) == 3
    out, err = capfd.readouterr()
    assert len(out + err) < 1 << 13 and "no end" in err


def test_a_vm_that_is_off_or_has_its_guard_here_is_one_error(
    state: State, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    with pytest.raises(UserError, match=r"not running.*gitguard vm up"):
        guest_doctor.run(state, [])
    request.getfixturevalue("runs")
    settings.save(state, Settings(state.project, guard="host"))
    with pytest.raises(UserError, match=rf"--guard host.*gitguard doctor --host {state.project}"):
        guest_doctor.run(state, [])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ["--fail-on", "medium"]),
        (["--attack", "--json", "--fail-on", "low"], ["--attack", "--json", "--fail-on", "low"]),
    ],
)
def test_the_command_has_the_doctors_options(
    state: State, monkeypatch: pytest.MonkeyPatch, words: list[str], expected: list[str]
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(guest_doctor, "run", lambda where, given: asked.append((where, given)))
    CliRunner().invoke(vm_command, ["doctor", "--project", state.project, *words])
    assert asked == [(state, expected)]


# On the host


@pytest.mark.parametrize("place", ["p", "p/inside"])
def test_the_host_of_a_vm_that_is_off_has_no_findings_of_a_guest(
    state: State, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.chdir(place)
    done = said()
    first, *_, last = done.output.splitlines()
    assert done.exit_code == 0 and "high" not in done.output
    assert "the host of 1 VM," in first
    assert "gitguard vm up starts the VM, then gitguard vm doctor checks it" in last
    results = json.loads(said("--json").output)
    assert {one["status"] for one in results if one["severity"] not in (None, "low")} == set()
    assert "gitguard vm doctor" in results[-1]["hint"]
    done = said("--attack")
    assert isinstance(done.exception, UserError)
    assert "gitguard vm doctor --attack" in done.exception.hint


def test_elsewhere_on_the_host_the_project_has_to_be_named(state: State) -> None:
    assert said().output.endswith("gitguard vm doctor --project DIR\n")
    assert f"gitguard vm up --project {state.project} starts" in said(state.project).output


def test_of_two_vms_around_a_directory_the_nearer_one_counts(state: State) -> None:
    inner = states.state_of(f"{state.project}/inside")
    states.create(inner)
    settings.save(inner, Settings(inner.project))
    assert f"gitguard vm up --project {inner.project} starts" in said(inner.project).output


def test_the_guest_of_a_vm_that_runs_is_asked(
    state: State, runs: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    guest(monkeypatch, 'echo "$1"; exit 1')
    status = doctor.command.main([state.project, "--attack"], standalone_mode=False)
    out = capfd.readouterr().out
    assert status == 1 and "gitguard doctor --attack --fail-on medium\n" in out
    assert f"in the guest of {state.project}" in out
    guest(monkeypatch, "kill -9 $$")  # nothing was checked
    assert doctor.command.main([state.project], standalone_mode=False) == 3
    settings.save(state, Settings(state.project, guard="host"))
    assert doctor.command.main([state.project], standalone_mode=False) == 0
    assert "--guard host" in capfd.readouterr().out


def test_a_view_on_the_host_is_its_guests_but_others_are_checked_as_ever(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted(monkeypatch, f"/run/user/1000/gitguardfs/{state.name}")
    assert "the host of 1 VM" in said().output
    asked: list[object] = []
    monkeypatch.setattr(doctor, "examine", lambda path, *_, **__: asked.append(path) or [])
    mounted(monkeypatch, "/srv/src")
    said()
    mounted(monkeypatch, state.project)
    said(state.project)
    mounted(monkeypatch)
    said("/")  # no VM's
    monkeypatch.setitem(sys.modules, "gitguardfs.host.commands", None)
    said()  # a guest
    assert asked == [None, state.project, "/", None]


def test_root_names_the_callers_vms_and_asks_no_guest(
    state: State, runs: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("SUDO_UID", "1234")
    vms = host_doctor._vms()
    monkeypatch.setattr(host_doctor, "_vms_of", lambda caller: vms if caller == "1234" else [])
    assert said(state.project).output.endswith(
        f"without sudo, gitguard vm doctor --project {state.project}\n"
    )
    (tmp_path / ".local/state").mkdir(parents=True)
    (tmp_path / "STATE/gitguardfs").rename(tmp_path / ".local/state/gitguardfs")
    for name in ("STATE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / "of-root"))
    monkeypatch.setenv("HOME", "/root")
    (found,) = host_doctor._at_home(str(tmp_path))
    assert found["project"] == state.project
