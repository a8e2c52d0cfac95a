"""The watcher that `vm up` starts: it writes to the socket of QEMU's, and ends with `vm up`."""

import contextlib
import json
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gitguardfs.host.vm import settings as settings_of_vm
from gitguardfs.host.vm import state as states
from gitguardfs.host.vm import status, status_text, watcher
from gitguardfs.host.vm.settings import Settings
from gitguardfs.host.vm.state import State

pytest.importorskip("inotify_simple")


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> Iterator[State]:
    with tempfile.TemporaryDirectory(prefix="vm-") as short:
        monkeypatch.setenv("XDG_STATE_HOME", f"{short}/s")
        Path(short, "p/node_modules").mkdir(parents=True)
        state = states.state_of(f"{short}/p")
        states.create(state)
        settings_of_vm.save(state, Settings(state.project))
        yield state


@pytest.fixture
def qemu(state: State) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(state.changes)
        listening.listen()
        listening.settimeout(60)
        yield listening


def text(state: State) -> str:
    facts = status.facts(state)
    facts["vm"]["state"] = "running"
    return next(row for row in status_text.text(facts, 500).splitlines() if "changes " in row)


def test_changes_come_by_the_socket_until_vm_up_ends(state: State, qemu: socket.socket) -> None:
    own = Settings(state.project, local=("deps",), hide=("hidden",))
    assert "watch.log says why" in text(state)
    with contextlib.ExitStack() as stack:
        vm_up = stack.enter_context(contextlib.ExitStack())
        vm_up.enter_context(watcher.started(state, own))
        connection, _ = qemu.accept()
        stack.enter_context(connection)
        while (found := watcher.status(state)) is None or found["read"]:
            time.sleep(0.1)  # a beat has to be left unread
        assert "the guest does not read" in text(state)
        lines = stack.enter_context(connection.makefile("r"))
        first = json.loads(next(lines))
        assert first["gitguard-changes"] == 1
        assert len(first["shares"]) == 1
        while not json.loads(next(lines)).get("whole"):
            pass
        for name in ("node_modules/never", "hidden", "seen"):
            Path(state.project, name).touch()
        made: list[str] = []
        while not made or made[-1] != "seen":
            made += [line["made"]] if "made" in (line := json.loads(next(lines))) else []
        assert made == ["seen"]
        while not (
            (found := watcher.status(state))
            and found["directories"][0]["last_change"]
            and found["read"]
        ):
            next(lines)
        assert found["directories"][0]["path"] == state.project
        assert "told to the guest" in text(state)
        connection.sendall(b"\n")  # another reader in the guest
        while "gitguard-changes" not in json.loads(next(lines)):
            pass
        while not json.loads(next(lines)).get("whole"):
            pass
        vm_up.close()
        assert watcher.status(state) is None
        list(lines)  # it has an end


@pytest.mark.parametrize("own", [{"watch": False}, {"guard": "host"}])
def test_no_watcher_where_nobody_reads(state: State, own: dict[str, object]) -> None:
    with watcher.started(state, replace(Settings(state.project), **own)):  # type: ignore[arg-type]
        assert not os.path.exists(state.watch_log)


def test_without_the_library_the_vm_starts_with_a_warning(
    state: State, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watcher, "LIBRARY", "no_such_module")
    with watcher.started(state, Settings(state.project)):
        assert not os.path.exists(state.watch_log)
    (line,) = capsys.readouterr().err.splitlines()
    assert "pipx inject gitguardfs inotify-simple" in line


def test_only_what_no_share_shows_is_left_out(state: State) -> None:
    own = Settings(state.project, local=("deps",), hide=("*.pem",))
    assert {"--without=deps", "--without=*.pem"} <= set(watcher.command(state, own))
    # What is the guest's own in one share is the host's in one that it only reads.
    words = watcher.command(state, replace(own, share=("/usr:ro",)))
    assert "--without=deps" not in words
    assert "--without=*.pem" in words
