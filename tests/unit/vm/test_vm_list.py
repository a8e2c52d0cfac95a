"""The list of all VMs, and the same as JSON."""

import json
import os
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gitguardfs.base import columns
from gitguardfs.host.commands.vm.group import command
from gitguardfs.host.vm import ports, qmp, settings
from gitguardfs.host.vm import state as states
from gitguardfs.host.vm.ports import FORWARD, Port
from gitguardfs.host.vm.settings import Settings
from gitguardfs.host.vm.state import State

KEYS = {"name", "project", "directory", "state", "made", "disk_bytes", "ssh_port", "ports"}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "s"))
    monkeypatch.setattr(states, "SOCKET_PATH_BYTES", 1000)
    monkeypatch.setattr(columns, "PIPED", 1000)
    return tmp_path


def vm(place: Path, name: str, age: float = 0) -> State:
    """Make a VM that has run, with keys of that age in seconds."""
    (place / name).mkdir()
    state = states.state_of(str(place / name))
    states.create(state)
    settings.save(state, Settings(state.project))
    Path(state.disk).write_bytes(b"x" * (3 << 20))
    os.mkdir(state.path("keys"))
    os.utime(state.path("keys"), (time.time() - age,) * 2)
    return state


def listed(*words: str) -> str:
    done = CliRunner().invoke(command, ["list", *words])
    assert done.exit_code == 0, done.output
    return done.output


def objects() -> dict[str, dict[str, Any]]:
    """Return the JSON's objects by the last part of the project's path."""
    return {os.path.basename(one["project"] or ""): one for one in json.loads(listed("--json"))}


def test_without_a_vm_it_says_how_to_make_one(place: Path) -> None:
    assert listed() == "there are no VMs; gitguard vm up makes one\n"
    assert listed("--json") == "[]\n"
    assert os.listdir(place) == []


def test_all_vms_are_listed_by_project(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qmp, "status", lambda _: "running")
    monkeypatch.setattr(qmp, "ssh_port", lambda _: 40022)
    old, new = vm(place, "b-old", 3.5 * 86400), vm(place, "a-new", 30)
    os.rmdir(old.project)
    lock = states.take(new.lock)
    try:
        with ports.noted(new, Port(8080, 80), FORWARD), ports.noted(new, Port(3000, 3000), FORWARD):
            heading, first, second = listed().splitlines()
            found = objects()
    finally:
        assert lock is not None
        os.close(lock)
    assert heading.split() == ["NAME", "STATE", "AGE", "DISK", "PORTS", "PROJECT"]
    assert first.split() == [
        new.name, "running", "1", "minute", "3", "MiB", "40022:22", "3000", "8080:80", new.project,
    ]  # fmt: skip
    assert second.split() == [
        old.name, "not", "running", "3", "days", "3", "MiB", "-", old.project, "(missing)",
    ]  # fmt: skip
    assert all(set(one) == KEYS for one in found.values())
    assert found["a-new"]["ssh_port"] == 40022
    assert found["a-new"]["ports"][1] == {"host_port": 8080, "guest_port": 80}
    assert (found["b-old"]["state"], found["b-old"]["ports"]) == ("not running", [])
    assert found["b-old"]["disk_bytes"] >= 3 << 20
    made = datetime.fromisoformat(found["b-old"]["made"])
    assert made.tzinfo == UTC and 3.4 < (datetime.now(UTC) - made).total_seconds() / 86400 < 3.6


def test_a_qemu_that_does_not_answer_is_asked_once(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_answer(_: State) -> str:
        raise qmp.NoAnswerError

    monkeypatch.setattr(qmp, "status", no_answer)
    monkeypatch.setattr(qmp, "ssh_port", lambda _: pytest.fail("asked again"))
    lock = states.take(vm(place, "one").lock)
    assert objects()["one"]["state"] == "changing"
    assert lock is not None
    os.close(lock)


def test_one_damaged_vm_hides_no_other(place: Path) -> None:
    damaged = vm(place, "damaged")
    Path(damaged.path("settings.json")).write_text("[[")
    os.symlink("lock", damaged.lock)
    os.rmdir(damaged.path("keys"))
    vm(place, "whole")
    found = objects()
    assert found["whole"]["state"] == "not running"
    assert (found[""]["directory"], found[""]["state"]) == (damaged.directory, "not known")
    assert (found[""]["project"], found[""]["made"]) == (None, None)
    assert len(listed().splitlines()) == 3


def test_settings_without_a_disk_are_listed_and_logs_alone_are_not(place: Path) -> None:
    chosen, failed = vm(place, "chosen"), vm(place, "failed")
    os.unlink(chosen.disk)
    for name in ("disk.qcow2", "settings.json"):
        os.unlink(failed.path(name))
    Path(failed.console).write_text("panic")
    shutil.copytree(chosen.directory, f"{chosen.directory}{states._REMOVED}1")
    (place / "s/gitguardfs/vm/file").touch()
    (only,) = objects().values()
    assert (only["state"], only["disk_bytes"]) == ("none", 0)
    assert f"{chosen.name}  none   1 minute  -     -      {chosen.project}\n" in listed()


def test_a_disk_without_settings_is_listed_without_a_project(place: Path) -> None:
    os.unlink(vm(place, "one").path("settings.json"))
    assert objects()[""]["project"] is None


def test_a_long_path_goes_on_below(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "PIPED", 80)
    project = vm(place, "a" * 40).project
    assert listed().splitlines()[-1] == f"    {project}"


def test_no_path_acts_on_the_terminal(place: Path) -> None:
    vm(place, "a\x1b[31m\nb")
    assert listed().replace("\n", "").isprintable() and len(listed().splitlines()) == 2
