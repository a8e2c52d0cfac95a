"""Through the company's proxy: by the address that was checked, and never past it."""

import base64
import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import keyring
import pytest
from keyring.backends import fail

from gitguardfs.base.errors import UserError
from gitguardfs.host.egress.files import StateFiles
from gitguardfs.host.vm import status_text
from gitguardfs.host.vm.state import State
from gitguardfs.host.vm.status import facts
from tests.egress.company import ESTABLISHED, HELD, PORT, CompanyProxy, company_proxy
from tests.egress.test_refusals import FAULTY
from tests.egress.upstream import (
    OTHER,
    PRIVATE,
    PUBLIC,
    UNTRUSTED_PORT,
    FakeDns,
    Upstream,
    dead,
)  # fmt: skip
from tests.egress.world import LIMIT, SLOW_PORT, World, running, start_proxy

USER, PASSWORD = "me", "hunter:2@\\ä"
LOGIN = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
URL = f"http://me:hunter%3A2%40%5C%C3%A4@proxy.test:{PORT}"
EXCEPTIONS = "nothing.test, .other.test,127.0.0.2"
SAYS_NO = b" no\r\nContent-Length: 2\r\nX-Echo: hunter\r\n\r\nno"
NEGOTIATE = b"Proxy-Authenticate: Negotiate\r\nproxy-authenticate: NTLM hunter, Digest\r\n"
BASIC = b'Proxy-Authenticate: Digest realm="x", basic realm="hunter"\r\n'
LINES = ("GET https://allowed.test/*", "GET http://allowed.test/*")


@pytest.fixture(scope="module")
def _company() -> Iterator[CompanyProxy]:
    with company_proxy() as proxy:
        yield proxy


@pytest.fixture
def company(_company: CompanyProxy) -> CompanyProxy:
    _company.heads.clear()
    _company.refused.clear()
    _company.held.clear()
    _company.answer, _company.drip = ESTABLISHED, 0.0
    return _company


