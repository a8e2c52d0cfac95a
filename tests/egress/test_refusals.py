"""Refusals: answers and logs; a request that the proxy cannot decide on is denied."""

import asyncio
import contextlib
import os
import resource
import socket
import sys
import time
from pathlib import Path

import pytest

from gitguardfs.host.egress import files, reports
from gitguardfs.host.egress.clients import MAX_CONNECTIONS, MAX_WAITING
from gitguardfs.host.egress.proxy import MAX_DATA
from tests.egress.bypasses import head
from tests.egress.upstream import PUBLIC, FakeDns, Upstream
from tests.egress.world import LIMIT, SLOW, SLOW_PORT, Client, World, running

FAULTY = Path(__file__).with_name("faulty_proxy.py")
UNFINISHED = (
    b"POST http://allowed.test/x HTTP/1.1\r\nHost: allowed.test\r\nContent-Length: 1\r\n\r\n"
)
"""A request that is under way until its one byte has come."""


def test_an_agent_is_told_what_to_ask_for_and_the_line_lets_it_out(world: World) -> None:
    answer = world.get("https://allowed.test/a/it's?q=1*&p=2")
    assert answer.status == 418
    text = answer.body.decode()
    assert "ask your human to run this on the host" in text
    command = "gitguard vm allow 'GET https://allowed.test/a/it'\\''s?q=1%2A&p=2'"
    assert command in text.splitlines()[-1]
    assert world.upstream.connections == []
    assert world.dns.asked == []
    assert command in reports.blocked_text(world.directory)

    said = files.allow(world.directory, "GET https://allowed.test/a/it's?q=1%2A&p=2")
    assert "was added" in said
    assert world.get("https://allowed.test/a/it's?q=1*&p=2").status == 200
    assert "allowed meanwhile" in reports.blocked_text(world.directory)
    assert world.get("https://allowed.test/a/it's?q=11&p=2").status == 418


def test_what_is_blocked_is_logged_with_method_url_and_reason(world: World) -> None:
    world.get("https://other.test/path?q=1", "POST", body=b"body")
    world.get("https://other.test/x/../y")
    rule, request = world.blocked
    assert (rule["method"], rule["url"]) == ("POST", "https://other.test/path?q=1")
    assert (rule["kind"], request["kind"]) == ("rule", "request")
    assert "no line" in rule["reason"]
    assert ". or .. in the path" in request["reason"]
    assert "blocked POST https://other.test/path?q=1: no line" in world.log
    assert oct((world.directory / "blocked.jsonl").stat().st_mode & 0o777) == "0o600"
    assert oct((world.directory / "mitmdump.log").stat().st_mode & 0o777) == "0o600"


def test_connections_have_a_limit_and_make_room_when_they_end(world: World) -> None:
    """Each is also a process on the host, which the guest must not be able to multiply."""
    world.allow("GET http://allowed.test/x", "POST http://allowed.test/x")
    with contextlib.ExitStack() as stack:
        first, *others = [stack.enter_context(world.client()) for _ in range(MAX_CONNECTIONS)]
        for client in (first, *others):  # each of them has a request under way
            client.send(UNFINISHED)
        world.wait_until(lambda: len(world.upstream.requests) == MAX_CONNECTIONS)
        waiting = [stack.enter_context(world.client()) for _ in range(MAX_WAITING)]
        for client in waiting:
            client.send(head("GET http://allowed.test/x"))
        assert waiting[0].anything() == b""
        for begin in (b"CONNECT allowed.test:443 HTTP/1.1\r\n", head("GET http://allowed.test/x")):
            with world.client() as another:
                another.send(begin)
                answer = another.answer()
                assert answer.status == 503
                assert b"128 connections were in use" in answer.body
        assert [(entry["method"], entry["url"], entry["kind"]) for entry in world.blocked] == [
            ("CONNECT", "allowed.test:443", "busy"), ("GET", "http://allowed.test/x", "busy"),
        ]  # fmt: skip
        assert "in use for 120 seconds, or 24 more waited" in reports.blocked_text(world.directory)
        first.socket.close()
        for client in waiting:  # each makes room for the next one, when it has settled or hung up
            assert client.answer().status == 200
            client.socket.close()
        for client in others:  # none of them was closed for another
            client.send(b"y")
            assert client.answer().status == 200


