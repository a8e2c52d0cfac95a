"""WebSockets: refused with 426 unless a line allows them, then passed on unseen."""

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    Pong,
    Request,
    TextMessage,
)

from gitguardfs.host.egress import reports
from tests.egress.bypasses import head
from tests.egress.test_messages import WHOLE, accept, is_closed, served
from tests.egress.test_refusals import FAULTY
from tests.egress.upstream import FakeDns, Upstream
from tests.egress.world import SLOW, Client, World, running

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
ACCEPT = b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"
"""KEY and its answer, from RFC 6455."""
FIELDS = (
    "Connection: keep-alive, Upgrade", "Upgrade: WebSocket", "Sec-WebSocket-Version: 13",
    f"Sec-WebSocket-Key: {KEY}",
)  # fmt: skip
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
FRAME = b"\x81\x86\0\0\0\0SECRET"
LINE = f"WS http://{SLOW}/a"


class Peer:
    """A WebSocket client of another's making."""

    def __init__(self, client: Client, host: str, target: str) -> None:
        self.client = client
        self.websocket = WSConnection(ConnectionType.CLIENT)
        self.send(Request(host=host, target=target))

    def send(self, event: Event) -> None:
        self.client.socket.sendall(self.websocket.send(event))

    def events(self) -> Iterator[Event]:
        while True:
            yield from self.websocket.events()
            self.websocket.receive_data(self.client.socket.recv(65536) or None)

    def message(self) -> bytes:
        """Return the next message."""
        whole = bytearray()
        for event in self.events():
            assert isinstance(event, BytesMessage), event
            whole += event.data
            if event.message_finished:
                return bytes(whole)
        raise AssertionError


@contextlib.contextmanager
def asked(world: World):
    """A client that has asked for a WebSocket and sent a frame at once, and its server."""
    with served(world) as (server, client):
        world.allow(LINE, "GET http://allowed.test/ok", f"GET http://{SLOW}/a")
        client.send(head(f"GET http://{SLOW}/a", *FIELDS, host=SLOW) + FRAME)
        with accept(server) as upstream:
            received = b""
            while not received.endswith(b"\r\n\r\n"):
                part = upstream.recv(1)
                assert part, received
                received += part
            assert world.get("http://allowed.test/ok").status == 200  # what would come has come
            upstream.setblocking(False)
            with pytest.raises(BlockingIOError):
                upstream.recv(1)
            upstream.settimeout(client.socket.gettimeout())
            yield upstream, client, received


def test_an_upgrade_without_its_line_is_told_to_use_http(world: World) -> None:
    world.allow("GET https://allowed.test/ws", "WS https://allowed.test/other")
    with world.client() as client:
        client.tunnel()
        client.send(head("GET /ws", *FIELDS))
        answer = client.answer()
        assert answer.status == 426
        assert answer.headers["Upgrade"] == "HTTP/1.1"
        text = answer.body.decode()
        assert "WebSockets are not allowed" in text
        assert "HTTP works" in text
        command = "gitguard vm allow 'WS https://allowed.test/ws'"
        assert command in text
        assert world.upstream.connections == []
        assert world.dns.asked == []
        client.send(head("GET /ws"))  # the connection goes on
        assert client.answer().status == 200
    (entry,) = world.blocked
    assert (entry["method"], entry["kind"]) == ("WS", "rule")
    said = reports.blocked_text(world.directory)
    assert command in said
    assert "not seen" in said


