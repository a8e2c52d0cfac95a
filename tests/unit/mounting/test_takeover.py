"""What is handed over, and to whom, without a mount."""

import marshal
import os
import socket
from pathlib import Path

import pytest

from gitguardfs.mounting import fd_store, takeover
from gitguardfs.mounting.takeover import Succession
from gitguardfs.options.mount_options import build


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


@pytest.fixture
def offered() -> dict[str, int]:
    state = os.memfd_create("state")
    with open(state, "wb", closefd=False) as file:
        marshal.dump((takeover.FORMAT, (1, "0:0", "fuse.gitguardfs", "gone")), file)
    found = {name: os.open("/", os.O_RDONLY) for name in ("connection", "place", "file-7")}
    return found | {"state": state}


@pytest.mark.parametrize("missing", ["", "connection", "state", "place"])
def test_what_cannot_be_used_is_closed(offered: dict[str, int], missing: str) -> None:
    if missing:
        os.close(offered.pop(missing))
    options = build("/source", "/view", {})
    assert takeover.taken(options, offered, takes_over=True) is None
    assert not any(map(is_open, offered.values()))


def test_what_nobody_takes_is_closed(offered: dict[str, int]) -> None:
    def fail(_: object) -> None:
        raise BrokenPipeError

    assert not Succession(hand_over=fail).pass_on(offered)
    assert not any(map(is_open, offered.values()))


def test_descriptors_are_of_the_process_that_they_are_meant_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LISTEN_PID", str(os.getpid() + 1))
    monkeypatch.setenv("LISTEN_FDS", "1")
    monkeypatch.setenv("LISTEN_FDNAMES", "connection")
    assert fd_store.taken(None) == {}
    assert "LISTEN_FDNAMES" not in os.environ, "nor of its children"


def test_a_manager_gets_each_descriptor_by_its_name(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        relay = fd_store.Relay()
        with open(tmp_path / "one", "w") as one, open(tmp_path / "two", "w") as two:
            relay.send({"one": one.fileno(), "two": two.fileno()})
        monkey = pytest.MonkeyPatch()
        monkey.setattr(fd_store, "TAKEN_LIMIT", 0.0)
        relay.pass_on(str(tmp_path / "notify"))
        monkey.undo()
        for name in ("one", "two"):
            text, fds, _, _ = socket.recv_fds(manager, 100, 4)
            assert text == f"FDSTORE=1\nFDNAME={name}".encode()
            assert os.readlink(f"/proc/self/fd/{fds[0]}") == str(tmp_path / name)
            os.close(fds[0])
        assert manager.recv(100) == b"BARRIER=1"
        relay.pass_on(str(tmp_path / "notify"))  # a daemon that has handed nothing over
        for end in (relay._ours, relay._theirs):
            end.close()
