"""The relay: a real process between a socket, as QEMU gives it, and a listening proxy."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

import gitguardfs.vm

RELAY = Path(gitguardfs.vm.__file__).with_name("relay.py")
PATIENCE = 30.0


@contextmanager
def relay(state: Path) -> Iterator[socket.socket]:
    """The guest's end of a connection; the other is the relay's stdin, stdout and stderr."""
    ours, its = socket.socketpair()
    ours.settimeout(PATIENCE)
    command = [sys.executable, "-I", "-S", str(RELAY), str(state)]
    with subprocess.Popen(command, stdin=(fd := its.fileno()), stdout=fd, stderr=fd) as process:
        its.close()
        with ours:
            yield ours
        process.wait(PATIENCE)


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


def test_an_answer_gets_through_while_the_guest_is_still_asking(tmp_path: Path) -> None:
    def answer(peer: socket.socket) -> None:
        assert peer.recv(10) == b"question"
        peer.sendall(b"answer")
        assert receive_all(peer) == b"more"

    with proxy(tmp_path, answer), relay(tmp_path) as guest:
        guest.sendall(b"question")
        assert guest.recv(6) == b"answer"
        guest.sendall(b"more")
        guest.shutdown(socket.SHUT_WR)
        assert guest.recv(1) == b""


def test_the_relay_ends_when_the_proxy_closes(tmp_path: Path) -> None:
    with proxy(tmp_path, lambda peer: peer.sendall(b"bye")), relay(tmp_path) as guest:
        assert receive_all(guest) == b"bye"  # though the guest has not closed


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