def test_connections_that_lie_idle_keep_nobody_out(world: World) -> None:
    """Every user of the host can open connections to the proxy."""
    world.allow("GET http://allowed.test/x", "POST http://allowed.test/x")
    with contextlib.ExitStack() as stack:
        busy = stack.enter_context(world.client())
        # At work before the others come: the proxy may still count a client of an earlier test.
        busy.send(UNFINISHED)
        world.wait_until(lambda: len(world.upstream.requests) == 1)
        silent, half, denied, *_ = [
            stack.enter_context(world.client()) for _ in range(MAX_CONNECTIONS - 1)
        ]
        half.send(b"GET http://allowed.test/x HTTP/1.1\r\n")
        denied.send(b"GET http://other.test/ HTTP/1.1\r\nHost: other.test\r\n\r\n")
        assert denied.answer().status == 418
        for _ in range(2):
            assert world.get("http://allowed.test/x").status == 200
        assert seconds_until_closed(silent) < LIMIT
        busy.send(b"y")
        assert busy.answer().status == 200
        denied.send(b"GET http://other.test/ HTTP/1.1\r\nHost: other.test\r\n\r\n")
        assert denied.answer().status == 418  # not the longest idle
    assert "closed a connection: there are 128" in world.log


def test_idle_connections_are_closed_and_those_in_use_are_not(
    upstream: Upstream, dns: FakeDns, state: Path
) -> None:
    with (
        running(state, upstream, dns, [sys.executable, str(FAULTY), "impatient"]) as world,
        world.client() as busy, world.client() as silent, world.client() as half,
        world.client() as tunnel, world.client() as answered, world.client() as denied,
    ):  # fmt: skip
        world.allow("GET http://allowed.test/x", "POST http://allowed.test/x")
        busy.send(UNFINISHED)
        half.send(b"GET http://allowed.test/x HTTP/1.1\r\n")
        tunnel.tunnel("allowed.test:80", sni=None)
        for client, host, status in ((answered, "allowed", 200), (denied, "other", 418)):
            client.send(f"GET http://{host}.test/x HTTP/1.1\r\nHost: {host}.test\r\n\r\n".encode())
            assert client.answer().status == status
        begin = time.monotonic()
        while time.monotonic() < begin + 1:  # an incomplete head counts as idle
            half.send(b"X: y\r\n")
            time.sleep(0.1)
        for client in (silent, half, tunnel):
            assert seconds_until_closed(client) < LIMIT
        for client in (answered, denied):
            assert seconds_until_closed(client) < LIMIT
            assert time.monotonic() - begin > 3.5
        time.sleep(max(0.0, begin + 5 - time.monotonic()))
        busy.send(b"y")
        assert busy.answer().status == 200
        assert seconds_until_closed(busy) > 3.5
        assert world.log.count("closed a connection: no request for 2 seconds") == 3
        assert world.log.count("closed a connection: no request for 4 seconds") == 3
        assert " ERROR " not in world.log


def test_a_client_that_takes_nothing_loses_its_connection(
    upstream: Upstream, dns: FakeDns, state: Path
) -> None:
    with running(state, upstream, dns, [sys.executable, str(FAULTY), "impatient"]) as world:
        world.allow("GET http://allowed.test/*")
        before = world.open_sockets()
        with world.client() as client:
            client.send(head("GET http://allowed.test/size=900000000"))
            world.wait_until(lambda: world.open_sockets() == before + 2)
            world.wait_until(lambda: world.open_sockets() == before)


def seconds_until_closed(client: Client) -> float:
    """Read until the proxy closes a connection. Raises TimeoutError if it does not."""
    begin = time.monotonic()
    with contextlib.suppress(ConnectionResetError):
        while client.socket.recv(65536):
            pass
    return time.monotonic() - begin


def test_what_is_very_long_is_logged_in_part(world: World) -> None:
    world.allow("POST http://allowed.test/post")
    before = len(world.log)
    with world.client() as client:
        client.send(head("POST http://allowed.test/post", "Content-Length: 1") + b"x")
        assert client.answer().status == 200
        client.send(head(f"POST http://allowed.test/{'a' * 100_000}", "Content-Length: 500000"))
        client.send(b"x" * 500_000)
        assert client.answer().status == 418
    assert len(world.log) - before < 50_000
    (entry,) = world.blocked
    assert "longer than" in entry["reason"]
    assert len(entry["url"]) < 10_000


