"""Responses whose end servers announce in odd ways: repaired as curl reads them, or refused."""

import socket

import pytest

from tests.egress.bypasses import head
from tests.egress.test_messages import accept
from tests.egress.upstream import PUBLIC
from tests.egress.world import SLOW, SLOW_PORT, Answer, World

CHUNKS = b"2\r\nxx\r\n0\r\n\r\n"


def ask(world: World, fields: str, body: bytes, line: str = "HTTP/1.1 200 OK") -> Answer:
    """Return what a client gets of a response."""
    world.allow(f"GET http://{SLOW}/*")
    with socket.create_server((PUBLIC, SLOW_PORT)) as server, world.client() as client:
        client.send(head(f"GET http://{SLOW}/", host=SLOW))
        with accept(server) as answering:
            answering.recv(65536)
            answering.sendall(f"{line}\r\n{fields}\r\n".encode() + body)
        return client.answer()


@pytest.mark.parametrize(
    ("fields", "body", "left"),
    [
        ("Content-Length: 7\r\nTransfer-Encoding: chunked\r\n", CHUNKS, ["chunked"]),
        ("Content-Length: 2\r\ncontent-length: 2\r\n", b"xx", ["2"]),
        ("Content-Length: 2, 2\r\n", b"xx", ["2"]),
        ("Content-Length: 02\r\n", b"xx", ["2"]),
        ("Transfer-Encoding: identity\r\nContent-Length: 2\r\n", b"xx", ["2"]),
        ("Transfer-Encoding: identity\r\n", b"xx", []),
        ("Transfer-Encoding: identity, chunked\r\n", CHUNKS, ["chunked"]),
        ("Content-Length : 2\r\nX-Odd\t: y\r\n", b"xx", ["2"]),
    ],
)
def test_one_field_at_most_says_where_the_body_ends(
    world: World, fields: str, body: bytes, left: list[str]
) -> None:
    answer = ask(world, fields, body)
    assert (answer.status, answer.body) == (200, b"xx")
    lengths = answer.headers.get_all("Content-Length", [])
    assert lengths + answer.headers.get_all("Transfer-Encoding", []) == left
    if "X-Odd" in fields:
        assert answer.headers["X-Odd"] == "y"


@pytest.mark.parametrize("status", [204, 304])
def test_a_response_without_a_body_ends_with_its_header(world: World, status: int) -> None:
    world.allow(f"GET http://{SLOW}/*")
    with socket.create_server((PUBLIC, SLOW_PORT)) as server, world.client() as client:
        client.send(head(f"GET http://{SLOW}/", host=SLOW))
        with accept(server) as answering:
            answering.recv(65536)
            line = b"HTTP/1.1 %d No\r\n" % status
            answering.sendall(line + b"Transfer-Encoding: chunked\r\n\r\n")
            assert client.answer().status == status
        client.send(head("GET http://allowed.test/no"))
        assert client.answer().status == 418


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ("Content-Length: 2\r\nContent-Length: 3\r\n", b"two Content-Lengths that differ"),
        ("Content-Length: -2\r\n", b"a Content-Length that is not a number"),
        ("Content-Length: SECRET\r\n", b"a Content-Length that is not a number"),
        ("Transfer-Encoding: SECRET\r\n", b"a Transfer-Encoding that is not known"),
        ("Transfer-Encoding: chunked, chunked\r\n", b"a Transfer-Encoding that is not known"),
        ("X SECRET: y\r\n", b"a field&#x27;s name that is not valid"),
        ("SECRET\r\n", b"not valid HTTP"),
        (" SECRET: y\r\n", b"not valid HTTP"),
    ],
)
def test_another_answer_is_refused_in_words_of_our_own(
    world: World, fields: str, why: bytes
) -> None:
    before = len(world.log)
    answer = ask(world, fields, b"xx")
    assert answer.status == 502
    assert b"server&#x27;s answer was refused: " in answer.body
    assert why in answer.body
    for word in (b"SECRET", b"mitmproxy", b"validate_inbound_headers"):
        assert word not in answer.body
    assert "SECRET" not in world.log[before:]


def test_a_coding_needs_http_1_1(world: World) -> None:
    answer = ask(world, "Transfer-Encoding: chunked\r\n", CHUNKS, "HTTP/1.0 200 OK")
    assert b"a Transfer-Encoding before HTTP/1.1, or" in answer.body
