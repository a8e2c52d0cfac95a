"""The doctor looks at the socket of Lima's guest agent, as the user."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gitguardfs.base.findings import Result, Status
from gitguardfs.doctor import privilege_checks
from gitguardfs.doctor.context import CheckedSystem, Context
from gitguardfs.linux import run_as
from gitguardfs.linux.run_as import NoAnswer, User
from tests.support.mounting import area
from tests.support.people import as_user

AGENT = User(65534, 65534, (65534,), "agent")

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")


@pytest.fixture
def listening() -> Iterator[Path]:
    with area() as here, socket.socket(socket.AF_UNIX) as server:
        server.bind(str(here / "agent.sock"))
        server.listen()
        yield here / "agent.sock"


def seen(path: Path, user: User | None = AGENT) -> list[Result]:
    return privilege_checks.check_lima(
        Context("/", user, True, system=CheckedSystem(lima_socket=str(path)))
    )


def test_a_socket_for_everybody_is_a_finding(listening: Path) -> None:
    listening.chmod(0o777)
    (row,) = seen(listening)
    assert (row.id, row.status) == ("rights.lima", Status.FINDING)
    assert "2.1.3" in row.hint and str(listening) in row.detail


@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_a_socket_of_roots_is_well(listening: Path, mode: int) -> None:
    listening.chmod(mode)
    (row,) = seen(listening)
    assert row.status is Status.OK
    with pytest.raises(PermissionError):
        as_user(_connect, str(listening), uid=65534)


def _connect(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)


def test_where_there_is_no_lima_nothing_is_said(tmp_path: Path) -> None:
    assert seen(tmp_path / "missing") == []


def test_it_is_one_of_the_rights(listening: Path) -> None:
    listening.chmod(0o777)
    case = Context(
        "/", AGENT, True, system=CheckedSystem(lima_socket=str(listening), run_by_root=())
    )
    assert "rights.lima" in [row.id for row in privilege_checks.check(case)]


def test_no_answer_is_a_finding(listening: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object, **__: object) -> None:
        raise NoAnswer("no answer in time")

    monkeypatch.setattr(run_as, "run_as", lost)
    (row,) = seen(listening)
    assert row.status is Status.FINDING and "could not be checked" in row.detail
