"""The relay: a real process between a socket, as QEMU gives it, and a listening proxy."""

import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

import pytest

import gitguardfs.host.vm.relay
from gitguardfs.host.vm.relay import MAX_RELAYS

RELAY = Path(gitguardfs.host.vm.relay.__file__)
PATIENCE = 30.0


IMPATIENT = (
    "-I", "-c", f"import sys; sys.path.insert(0, {str(RELAY.parent)!r});"
    " import relay; relay.STALL_LIMIT = 2; relay.main(sys.argv[1])",
)  # fmt: skip


@contextmanager
def relay(state: Path, *program: str) -> Iterator[socket.socket]:
    """The guest's end of a connection; the other is the relay's stdin, stdout and stderr."""
    ours, its = socket.socketpair()
    ours.settimeout(PATIENCE)
    its.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)  # as large as some systems have it
    command = [sys.executable, *(program or ("-I", "-S", str(RELAY))), str(state)]
    with subprocess.Popen(command, stdin=(fd := its.fileno()), stdout=fd, stderr=fd) as process:
        its.close()
        try:
            with ours:
                yield ours
                process.wait(PATIENCE)  # by itself, not because we hang up
        finally:
            process.kill()


def announce(state: Path, port: int) -> IO[str]:
    path = state / "proxy.json"
    path.write_text(json.dumps({"pid": 1, "port": port}))
    return path.open()


@contextmanager
def proxy(state: Path, serve: Callable[[socket.socket], None]) -> Iterator[None]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        announced = announce(state, port)
        fcntl.flock(announced, fcntl.LOCK_EX)

        def accept() -> None:
            peer, _ = server.accept()
            with peer:
                serve(peer)

        thread = threading.Thread(target=accept)
        thread.start()
        with announced:
            yield
            thread.join(PATIENCE)
        assert not thread.is_alive()


def receive_all(peer: socket.socket) -> bytes:
    found = b""
    while data := peer.recv(65536):
        found += data
    return found


def test_bytes_go_both_ways_until_both_have_ended(tmp_path: Path) -> None:
    data = os.urandom(3_000_000)

    def echo(peer: socket.socket) -> None:
        peer.sendall(receive_all(peer)[::-1])

    with proxy(tmp_path, echo), relay(tmp_path) as guest:
        sender = threading.Thread(
            target=lambda: (guest.sendall(data), guest.shutdown(socket.SHUT_WR))
        )
        sender.start()
        assert receive_all(guest) == data[::-1]
        sender.join(PATIENCE)


def test_the_relay_ends_when_the_proxy_breaks_off_and_the_guest_takes_nothing(
    tmp_path: Path,
) -> None:
    def break_off(peer: socket.socket) -> None:
        send_until_blocked(peer)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with proxy(tmp_path, break_off), relay(tmp_path):
        pass


def test_the_relay_does_not_wait_for_ever_for_a_guest_that_takes_nothing(tmp_path: Path) -> None:
    def answer(peer: socket.socket) -> None:
        send_until_blocked(peer)
        with suppress(ConnectionResetError):
            assert peer.recv(1) == b""

    with proxy(tmp_path, answer), relay(tmp_path, *IMPATIENT):
        pass


def test_the_kernel_keeps_little_of_what_the_guest_does_not_take(tmp_path: Path) -> None:
    taken = 200 << 20  # quickly, so that the kernel would make its buffers large
    blocked = threading.Event()
    sent = []

    def send(peer: socket.socket) -> None:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        sent.append(send_until_blocked(peer))
        blocked.set()

    with proxy(tmp_path, send), relay(tmp_path) as guest:
        left = taken
        while left:
            left -= len(guest.recv(min(left, 1 << 20)))
        assert blocked.wait(PATIENCE)
        kept = len(receive_all(guest))
    assert sum(sent) == taken + kept
    assert kept < 1 << 20


def send_until_blocked(peer: socket.socket) -> int:
    """Send until no byte is taken for a second. Return how many bytes were."""
    peer.settimeout(1)
    sent = 0
    with suppress(TimeoutError):
        while True:
            sent += peer.send(b"x" * 65536)
    peer.settimeout(PATIENCE)
    return sent


def test_there_is_a_limit_of_relays_and_each_that_ends_makes_room(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=MAX_RELAYS) as server:
        server.settimeout(PATIENCE)
        announced = announce(tmp_path, server.getsockname()[1])
        fcntl.flock(announced, fcntl.LOCK_EX)
        with announced, ExitStack() as stack:
            peers = []
            for _ in range(MAX_RELAYS):
                guest = stack.enter_context(relay(tmp_path))
                peers.append(stack.enter_context(server.accept()[0]))
            with relay(tmp_path) as refused:
                assert receive_all(refused).startswith(b"HTTP/1.1 503 ")
            server.settimeout(0.5)
            with pytest.raises(TimeoutError):  # it has not connected
                server.accept()
            server.settimeout(PATIENCE)
            peers[0].close()
            again = stack.enter_context(relay(tmp_path))
            with server.accept()[0] as peer:
                again.sendall(b"question")
                assert peer.recv(8) == b"question"
            guest.close()


@pytest.mark.parametrize(
    "content", [None, "", "{}", "[]", '{"port": "x"}', '{"port": 1}'],
    ids=["no file", "empty", "no port", "a list", "no number", "nobody listens"],
)  # fmt: skip
def test_without_a_proxy_the_guest_is_told_what_to_do(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "proxy.json").write_text(content)
    with relay(tmp_path) as guest:
        answer = receive_all(guest)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 502 ")
    assert body.endswith(b"gitguard vm proxy\n")


def test_the_relay_takes_nothing_from_where_it_is_started(tmp_path: Path) -> None:
    """QEMU may be started in the project, where the agent can put a module of any name."""
    (tmp_path / "json.py").write_text("raise SystemExit('taken over')")
    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        with relay(tmp_path) as guest:
            assert receive_all(guest).startswith(b"HTTP/1.1 502 ")
    finally:
        os.chdir(before)


def test_the_port_that_a_killed_proxy_has_left_leads_to_no_other_program(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        with announce(tmp_path, other.getsockname()[1]), relay(tmp_path) as guest:
            other.settimeout(PATIENCE)
            other.accept()[0].close()
            assert b"502 Bad Gateway" in receive_all(guest)