@pytest.fixture(scope="module")
def _behind(
    upstream: Upstream, dns: FakeDns, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HTTPS_PROXY", URL)
        patch.setenv("NO_PROXY", EXCEPTIONS)
        world = World(tmp_path_factory.mktemp("behind") / "state", upstream, dns)
    yield world
    world.proxy.stop()


@pytest.fixture
def behind(_behind: World, company: CompanyProxy) -> World:
    """An allowlist proxy that HTTPS_PROXY leads through the company's."""
    _behind.allow(*LINES)
    return _behind


@contextlib.contextmanager
def faulty(
    fault: str, upstream: Upstream, dns: FakeDns, state: Path, monkeypatch: pytest.MonkeyPatch,
    url: str = URL,
) -> Iterator[World]:  # fmt: skip
    monkeypatch.setenv("HTTPS_PROXY", url)
    with running(state, upstream, dns, [sys.executable, str(FAULTY), fault]) as world:
        world.allow(*LINES)
        yield world


def assert_fails(world: World, reason: str) -> None:
    """Requests end with 502 and a reason without a password; nothing has reached the server."""
    for url in ("https://allowed.test/ok", "http://allowed.test/ok"):
        answer = world.get(url)
        assert answer.status == 502
        assert reason in answer.body.decode()
        assert "hunter" not in answer.body.decode()
    assert world.upstream.connections == []
    assert reason in world.log


def test_servers_are_reached_by_the_address_that_was_checked(
    behind: World, company: CompanyProxy
) -> None:
    for url in ("https://allowed.test/ok", "http://allowed.test/ok"):
        answer = behind.get(url, headers="Proxy-Authorization: Basic SECRET\r\n")
        assert (answer.status, answer.body) == (200, b"xx")
    assert company.targets == [f"{PUBLIC}:443", f"{PUBLIC}:80"]
    for head, target in zip(company.heads, company.targets, strict=True):
        assert head == (
            f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n"
            f"Proxy-Authorization: Basic {LOGIN}\r\n\r\n"
        )
    assert [seen.address for seen in behind.upstream.connections] == [(PUBLIC, 443), (PUBLIC, 80)]
    assert behind.upstream.connections[0].sni == "allowed.test"
    assert b"roxy" not in behind.upstream.raw


def test_what_is_blocked_does_not_reach_the_proxy(behind: World, company: CompanyProxy) -> None:
    behind.allow("GET https://private.test/*", "GET https://loop.test/* private-address")
    assert behind.get("https://allowed.test/ok").status == 418
    for host in ("private", "loop"):
        assert behind.get(f"https://{host}.test/ok").status == 502
    assert [found["kind"] for found in behind.blocked] == ["rule", "address", "request"]
    assert company.heads == []


def test_a_servers_certificate_is_checked_through_the_proxy(
    behind: World, company: CompanyProxy
) -> None:
    behind.allow(f"GET https://allowed.test:{UNTRUSTED_PORT}/*")
    answer = behind.get(f"https://allowed.test:{UNTRUSTED_PORT}/ok")
    assert answer.status == 502
    assert "ertificate" in answer.body.decode()
    assert company.targets == [f"{PUBLIC}:{UNTRUSTED_PORT}"]
    assert behind.upstream.requests == []


def test_another_address_is_tried_if_the_proxy_refuses_one(
    behind: World, company: CompanyProxy
) -> None:
    behind.allow("GET https://double.test/*")
    company.refused.add(f"{OTHER}:443")
    assert behind.get("https://double.test/ok").status == 200
    assert company.targets[-1] == f"{PUBLIC}:443"
    company.heads.clear()
    company.answer = b"HTTP/1.1 407 no\r\nContent-Length: 0\r\n\r\n"
    company.refused.clear()
    assert behind.get("https://double.test/ok").status == 502
    assert len(company.heads) == 1  # a wrong password, sent often, locks its account


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 403" + SAYS_NO, "the company proxy refused to connect to the server: 403 F"),
        (b"HTTP/1.1 502" + SAYS_NO, "refused to connect to the server: 502 Bad Gateway"),
        (b"HTTP/1.1 999 hunter\r\n\r\n", "refused to connect to the server: 999"),
        (b"HTTP/1.1 407" + SAYS_NO, "wants a user with a password, or another one (407 Proxy A"),
        (b"HTTP/1.0 401" + SAYS_NO, "wants a user with a password, or another one (401 Unauthor"),
        (b"HTTP/1.1 407 no\r\n" + NEGOTIATE + SAYS_NO[5:], "has only logins such as NTLM or Kerb"),
        (b"HTTP/1.1 407 no\r\n" + NEGOTIATE + BASIC + SAYS_NO[5:], "wants a user with a password"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://11.22.33.44/\r\n\r\n", "302 Found, which is not"),
        (b"SSH-2.0-hunter\r\n\r\n", "answered what is no HTTP"),
        (b"\0" * 100_000, "answered what is no HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: hunter\r\n" * 10_000, "answered more than 16 KiB"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000, "answered more than 16 KiB"),
        (b"HTTP/1.1 200 OK\r\n", "closed the connection without an answer"),
        (b"HTTP/1.1 101 Switching\r\n\r\n", "answered what is no HTTP"),
        (ESTABLISHED + b"HTTP/1.1 200 OK\r\n\r\n", "sent data before the server was asked"),
        (b"HTTP/1.1 100 Go on\r\n\r\n" + ESTABLISHED + b"\x16", "sent data before the server"),
    ],
)  # fmt: skip
def test_nothing_goes_directly_if_the_proxy_refuses(
    behind: World, company: CompanyProxy, answer: bytes, reason: str
) -> None:
    company.answer = answer
    assert_fails(behind, reason)
    assert company.targets == [f"{PUBLIC}:443", f"{PUBLIC}:80"]


def test_a_tunnel_that_ends_at_once_is_a_failure(behind: World, company: CompanyProxy) -> None:
    company.answer = ESTABLISHED.replace(b"company", b"closes")
    for url in ("https://allowed.test/ok", "http://allowed.test/ok"):
        assert behind.get(url).status == 502
    assert behind.upstream.connections == []


