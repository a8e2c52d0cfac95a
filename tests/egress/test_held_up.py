"""What would keep the proxy from its other clients: it is refused while it arrives."""

import contextlib
import socket

import pytest

from gitguardfs.host.egress.http1 import MAX_HEAD, MAX_LINES, MAX_RECORDS
from tests.egress.bypasses import head
from tests.egress.test_messages import accept, is_closed
from tests.egress.upstream import PUBLIC, FakeDns, Upstream
from tests.egress.world import SLOW, SLOW_PORT, World, running

MANY = b"a:\n" * (MAX_LINES + 1)
LONG = b"a: " + b"x" * MAX_HEAD
"""Neither ends a header, so that nothing but a limit leads to an answer."""
CHUNKED = "Transfer-Encoding: chunked"
START = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
OK = head("GET http://allowed.test/ok")
LINE = b"GET http://allowed.test/ok HTTP/1.1\r\n"
POST = head("POST http://allowed.test/ok", CHUNKED)


@pytest.mark.parametrize(
    "sent",
    [
        LINE + MANY, LINE + LONG, OK + LINE + MANY,
        head("GET http://allowed.test/no") + LINE + MANY,
        b"CONNECT allowed.test:80 HTTP/1.1\r\n" + MANY,
        b"CONNECT allowed.test:80 HTTP/1.1\r\n\r\nGET /ok HTTP/1.1\r\n" + MANY,
        POST + b"0\r\n" + MANY, POST + b"0\r\n" + LONG, POST + b"1;" + LONG,
    ],
    ids=[
        "lines", "long", "second", "after a blocked one", "connect", "in a tunnel", "trailers",
        "long trailers", "chunk",
    ],
)  # fmt: skip
def test_what_has_no_end_is_refused_before_it_ends(world: World, sent: bytes) -> None:
    world.allow("GET http://allowed.test/ok", "POST http://allowed.test/ok")
    with world.client() as client:
        client.send(sent)
        said = b""
        with contextlib.suppress(ConnectionError):
            while part := client.socket.recv(65536):
                said += part
    if not sent.startswith(POST):
        assert b"HTTP/1.1 400 " in said
        assert b"more than 256 lines or 128 KiB of header" in said
    assert world.get("http://allowed.test/ok").status == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"HTTP/1.1 200 OK\r\n" + MANY, b"HTTP/1.1 200 OK\r\n" + LONG,
        b"HTTP/1.1 103 Wait\r\n\r\n" + MANY, b"\r\n" * (2 << 20),
        START + b"0\r\n" + MANY, START + b"0\r\n" + LONG, START + b"5;" + LONG,
    ],
    ids=["lines", "long", "interim", "blank", "trailers", "long trailers", "chunk"],
)  # fmt: skip
def test_a_server_that_does_not_end_its_header_is_refused(world: World, sent: bytes) -> None:
    world.allow(f"GET http://{SLOW}/*")
    with socket.create_server((PUBLIC, SLOW_PORT)) as server, world.client() as client:
        client.send(head(f"GET http://{SLOW}/", host=SLOW))
        with accept(server) as answering, contextlib.suppress(ConnectionError):
            answering.sendall(sent)
            assert is_closed(answering)
        if sent.startswith(START):
            assert is_closed(client.socket)
        else:
            assert client.answer().status == 502


def test_long_headers_of_many_clients_take_little_memory(
    upstream: Upstream, dns: FakeDns, state
) -> None:
    with running(state, upstream, dns) as world, contextlib.ExitStack() as stack:
        world.allow("GET http://allowed.test/ok")
        clients = [stack.enter_context(world.client()) for _ in range(60)]
        for client in clients:
            client.send(b"GET http://allowed.test/ok HTTP/1.1\r\n" + b"a:\n" * 600_000 + b"\n")
        assert world.get("http://allowed.test/ok").status == 200
        assert world.peak_memory() < 250 << 20, f"{world.peak_memory() >> 20} MiB"


def test_a_body_in_tiny_chunks_is_passed_on_in_larger_ones(world: World) -> None:
    world.allow("POST http://allowed.test/ok", f"GET http://{SLOW}/*")
    chunks = b"1\r\nx\r\n" * 100_000
    with world.client() as client:
        client.send(POST + chunks + b"0\r\n\r\n")
        assert client.answer().status == 200
    assert world.upstream.raw.count(b"x" * 100) > 100
    assert world.upstream.raw.count(b"1\r\nx\r\n") < 100
    with socket.create_server((PUBLIC, SLOW_PORT)) as server, world.client() as client:
        client.send(head(f"GET http://{SLOW}/", host=SLOW))
        with accept(server) as answering:
            answering.sendall(START + chunks + b"0\r\n\r\n")
            assert client.answer().body == b"x" * 100_000


def test_a_hello_in_many_records_is_refused(world: World) -> None:
    with world.client() as client:
        client.tunnel("allowed.test:443", sni=None)
        client.send(b"\x16\x03\x01\x00\x01\x01" + b"\x16\x03\x01\x00\x01\x00" * MAX_RECORDS)
        assert is_closed(client.socket)
