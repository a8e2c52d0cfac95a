"""A client that offers HTTP/2 with a request for an http:// URL, as Java does."""

from __future__ import annotations

from tests.egress.bypasses import H2C, H2C_FRAMES, head
from tests.egress.world import World


def test_it_is_served_without_it_and_the_connection_goes_on(world: World) -> None:
    world.allow("GET http://allowed.test/ok", "POST http://allowed.test/ok")
    with world.client() as client:
        client.send(head("GET http://allowed.test/ok", *H2C))
        assert client.answer().status == 200
        client.send(head("POST http://allowed.test/ok", *H2C, "Content-Length: 3") + b"abc")
        assert client.answer("POST").status == 200
    assert world.upstream.requests == [b"GET /ok HTTP/1.1", b"POST /ok HTTP/1.1"]
    for word in (b"h2c", b"http2", b"upgrade", b"connection"):
        assert word not in world.upstream.raw.lower()
    assert world.upstream.raw.endswith(b"\r\n\r\nabc")


def test_what_is_not_allowed_stays_blocked(world: World) -> None:
    world.allow("GET http://allowed.test/ok")
    with world.client() as client:
        client.send(head("GET http://allowed.test/no", *H2C))
        assert client.answer().status == 418
    (blocked,) = world.blocked
    assert (blocked["url"], blocked["kind"]) == ("http://allowed.test/no", "rule")


def test_frames_of_http2_are_not_sent_on(world: World) -> None:
    world.allow("GET http://allowed.test/ok")
    with world.client() as client:
        client.tunnel("allowed.test:80", None)
        client.send(head("GET /ok", *H2C) + H2C_FRAMES)
        answers = client.socket.makefile("rb").read()
    assert answers.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 418 " in answers
    assert b"PRI" not in world.upstream.raw
