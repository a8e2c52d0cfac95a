"""Allowed requests arrive as they were sent, and their answers come back."""

import contextlib
import random
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.egress.bypasses import head
from tests.egress.upstream import (
    NAMES,
    NEIGHBOUR,
    NEIGHBOUR_6,
    OWN,
    OWN_6,
    PRIVATE,
    PUBLIC,
    SILENT_PORT,
    UNTRUSTED_PORT,
)
from tests.egress.world import SLOW, SLOW_PORT, World

OK = "GET https://allowed.test/ok/*"


def test_an_allowed_request_arrives_and_is_answered(world: World) -> None:
    world.allow(OK)
    answer = world.get("https://allowed.test/ok/a?b=c%41", headers="X-Own: yes\r\n")
    assert (answer.status, answer.body) == (200, b"xx")
    (connection,) = world.upstream.connections
    assert connection.sni == "allowed.test"
    assert connection.address == (PUBLIC, 443)
    assert connection.data.startswith(b"GET /ok/a?b=c%41 HTTP/1.1\r\nHost: allowed.test\r\n")
    assert b"X-Own: yes\r\n" in connection.data
    assert world.blocked == []
    assert "allowed GET https://allowed.test/ok/a?b=cA" in world.log


def test_fields_for_the_proxy_stay_here(world: World) -> None:
    world.allow("GET http://allowed.test/ok/*")
    fields = "Proxy-Connection: keep-alive\r\nProxy-Authorization: Basic SECRET\r\nTE: trailers\r\n"
    assert world.get("http://allowed.test/ok/a", headers=f"{fields}Accept: */*\r\n").status == 200
    (connection,) = world.upstream.connections
    assert connection.data == b"GET /ok/a HTTP/1.1\r\nHost: allowed.test\r\nAccept: */*\r\n\r\n"


def test_http_without_a_tunnel_and_with_one(world: World) -> None:
    world.allow("GET http://allowed.test/ok/*", "GET http://allowed.test:8080/ok/*")
    assert world.get("http://allowed.test/ok/a").status == 200
    assert world.get("http://allowed.test:8080/ok/b").status == 200
    with world.client() as client:
        client.tunnel("allowed.test:80", sni=None)
        client.send(b"GET /ok/c HTTP/1.1\r\nHost: allowed.test\r\n\r\n")
        assert client.answer().status == 200
    assert [request.split()[1] for request in world.upstream.requests] == [
        b"/ok/a", b"/ok/b", b"/ok/c",
    ]  # fmt: skip


