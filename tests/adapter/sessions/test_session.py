"""The session's calls between two requests, and its question to a new mount."""

import re
import sys
import threading
from pathlib import Path

import pytest
import trio

from gitguardfs.sessions.pyfuse3_session import session as module
from gitguardfs.sessions.pyfuse3_session.session import Pyfuse3Session
from tests.adapter.world import World


@pytest.fixture
def served(world: World, monkeypatch: pytest.MonkeyPatch) -> Pyfuse3Session:
    """One that serves no requests, and ends when ``stop`` is called."""
    made = Pyfuse3Session(world.requests)
    ended: list[bool] = []

    async def serve() -> None:
        with trio.fail_after(20):
            while not ended:
                await trio.lowlevel.checkpoint()

    async def announce(*_: object) -> None:
        pass

    monkeypatch.setattr(made._loop, "serve", serve)
    monkeypatch.setattr(made._loop, "stop", lambda: ended.append(True))
    monkeypatch.setattr(module, "_announce", announce)
    return made


def test_the_versions_are_of_the_libfuse_that_serves() -> None:
    said = re.fullmatch(r"libfuse (3\.\S+), pyfuse3 \S+", module.versions())
    assert said
    files = Path("/proc/self/maps").read_text()
    assert f"/libfuse3.so.{said[1]}\n" in files


def test_a_call_before_serving_is_made_while_serving(served: Pyfuse3Session) -> None:
    made = []
    served.call_soon(lambda: made.append("early"))
    assert made == []
    served.stop()
    served.serve(lambda: None)
    assert made == ["early"]


def test_a_call_after_serving_is_dropped(served: Pyfuse3Session) -> None:
    served.stop()
    served.serve(lambda: None)
    made = []
    served.call_soon(lambda: made.append("late"))
    served.stop()
    assert made == []


@pytest.mark.parametrize("stat", ["/bin/false", "/nonexistent/stat", "/usr/bin/stat"])
def test_without_a_usable_stat_python_asks_the_new_mount(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stat: str
) -> None:
    python, asked = tmp_path / "python", tmp_path / "asked"
    python.write_text(f'#!/bin/sh\necho "$5" >{asked}\n')
    python.chmod(0o755)
    monkeypatch.setattr(module, "STAT", stat)
    monkeypatch.setattr(sys, "executable", str(python))
    # In a thread, as the session does: it blocks signals.
    thread = threading.Thread(target=module._ask, args=(str(tmp_path),))
    thread.start()
    thread.join()
    if stat == "/usr/bin/stat":
        assert not asked.exists()
    else:
        assert asked.read_text() == f"{tmp_path}\n"
