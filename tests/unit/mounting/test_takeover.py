"""What is handed over, and to whom, without a mount."""

import marshal
import os
import socket
from contextlib import suppress
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


def test_a_manager_gets_each_descriptor_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fd_store, "TAKEN_LIMIT", 0.0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        relay = fd_store.Relay(str(tmp_path / "notify"))
        relay.open()

        def stored() -> list[str]:
            """Return what the manager was told, with the names of the files."""
            said = []
            with suppress(BlockingIOError):
                while True:
                    text, fds, _, _ = socket.recv_fds(manager, 100, 4)
                    said.append(text.decode().replace("\nFDNAME", ""))
                    for fd in fds:
                        said.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
                        os.close(fd)
            return [word for word in said if not word.startswith("pipe:")]

        with open(tmp_path / "one", "w") as one, open(tmp_path / "two", "w") as two:
            relay.keep({"a": one.fileno(), "b": two.fileno()})
            relay.started()
            assert stored() == ["FDSTORE=1=a", "one", "FDSTORE=1=b", "two"]
            assert not any(map(os.get_inheritable, relay.kept.values())), "git would have them"
            removed = ["FDSTOREREMOVE=1=a", "FDSTOREREMOVE=1=b"]
            relay.starting()
            assert stored() == removed, "the next daemon has handles of its own"
            relay.started()
            stored()
            relay.hand_over({"a": two.fileno()})
        relay.ended()
        assert stored() == [*removed, "FDSTORE=1=a", "two", "BARRIER=1"]
        relay.keep({})
        relay.receive()
        assert stored() == ["FDSTOREREMOVE=1=a"], "it is to begin anew"
        assert relay.kept == {}
        relay.close()


def test_nothing_is_kept_after_an_end_without_a_hand_over(tmp_path: Path) -> None:
    relay = fd_store.Relay(None)
    relay.open()
    with open(tmp_path / "one", "w") as one:
        relay.keep({"a": one.fileno()})
    relay.started()
    assert list(relay.kept) == ["a"]
    relay.ended()
    assert relay.kept == {}
    relay.close()
