"""What HTTP/1 allows beside a plain request and response, and a proxy that fails within one."""

import contextlib
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.egress.bypasses import head
from tests.egress.upstream import PUBLIC, FakeDns, Upstream
from tests.egress.world import LIMIT, SLOW, SLOW_PORT, Client, World, running

FAULTY = Path(__file__).with_name("faulty_proxy.py")
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nxx"
FEW = 8
"""Connections at a time, where a test looks whether each leaves its place."""


@contextlib.contextmanager
def served(world: World, method: str = "GET") -> Iterator[tuple[socket.socket, Client]]:
    """A server of the test's own at SLOW, and a client that may send requests to it."""
    world.allow(f"{method} http://{SLOW}/*", "GET http://allowed.test/ok")
    with socket.create_server((PUBLIC, SLOW_PORT)) as server, world.client() as client:
        server.settimeout(LIMIT)
        yield server, client


def accept(server: socket.socket) -> socket.socket:
    """Accept a connection whose request has arrived."""
    upstream, _ = server.accept()
    upstream.settimeout(LIMIT)
    return upstream


def is_closed(peer: socket.socket) -> bool:
    """Read to the end of a connection. Raises TimeoutError if it does not end."""
    with contextlib.suppress(ConnectionResetError):
        while peer.recv(65536):
            pass
    return True


@pytest.mark.parametrize("field", [b"", b"Trailer: X-Sum\r\n"], ids=["unannounced", "announced"])
def test_a_response_with_trailers_arrives_whole_without_them(world: World, field: bytes) -> None:
    with served(world) as (server, client):
        client.send(head(f"GET http://{SLOW}/a", host=SLOW))
        with accept(server) as upstream:
            upstream.recv(65536)
            upstream.sendall(CHUNKED + field + b"\r\n5\r\nwhole\r\n0\r\nX-Sum: 1\r\n\r\n")
            answer = client.answer()
            assert (answer.status, answer.body) == (200, b"whole")
            client.send(head(f"GET http://{SLOW}/b", host=SLOW))  # both connections go on
            assert upstream.recv(65536).startswith(b"GET /b ")
            upstream.sendall(WHOLE)
            assert client.answer().body == b"xx"


@pytest.mark.parametrize("fields", [(), ("Trailer: X-Secret",)], ids=["unannounced", "announced"])
def test_a_request_with_trailers_arrives_without_them(
    world: World, fields: tuple[str, ...]
) -> None:
    request = head(f"POST http://{SLOW}/a", "Transfer-Encoding: chunked", *fields, host=SLOW)
    with served(world, "POST") as (server, client):
        client.send(request + b"4\r\ndata\r\n0\r\nX-Secret: SECRET\r\n\r\n")
        with accept(server) as upstream:
            received = b""
            while not received.endswith(b"4\r\ndata\r\n0\r\n\r\n"):
                part = upstream.recv(65536)
                assert part, received
                received += part
            upstream.sendall(WHOLE)
            assert client.answer("POST").body == b"xx"
    assert b"SECRET" not in received
    assert b"Trailer" not in received


@pytest.mark.parametrize("status", [b"100 Continue", b"102 Processing", b"103 Early Hints"])
def test_what_comes_before_the_response_is_dropped(world: World, status: bytes) -> None:
    with served(world) as (server, client):
        client.send(head(f"GET http://{SLOW}/a", host=SLOW))
        with accept(server) as upstream:
            upstream.recv(65536)
            upstream.sendall(b"HTTP/1.1 " + status + b"\r\nLink: </x>\r\n\r\n")
            upstream.sendall(b"HTTP/1.1 " + status + b"\r\n\r\n" + WHOLE)
            assert client.answer().body == b"xx"