@pytest.mark.parametrize("scheme", ["https", "http"])
def test_with_its_line_messages_pass_both_ways(world: World, scheme: str) -> None:
    world.allow(f"WS {scheme}://allowed.test/ws?a=*")
    before = world.open_sockets()
    with world.client() as client:
        client.tunnel(f"allowed.test:{443 if scheme == 'https' else 80}",
                      "" if scheme == "https" else None)  # fmt: skip
        peer = Peer(client, "allowed.test", "/ws?a=1")
        assert isinstance(next(peer.events()), AcceptConnection)
        for size in (1, 1_000_000):  # more than is kept of a request
            peer.send(BytesMessage(b"x" * size))
            assert peer.message() == b"x" * size
        peer.send(Ping(b"1"))
        assert isinstance(next(peer.events()), Pong)
        peer.send(CloseConnection(1000, "bye"))
        end = next(peer.events())
        assert isinstance(end, CloseConnection)
        assert end.reason == "bye"
        assert is_closed(client.socket)
    world.wait_until(lambda: world.open_sockets() <= before)
    assert f"allowed WS {scheme}://allowed.test/ws?a=1" in world.log
    assert world.blocked == []


def test_no_frame_passes_before_the_server_has_agreed(world: World) -> None:
    with asked(world) as (upstream, client, request):
        assert b"Upgrade: WebSocket\r\n" in request
        assert b"\r\nConnection: keep-alive, Upgrade\r\n" in request
        upstream.sendall(SWITCH + ACCEPT + b"\r\n\x81\x03one")
        answered = b""
        while not answered.endswith(b"one"):
            answered += client.anything(10)
        assert answered.startswith(b"HTTP/1.1 101 ")
        assert upstream.recv(100) == FRAME
        client.socket.close()
        assert is_closed(upstream)


@pytest.mark.parametrize("first", [b"200 OK", b"404 Not Found", b"426 Upgrade Required"])
def test_what_follows_another_answer_is_a_request_of_its_own(world: World, first: bytes) -> None:
    with asked(world) as (upstream, client, _):
        upstream.sendall(WHOLE.replace(b"200 OK", first))
        assert client.answer().status == int(first[:3])
        client.send(b"\r\n\r\n")
        assert b" 400 " in client.anything(10)  # FRAME is no HTTP
        assert is_closed(upstream)


@pytest.mark.parametrize(
    "fields",
    [b"", ACCEPT.replace(b"s3p", b"S3p"), ACCEPT * 2, ACCEPT + b"Transfer-Encoding: chunked\r\n"],
    ids=["none", "wrong", "two", "chunked"],
)  # fmt: skip
def test_a_switch_that_does_not_answer_the_request_is_closed(world: World, fields: bytes) -> None:
    """The server may not have understood that it is a WebSocket."""
    with asked(world) as (upstream, client, _):
        upstream.sendall(SWITCH + fields + b"\r\n")
        assert not upstream.recv(100)
        assert is_closed(client.socket)


def test_a_server_that_hangs_up_ends_it(world: World) -> None:
    with asked(world) as (upstream, client, _):
        upstream.sendall(SWITCH + ACCEPT + b"\r\n")
        assert upstream.recv(100) == FRAME
        upstream.close()
        assert is_closed(client.socket)


def test_frames_wait_in_the_client_until_the_server_takes_them(world: World) -> None:
    rest = b"x" * (64 << 20)
    with asked(world) as (upstream, client, _):
        upstream.sendall(SWITCH + ACCEPT + b"\r\n")
        assert upstream.recv(100) == FRAME
        sent = client.send_until_blocked(rest)
        assert sent < len(rest) / 2, f"{sent >> 20} MiB"
        while sent > 0:
            sent -= len(upstream.recv(1 << 20))
        assert sent == 0


def test_an_open_websocket_is_not_idle(upstream: Upstream, dns: FakeDns, state: Path) -> None:
    with running(state, upstream, dns, [sys.executable, str(FAULTY), "impatient"]) as world:
        world.allow("WS http://allowed.test/ws")
        with world.client() as client:
            client.tunnel("allowed.test:80", None)
            peer = Peer(client, "allowed.test", "/ws")
            assert isinstance(next(peer.events()), AcceptConnection)
            time.sleep(5)  # more than both limits
            peer.send(TextMessage("still here"))
            answer = next(peer.events())
            assert isinstance(answer, TextMessage)
            assert answer.data == "still here"
