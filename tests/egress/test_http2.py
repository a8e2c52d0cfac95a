"""Clients that offer HTTP/2 with a request for an http:// URL, as Java does, or speak only that."""

import pytest

from gitguardfs.host.egress import reports, requests
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


def test_a_client_that_speaks_nothing_else_is_reported_when_it_gives_up(world: World) -> None:
    """Such as gRPC's: it closes after the handshake."""
    with world.client() as client:
        client.tunnel("allowed.test:443", alpn=("grpc-exp", "h2"))
    world.wait_until(lambda: len(world.blocked) == 1)
    (blocked,) = world.blocked
    assert (blocked["method"], blocked["url"]) == ("CONNECT", "allowed.test:443")
    assert (blocked["reason"], blocked["kind"]) == (requests.ONLY_HTTP_2, "request")
    assert "set it to HTTP/1.1" in reports.blocked_text(world.directory)
    assert b"set it to HTTP/1.1" in world.get("http://gitguard.invalid/blocked").body


@pytest.mark.parametrize("offers", [("h2", "http/1.1"), ("h2",)])
def test_a_client_that_speaks_http_1_too_is_not(world: World, offers: tuple[str, ...]) -> None:
    world.allow("GET https://allowed.test/ok")
    before = len(world.log)
    with world.client() as client:
        client.tunnel("allowed.test:443", alpn=offers)
        if offers == ("h2",):
            client.send(head("GET /ok"))
            assert client.answer().status == 200
    world.wait_until(lambda: "client disconnect" in world.log[before:])
    assert world.blocked == []


@pytest.mark.parametrize("target", ["", "allowed.test:80", "allowed.test:443"])
def test_prior_knowledge_is_told_as_that(world: World, target: str) -> None:
    with world.client() as client:
        if target:
            client.tunnel(target, None if target.endswith(":80") else "", alpn=("h2",))
        client.send(H2C_FRAMES)
        assert client.answer().status == 418
    (blocked,) = world.blocked
    assert (blocked["method"], blocked["reason"]) == ("PRI", requests.ONLY_HTTP_2)