def test_a_message_that_the_proxy_cannot_handle_closes_both_sides(
    upstream: Upstream, dns: FakeDns, state: Path
) -> None:
    """The trailers of mitmproxy's own HTTP/1 raise an exception in it."""
    with running(
        state, upstream, dns, [sys.executable, str(FAULTY), f"trailers of {FEW}"]
    ) as world:
        with served(world) as (server, client):
            client.send(head(f"GET http://{SLOW}/a", host=SLOW))
            with accept(server) as peer:
                peer.recv(65536)
                peer.sendall(CHUNKED + b"\r\n5\r\nwhole\r\n0\r\nX-Sum: 1\r\n\r\n")
                assert is_closed(peer)
            assert is_closed(client.socket)
        world.allow("GET http://allowed.test/ok", "POST http://allowed.test/post")
        request = head("POST http://allowed.test/post", "Transfer-Encoding: chunked")
        for _ in range(FEW + 1):  # each of them leaves its place
            with world.client() as client:
                client.send(request + b"4\r\ndata\r\n0\r\nX: y\r\n\r\n")
                assert is_closed(client.socket)
        assert world.get("http://allowed.test/ok").status == 200


@pytest.mark.parametrize(
    "hook",
    [
        "client_connected", "http_connect", "requestheaders", "request", "server_connect",
        "responseheaders", "response", "error", "client_disconnected",
    ],
)  # fmt: skip
def test_an_exception_in_any_hook_closes_both_sides(
    upstream: Upstream, dns: FakeDns, state: Path, hook: str
) -> None:
    with running(
        state, upstream, dns, [sys.executable, str(FAULTY), f"hook {hook} of {FEW}"]
    ) as world:
        world.allow(f"GET http://{SLOW}/*")
        before = world.open_sockets()
        for _ in range(FEW + 1):  # each of them leaves its place
            ask_slow(world, hook)
        world.wait_until(lambda: world.open_sockets() <= before)
        world.wait_until(lambda: "broken on purpose" in world.log)
        assert "refused a connection" not in world.log


def ask_slow(world: World, hook: str) -> None:
    """Send a request that reaches a hook; both sides of it are closed."""
    with contextlib.ExitStack() as stack:
        is_answered = hook in ("responseheaders", "response", "client_disconnected")
        if is_answered:
            server = stack.enter_context(socket.create_server((PUBLIC, SLOW_PORT)))
        client = stack.enter_context(world.client())
        if hook == "http_connect":
            client.send(f"CONNECT {SLOW} HTTP/1.1\r\nHost: {SLOW}\r\n\r\n".encode())
        else:
            client.send(head(f"GET http://{SLOW}/a", host=SLOW))
        if is_answered:
            peer = stack.enter_context(accept(server))
            peer.recv(65536)
            peer.sendall(WHOLE)
            if hook == "client_disconnected":
                client.socket.shutdown(socket.SHUT_WR)
            assert is_closed(peer)
        assert is_closed(client.socket)


@pytest.mark.parametrize(
    "offers",
    [(), ("http/1.1",), ("h2", "http/1.1"), ("imap", "SECRET" * 40), ("h2",)],
    ids=["none", "http/1.1", "h2 too", "others", "h2"],
)
def test_no_server_learns_which_protocols_a_client_offers(
    world: World, offers: tuple[str, ...]
) -> None:
    world.allow(f"GET https://{SLOW}/*")
    with socket.create_server((PUBLIC, SLOW_PORT)) as server, world.client() as client:
        server.settimeout(LIMIT)
        client.tunnel(SLOW, alpn=offers)
        client.send(head("GET /a", host=SLOW))
        with accept(server) as upstream:
            hello = upstream.recv(65536)
    extension = ssl_extension(hello, 16)
    assert extension == b"\x00\x09\x08http/1.1"


def ssl_extension(hello: bytes, wanted: int) -> bytes | None:
    """Return the content of an extension of a TLS ClientHello; None if it has no such one."""
    at = 5 + 4 + 2 + 32  # the headers of record and message, version, random
    at += 1 + hello[at]  # session
    at += 2 + int.from_bytes(hello[at : at + 2])  # ciphers
    at += 1 + hello[at]  # compression
    at += 2
    while at < len(hello):
        kind, size = int.from_bytes(hello[at : at + 2]), int.from_bytes(hello[at + 2 : at + 4])
        if kind == wanted:
            return hello[at + 4 : at + 4 + size]
        at += 4 + size
    return None