def test_controls_reach_no_terminal_through_a_log(world: World) -> None:
    with world.client() as client:
        client.send(b"GET http://allowed.test/\x1b[31m\xe2\x80\xae HTTP/1.1\r\nHost: a\r\n\r\n")
        client.anything()
    with world.client() as client:
        client.send(b"\x1b]0;title\x07 / HTTP/1.1\r\nHost: \x1b\r\n\r\n")
        client.anything()
    text = world.log + reports.blocked_text(world.directory)
    assert all(character.isprintable() or character == "\n" for character in text)


def test_no_body_comes_with_the_refusal_of_a_head(world: World) -> None:
    with world.client() as client:
        client.tunnel()
        for _ in range(2):
            client.send(b"HEAD /no HTTP/1.1\r\nHost: allowed.test\r\n\r\n")
            assert client.answer("HEAD").status == 418


def test_a_denied_body_is_read_if_it_is_short_and_hung_up_on_if_not(world: World) -> None:
    assert world.get("https://allowed.test/no", "POST", body=b"x" * (1 << 20)).status == 418
    for fields in ("Content-Length: 1048577", "Transfer-Encoding: chunked"):
        with world.client() as client:
            client.tunnel()
            client.send(f"POST /no HTTP/1.1\r\nHost: allowed.test\r\n{fields}\r\n\r\n".encode())
            assert client.answer().status == 0
    assert [entry["url"] for entry in world.blocked] == ["https://allowed.test/no"] * 3


def test_an_allowlist_that_cannot_be_read_denies_all(world: World) -> None:
    world.allow("GET http://allowed.test/*")
    path = world.directory / "allowlist.txt"
    path.unlink()
    assert b"No such file" in world.get("http://allowed.test/").body
    os.mkfifo(path)
    assert world.get("http://allowed.test/").status == 418
    path.unlink()
    path.mkdir()
    assert world.get("http://allowed.test/").status == 418
    path.rmdir()
    path.write_text("GET http://allowed.test/*\n" + "# long\n" * 200_000)
    assert world.get("http://allowed.test/").status == 418
    assert {entry["kind"] for entry in world.blocked} == {"allowlist"}
    assert world.upstream.connections == []


def test_a_bad_line_is_ignored_and_logged_once(world: World) -> None:
    path = world.directory / "allowlist.txt"
    path.write_bytes(b"GET http://*/\n\xff\nGET http://allowed.test/ok\n")
    assert world.get("http://allowed.test/ok").status == 200
    assert world.get("http://allowed.test/ok").status == 200
    assert world.log.count("allowlist.txt:1: ignored: GET http://*/ (a * is possible in") == 1
    assert world.log.count("allowlist.txt:2: ignored: \\xff") == 1


@pytest.mark.parametrize("fault", ["judge", "all-but-server_connect", "server_connect", "log"])
def test_an_exception_in_the_addon_denies(
    upstream: Upstream, dns: FakeDns, state: Path, fault: str
) -> None:
    with running(state, upstream, dns, [sys.executable, str(FAULTY), fault]) as world:
        path = "denied" if fault == "log" else "ok"
        hosts = ("allowed.test", PUBLIC)
        world.allow(*(f"{m} http://{host}/ok" for m in ("GET", "POST") for host in hosts))
        for host in hosts:
            assert world.get(f"http://{host}/{path}").status != 200
            assert world.get(f"http://{host}/{path}", "POST", body=b"data").status != 200
        assert upstream.connections == []
        assert dns.asked == []
        assert "broken on purpose" in world.log
        assert world.proxy.process.poll() is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_no_connection_is_opened_without_an_approved_request(tmp_path: Path) -> None:
    from mitmproxy.connection import Client, Server
    from mitmproxy.proxy.server_hooks import ServerConnectionHookData

    from gitguardfs.host.egress.addon import AllowlistAddon

    client = Client(peername=("127.0.0.1", 1), sockname=("127.0.0.1", 2))
    data = ServerConnectionHookData(Server(address=(PUBLIC, 443)), client)
    asyncio.run(AllowlistAddon(files.StateFiles(tmp_path), {}).server_connect(data))
    assert data.server.error is not None


def test_an_exception_denies_where_a_connection_is_open_already(
    upstream: Upstream, dns: FakeDns, state: Path
) -> None:
    with running(state, upstream, dns, [sys.executable, str(FAULTY), "requestheaders"]) as world:
        world.allow("GET http://allowed.test/*")
        with world.client() as client:
            client.tunnel("allowed.test:80", sni=None)
            client.send(b"GET /ok HTTP/1.1\r\nHost: allowed.test\r\n\r\n")
            assert client.answer().status == 200
            client.send(b"GET /BROKEN HTTP/1.1\r\nHost: allowed.test\r\n\r\n")
            assert client.answer().status == 0
        assert upstream.requests == [b"GET /ok HTTP/1.1"]