def test_an_https_url_without_a_tunnel_goes_out_by_tls(world: World) -> None:
    """As busybox's wget asks for one."""
    world.allow("GET https://allowed.test/ok/*", "GET https://other.test/ok/*")
    with world.client() as client:
        for host in ("allowed.test", "other.test"):
            client.send(head(f"GET https://{host}/ok/a", host=host))
            assert client.answer().status == 200
        client.send(head("GET https://allowed.test/no"))
        assert client.answer().status == 418
        client.send(head("GET http://allowed.test/ok/a"))
        assert client.answer().status == 418
    assert [c.sni for c in world.upstream.connections] == ["allowed.test", "other.test"]
    assert world.upstream.requests == [b"GET /ok/a HTTP/1.1"] * 2
    with world.client() as client:
        client.send(head("GET https://allowed.test/ok/a").replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert client.answer().status == 200


def test_an_https_url_without_a_tunnel_needs_a_trusted_server(world: World) -> None:
    world.allow(f"GET https://allowed.test:{UNTRUSTED_PORT}/*")
    where = f"allowed.test:{UNTRUSTED_PORT}"
    with world.client() as client:
        client.send(head(f"GET https://{where}/", host=where))
        answer = client.answer()
    assert answer.status == 502
    assert b"ertificate verify failed" in answer.body


def test_bodies_arrive_whole_with_a_length_and_in_chunks(world: World) -> None:
    world.allow("POST https://allowed.test/post")
    body = bytes(range(256)) * 500
    assert world.get("https://allowed.test/post", "POST", body=body).status == 200
    assert bytes(world.upstream.connections[0].data).endswith(b"\r\n\r\n" + body)
    with world.client() as client:
        client.tunnel()
        client.send(
            b"POST /post HTTP/1.1\r\nHost: allowed.test\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        client.send(b"5\r\nfirst\r\n6\r\nsecond\r\n0\r\n\r\n")
        assert client.answer().status == 200
    assert bytes(world.upstream.connections[1].data).endswith(
        b"\r\n\r\nb\r\nfirstsecond\r\n0\r\n\r\n"  # what has come together is one chunk
    )


def test_a_body_that_comes_slowly_is_passed_on_as_it_comes(world: World) -> None:
    world.allow("POST https://allowed.test/post")
    with world.client() as client:
        client.tunnel()
        client.send(head("POST /post", "Content-Length: 11"))
        client.send(b"first ")
        world.wait_until(lambda: world.upstream.raw.endswith(b"first "))
        client.send(b"later")
        assert client.answer().status == 200
    assert world.upstream.raw.endswith(b"\r\n\r\nfirst later")


def test_a_connection_is_used_again_and_each_request_on_it_is_judged(world: World) -> None:
    world.allow(OK)
    with world.client() as client:
        client.tunnel()
        for path, status in (("/ok/1", 200), ("/SECRET", 418), ("/ok/2", 200)):
            client.send(f"GET {path} HTTP/1.1\r\nHost: allowed.test\r\n\r\n".encode())
            assert client.answer().status == status
        world.directory.joinpath("allowlist.txt").write_text("# nothing\n")
        client.send(b"GET /ok/3 HTTP/1.1\r\nHost: allowed.test\r\n\r\n")
        assert client.answer().status == 418
    assert [line.split()[1] for line in world.upstream.requests] == [b"/ok/1", b"/ok/2"]
    assert len(world.upstream.connections) == 1


def test_http_2_is_never_agreed_on(world: World) -> None:
    world.allow(OK)
    with world.client() as client:
        client.tunnel(alpn=("h2", "http/1.1"))
        assert client.chosen_protocol() == "http/1.1"
        client.send(b"GET /ok/a HTTP/1.1\r\nHost: allowed.test\r\n\r\n")
        assert client.answer().status == 200
    assert world.upstream.connections[0].alpn == "http/1.1"
    with world.client() as client:
        client.tunnel(alpn=("h2",))
        assert client.chosen_protocol() is None


def test_large_downloads_and_uploads_keep_the_proxy_small(world: World) -> None:
    world.allow("GET http://allowed.test/ok/*", "POST http://allowed.test/post")
    size = 150 << 20
    assert world.get("http://allowed.test/ok/warm").status == 200
    before = world.peak_memory()
    with world.client() as client:
        client.send(f"GET http://allowed.test/ok/size={size} HTTP/1.1\r\n".encode())
        client.send(b"Host: allowed.test\r\n\r\n")
        received = 0
        while received < size:
            part = client.socket.recv(1 << 20)
            assert part
            received += len(part)
    assert world.get("http://allowed.test/post", "POST", body=b"x" * (50 << 20)).status == 200
    grown = world.peak_memory() - before
    assert grown < 40 << 20, f"{grown >> 20} MiB more"


def test_an_upload_waits_in_the_client_until_its_server_accepts_the_connection(
    world: World,
) -> None:
    world.allow(f"POST http://{SLOW}/up")
    body = random.randbytes(64 << 20)
    with (
        socket.create_server((PUBLIC, SLOW_PORT), backlog=0) as server,
        socket.create_connection((PUBLIC, SLOW_PORT)),  # takes the only place in the queue
        world.client() as client,
    ):
        client.send(head(f"POST http://{SLOW}/up", f"Content-Length: {len(body)}", host=SLOW))
        sent = client.send_until_blocked(body)
        assert sent < len(body) / 2, f"{sent >> 20} MiB"
        with server.accept()[0], server.accept()[0] as upstream, ThreadPoolExecutor(1) as pool:
            pool.submit(client.send, body[sent:])
            received = upstream.makefile("rb")
            while received.readline() != b"\r\n":
                pass
            assert received.read(len(body)) == body
            upstream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nxx")
            assert client.answer("POST").body == b"xx"


def test_an_upload_waits_in_the_client_until_its_server_speaks_tls(world: World) -> None:
    world.allow(f"POST https://{SLOW}/up")
    body = bytes(64 << 20)
    with socket.create_server((PUBLIC, SLOW_PORT)), world.client() as client:
        client.tunnel(SLOW)
        client.send(head("POST /up", f"Content-Length: {len(body)}", host=SLOW))
        sent = client.send_until_blocked(body)
        assert sent < len(body) / 2, f"{sent >> 20} MiB"


@pytest.mark.parametrize("body", [b"", b"data"])
def test_what_follows_a_request_waits_in_the_client_until_the_response(
    world: World, body: bytes
) -> None:
    world.allow(f"POST http://{SLOW}/slow")
    request = head(f"POST http://{SLOW}/slow", f"Content-Length: {len(body)}", host=SLOW) + body
    with socket.create_server((PUBLIC, SLOW_PORT)) as server, world.client() as client:
        client.send(request)
        with server.accept()[0] as upstream:
            following = request * 1_000_000
            sent = client.send_until_blocked(following)
            assert sent < len(following) / 2, f"{sent >> 20} MiB"
            upstream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nxx")
            assert client.answer().body == b"xx"


def test_a_connection_goes_on_after_a_response_that_came_before_the_end_of_the_request(
    world: World,
) -> None:
    world.allow(f"POST http://{SLOW}/early")
    with socket.create_server((PUBLIC, SLOW_PORT)) as server, world.client() as client:
        client.send(head(f"POST http://{SLOW}/early", "Content-Length: 4", host=SLOW) + b"da")
        with server.accept()[0] as upstream:
            upstream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nxx")
            assert client.answer().body == b"xx"
            client.send(b"ta")
            for _ in range(50):
                client.send(head(f"GET http://{SLOW}/other", "X-Long: " + "x" * 60_000, host=SLOW))
                assert client.answer().status == 418


def test_requests_that_are_sent_together_are_answered_in_their_order(world: World) -> None:
    world.allow("GET http://allowed.test/ok/*")
    with world.client() as client:
        for count in range(1, 41):
            client.send(head(f"GET http://allowed.test/ok/size={count}"))
        answers = client.socket.makefile("rb")
        for count in range(1, 41):
            assert answers.readline().startswith(b"HTTP/1.1 200 ")
            while answers.readline() != b"\r\n":
                pass
            assert answers.read(count) == b"x" * count


def test_a_server_that_fails_is_a_502_that_says_how(world: World) -> None:
    world.allow(
        f"GET https://allowed.test:{UNTRUSTED_PORT}/*",
        f"GET http://allowed.test:{SILENT_PORT}/*",
        "GET http://allowed.test:9/*",
        "GET https://nowhere.test/*",
        "GET http://allowed.test/*",
    )
    for url, text in (
        (f"https://allowed.test:{UNTRUSTED_PORT}/", b"ertificate verify failed"),
        (f"http://allowed.test:{SILENT_PORT}/", b"server closed connection"),
        ("http://allowed.test:9/", b"onnect"),
        ("https://nowhere.test/", b"cannot find the address of nowhere.test"),
        ("http://allowed.test/smuggled", b"answer was refused: two Content-Lengths"),
    ):
        answer = world.get(url)
        assert answer.status == 502, url
        assert text in answer.body, url
    assert world.get("http://allowed.test/ok").status == 200


def test_a_private_address_needs_its_word_and_a_name_never_leads_to_loopback(world: World) -> None:
    private = "private-address"
    world.allow(*(f"GET http://{h}.test/ok" for h in ("private", "loop", "metadata", "mixed")))
    for host, why in (
        ("private", b"private.test has the address 10.1.2.3: not a public address"),
        ("loop", b"127.0.0.1: a loopback or link-local address"),
        ("metadata", b"169.254.169.254: a loopback or link-local address"),
    ):
        answer = world.get(f"http://{host}.test/ok")
        assert answer.status == 502
        assert why in answer.body
    assert world.upstream.connections == []
    assert [entry["kind"] for entry in world.blocked] == ["address", "request", "request"]
    assert world.get("http://mixed.test/ok").status == 200
    assert [c.address for c in world.upstream.connections] == [(PUBLIC, 80)]

    world.allow(*(f"GET http://{h}.test/ok {private}" for h in ("private", "loop", "metadata")))
    assert world.get("http://private.test/ok").status == 200
    assert world.get("http://loop.test/ok").status == 502
    assert world.get("http://metadata.test/ok").status == 502
    assert [c.address for c in world.upstream.connections] == [(PRIVATE, 80)]

    world.allow("GET http://127.0.0.1/ok", "GET http://127.0.0.1/yes private-address")
    assert world.get("http://127.0.0.1/ok").status == 502
    assert world.get("http://127.0.0.1/yes").status == 200
    assert [c.address for c in world.upstream.connections] == [("127.0.0.1", 80)]

    world.allow("GET http://[::1]/ok", "GET http://[::1]/yes private-address")
    assert b"not a public address" in world.get("http://[::1]/ok").body
    assert world.get("http://[0:0::1]/yes").status == 200
    assert [c.address[0] for c in world.upstream.connections] == ["::1"]
    assert b"Host: [::1]\r\n" in world.upstream.raw


@pytest.mark.parametrize(
    "host", ["own.test", OWN, f"[{OWN_6}]", "neighbour.test", NEIGHBOUR, f"[{NEIGHBOUR_6}]"]
)
def test_addresses_of_this_machine_and_its_networks_are_not_public(world: World, host: str) -> None:
    world.allow(f"GET http://{host}/ok")
    answer = world.get(f"http://{host}/ok")
    assert b"in a network of this machine" in answer.body
    assert world.upstream.connections == []
    assert [entry["kind"] for entry in world.blocked] == ["address"]
    if OWN in (host, *NAMES.get(host, [])):
        world.allow(f"GET http://{host}/ok private-address")
        assert world.get(f"http://{host}/ok").status == 200


def test_a_connection_to_a_private_address_serves_the_lines_with_its_word_alone(
    world: World,
) -> None:
    world.allow("GET http://private.test/ok private-address", "GET http://private.test/yes")
    with world.client() as client:
        for path, status in (("ok", 200), ("ok", 200), ("yes", 418)):
            client.send(head(f"GET http://private.test/{path}", host="private.test"))
            assert client.answer().status == status, path
    assert b"GET /yes" not in world.upstream.raw
    assert [entry["kind"] for entry in world.blocked] == ["address"]
    assert world.get("http://private.test/yes").status == 502


def test_a_client_that_hangs_up_harms_no_other(world: World) -> None:
    """This test stays last: a request that it began may reach a server a little later."""
    world.allow("GET http://allowed.test/*", "POST http://allowed.test/post")
    for begun in (
        b"GET http://allowed.test/ok HT",
        head("POST http://allowed.test/post", "Content-Length: 9") + b"a",
        b"GET http://allowed.test/size=9000000 HTTP/1.1\r\nHost: allowed.test\r\n\r\n",
        b"CONNECT allowed.test:443 HTTP/1.1\r\n\r\n\x16\x03\x01",
    ):
        with world.client() as client:
            client.send(begun)
    assert world.get("http://allowed.test/ok").status == 200
    assert world.proxy.process.poll() is None


def test_a_name_server_that_does_not_answer_for_one_host_stops_no_other(world: World) -> None:
    world.allow("GET https://silent.test/*", "GET https://allowed.test/*")
    world.dns.silent = "silent.test"
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            client = stack.enter_context(world.client())
            client.tunnel("silent.test:443")
            client.send(b"GET /ok HTTP/1.1\r\nHost: silent.test\r\n\r\n")
        assert world.get("https://allowed.test/ok").status == 200
    assert 0 < world.dns.asked.count("silent.test") < 20  # their requests share a question
    world.dns.silent = ""