def test_a_proxy_that_is_not_there_is_a_failure(
    upstream: Upstream, dns: FakeDns, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.test:3129")
    with running(state, upstream, dns) as world:
        world.allow(*LINES)
        assert_fails(world, "cannot connect to the company proxy: Connection refused")
    monkeypatch.setenv("https_proxy", "http://unknown.test")
    with running(state.with_name("other"), upstream, dns) as world:
        world.allow(*LINES)
        assert_fails(world, "cannot find the address of the company proxy")
        world.allow("GET https://unknown.test/*")
        answer = world.get("https://unknown.test/ok")
        assert "cannot find the address of unknown.test" in answer.body.decode()


@pytest.mark.parametrize("drip", [0.0, 0.2])
def test_a_proxy_that_does_not_answer_in_time_is_a_failure(
    drip: float, company: CompanyProxy, upstream: Upstream, dns: FakeDns, state: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    company.answer = ESTABLISHED.replace(b"company", b"y" * 1000) if drip else HELD
    company.drip = drip
    with faulty("hasty tunnels", upstream, dns, state, monkeypatch) as world:
        assert_fails(world, "the company proxy opened no connection within 2 seconds")


def test_a_dead_address_and_a_slow_server_leave_time_for_the_others(
    company: CompanyProxy, upstream: Upstream, dns: FakeDns, state: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    url = URL.replace("proxy.test", "proxies.test")
    with (
        dead(OTHER, PORT),
        faulty("hasty tunnels", upstream, dns, state, monkeypatch, url) as world,
    ):
        company.held.add(f"{OTHER}:443")
        world.allow("GET https://double.test/*")
        assert world.get("https://double.test/ok").status == 200
        assert company.targets == [f"{OTHER}:443", f"{PUBLIC}:443"]


@pytest.mark.parametrize("fault", ["hasty tunnels", "patient"])
def test_without_a_company_proxy_too_a_dead_address_leaves_time_for_the_others(
    fault: str, upstream: Upstream, dns: FakeDns, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        dead(OTHER, SLOW_PORT),
        socket.create_server((PUBLIC, SLOW_PORT)) as other,
        faulty(fault, upstream, dns, state, monkeypatch, "") as world,
        world.client() as client,
    ):
        world.allow(f"GET http://double.test:{SLOW_PORT}/*")
        host = f"double.test:{SLOW_PORT}"
        client.send(f"GET http://{host}/ok HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        other.settimeout(LIMIT)
        other.accept()[0].close()


def test_a_client_that_gives_up_leaves_no_connection_behind(
    behind: World, company: CompanyProxy
) -> None:
    company.answer = HELD
    before = behind.open_sockets()
    with behind.client() as client:
        client.send(b"GET http://allowed.test/ok HTTP/1.1\r\nHost: allowed.test\r\n\r\n")
        behind.wait_until(lambda: len(company.heads) == 1)
        assert behind.open_sockets() == before + 2
    behind.wait_until(lambda: behind.open_sockets() == before)


def test_the_event_loop_connects_to_nothing_else(
    company: CompanyProxy, upstream: Upstream, dns: FakeDns, state: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Also not if a fault leads past the proxy."""
    with faulty("past the company's proxy", upstream, dns, state, monkeypatch) as world:
        assert_fails(world, f"{PUBLIC}: no connection to it was approved")
    with faulty("no company's proxy", upstream, dns, state.with_name("b"), monkeypatch) as world:
        assert world.get("http://allowed.test/ok").status == 200  # so it would be
        assert company.heads == []


def test_exceptions_go_directly_and_so_does_this_machine(
    behind: World, company: CompanyProxy, upstream: Upstream
) -> None:
    behind.allow(
        "GET https://other.test/*", "GET http://127.0.0.1/* private-address",
        "GET https://private.test/* private-address",
    )  # fmt: skip
    assert behind.get("https://other.test/ok").status == 200
    assert behind.get("http://127.0.0.1/ok").status == 200
    assert company.heads == []
    assert behind.get("https://private.test/ok").status == 200  # unless NO_PROXY names it
    assert company.targets == [f"{PRIVATE}:443"]


def test_passwords_are_in_no_log_and_no_argument(behind: World, company: CompanyProxy) -> None:
    behind.allow(*LINES)
    assert behind.get("https://allowed.test/ok").status == 200
    company.answer = b"HTTP/1.1 407 hunter\r\nX: hunter\r\n\r\nhunter"
    assert behind.get("https://allowed.test/ok").status == 502
    behind.get("https://other.test/blocked/ok", "POST")
    said = behind.log + status_text.text(facts(State("/srv/p", str(behind.directory))), 1000)
    for path in behind.directory.iterdir():
        said += path.read_text() if path.is_file() else ""
    said += Path(f"/proc/{behind.pid}/cmdline").read_text()
    for secret in ("hunter", "%40%5C", LOGIN, LOGIN[5:]):
        assert secret not in said
    assert f"through http://proxy.test:{PORT} (HTTPS_PROXY), but directly to nothing.test" in said


def test_a_proxy_that_leads_to_itself_is_refused(
    upstream: Upstream, dns: FakeDns, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
    with running(state, upstream, dns) as world:
        world.proxy.stop()
        world.proxy = start_proxy(state, [sys.executable, str(FAULTY), f"port {port}"])
        world.port = world.proxy.port
        world.allow(f"GET http://{PUBLIC}/*")  # in a tunnel to it, it would be allowed again
        answer = world.get(f"http://{PUBLIC}/ok")
        assert "it is the allowlist proxy itself" in answer.body.decode()
        assert answer.status == 502
        assert world.log.count("client connect") <= 2
        assert world.upstream.connections == []


def test_the_setting_counts_before_the_environment(
    company: CompanyProxy, upstream: Upstream, dns: FakeDns, state: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from gitguardfs.host.credentials import store

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
    keyring.set_keyring(fail.Keyring())
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.test:1")
    with running(state, upstream, dns) as world:
        world.proxy.stop()
        StateFiles(state).upstream_proxy.write_text(f"http://{USER}@proxy.test:{PORT}\n")
        with pytest.raises(UserError, match=r"no password is kept for me at http://proxy\.test"):
            start_proxy(state)
        store.write(f"upstream-proxy/{USER}@proxy.test:{PORT}", PASSWORD)
        world.proxy = start_proxy(state)
        world.port = world.proxy.port
        world.allow(*LINES)
        assert world.get("https://allowed.test/ok").status == 200
        assert f"Basic {LOGIN}\r\n" in company.heads[0]
        found = facts(State("/srv/p", str(state)))
        through = f"through http://proxy.test:{PORT} (--upstream-proxy)"
        assert f", {through}\n" in status_text.text(found, 1000)
        assert found["border"]["upstream_proxy"] == through
        world.proxy.stop()
        status = status_text.text(facts(State("/srv/p", str(state))), 1000)
        assert f"not running; the next one: through http://proxy.test:{PORT} (--ups" in status
        StateFiles(state).upstream_proxy.write_text("http://[\n")
        with pytest.raises(UserError, match="upstream-proxy is damaged"):
            start_proxy(state)


@pytest.mark.parametrize(
    "value", ["https://me:hunter@proxy.test:1", "http://me:hunter\r\nX: y@proxy.test", "http://a b"]
)
def test_a_value_that_cannot_be_used_keeps_the_proxy_from_starting(
    value: str, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", value)
    with pytest.raises(UserError, match="HTTPS_PROXY") as caught:
        start_proxy(state)
    assert "hunter" not in str(caught.value)
    assert "hunter" not in "".join(
        path.read_text() for path in state.iterdir() if path.is_file()
    )  # fmt: skip
    assert not os.path.exists(state / "proxy.json")