def test_what_ended_connections_have_sent_is_forgotten(
    upstream: Upstream, dns: FakeDns, state: Path
) -> None:
    """It does not wait for a collection that Python begins by itself, sooner or later."""
    command = [sys.executable, str(FAULTY), "no automatic collection"]
    with running(state, upstream, dns, command) as world:
        world.allow("GET http://allowed.test/ok")
        before = world.open_sockets()
        for _ in range(60):
            with contextlib.ExitStack() as stack:
                clients = [stack.enter_context(world.client()) for _ in range(10)]
                for client in clients:
                    client.send(head("GET http://allowed.test/no"))
                for client in clients:  # an answer shows that the proxy has accepted it
                    assert client.answer().status == 418
                    client.send(b"GET / HTTP/1.1\r\nX: " + b"x" * 1_900_000)
            world.wait_until(lambda: world.open_sockets() <= before)
        assert world.get("http://allowed.test/ok").status == 200
        assert world.peak_memory() < 400 << 20, f"{world.peak_memory() >> 20} MiB"


def test_an_endless_header_of_a_response_ends_at_a_limit_and_others_go_on(
    upstream: Upstream, dns: FakeDns, state: Path
) -> None:
    with running(state, upstream, dns) as world:
        limit = resource.prlimit(world.pid, resource.RLIMIT_DATA)
        assert limit[0] == MAX_DATA
        world.allow("GET http://allowed.test/*", f"GET http://{SLOW}/*")
        assert world.get("http://allowed.test/").status == 200
        status = Path(f"/proc/{world.pid}/status").read_text()
        (used,) = [line.split()[1] for line in status.splitlines() if "VmData" in line]
        lower = (int(used) << 10) + (24 << 20)
        resource.prlimit(world.pid, resource.RLIMIT_DATA, (lower, limit[1]))
        with socket.create_server((PUBLIC, SLOW_PORT)) as server, world.client() as client:
            client.send(head(f"GET http://{SLOW}/", host=SLOW))
            with server.accept()[0] as answering, contextlib.suppress(ConnectionError):
                answering.sendall(b"HTTP/1.1 200 OK\r\nX: ")
                for _ in range(64):
                    answering.sendall(b"x" * (1 << 20))
        # The memory of the header is freed a moment later; until then all requests are refused.
        world.wait_until(lambda: world.get("http://allowed.test/").status == 200)
        assert world.peak_memory() < 250 << 20


def test_a_line_that_is_no_http_is_logged_in_part(world: World) -> None:
    before = len(world.log)
    with world.client() as client:
        client.send(b"A" * 120_000 + b"\r\n\r\n")
        assert client.answer().status == 400
    world.wait_until(lambda: world.log[before:].endswith(" INFO client disconnect\n"))
    assert "Bad HTTP request line" in world.log[before:]
    assert len(world.log) - before < 100_000


FALSE = "gitguard vm allow 'POST https://evil.test/*'"


@pytest.mark.parametrize("filler", [" " * 90, ". " * 45, "\t" * 30, "\xa0" * 90])
def test_a_reason_is_in_our_own_words(world: World, filler: str) -> None:
    """What a client sends is in no reason but a field's name, cut and without blanks."""
    text = f"x{filler}{FALSE}"
    for field in (
        f"Transfer-Encoding: {text}", f"Transfer-Encoding: chunked{filler}{FALSE}",
        f"Content-Length: {text}", f"Content-Length: 1\r\nContent-Length: {text}",
        f"{text}: x", f"X-Original-{text.replace(':', '')}: x", f"Upgrade: {text}",
        f"Connection: {text}", f"Host: {text}", f"X-Original-{'a' * 200}: x", f"{FALSE}",
    ):  # fmt: skip
        for method in ("GET", f"GET{filler.strip()}"):
            with world.client() as client:
                client.send(f"{method} http://allowed.test/ HTTP/1.1\r\n".encode("latin-1"))
                client.send(b"Host: allowed.test\r\n" + field.encode("latin-1") + b"\r\n\r\n")
                client.answer()
    for entry in world.blocked:
        assert FALSE not in entry["reason"]
        assert len(entry["reason"]) < 150
    said = reports.blocked_text(world.directory)
    assert FALSE not in said
    assert all(line.startswith(("GET", "  ", "POST")) for line in said.splitlines() if line)
