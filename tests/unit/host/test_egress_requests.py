"""Requests that no line can allow, and addresses that no name may lead to."""

import ipaddress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gitguardfs.host.egress import addresses, requests
from gitguardfs.host.egress.requests import BadRequestError, ProxyRequest, check_request
from tests.unit.host.test_egress_allowlist import request

HTTPS = request("https://a.test/x")
HTTP = request("http://a.test/x")
WEBSOCKET = (
    (b"Connection", b"keep-alive, Upgrade"), (b"upgrade", b"WebSocket"),
    (b"Sec-WebSocket-Key", b"x"),
)  # fmt: skip

H2C = ((b"Connection", b"Upgrade, HTTP2-Settings"), (b"Upgrade", b"h2c"), (b"HTTP2-Settings", b"x"))
"""How Java offers HTTP/2 with each request for an http:// URL."""


def with_fields(*fields: tuple[bytes, bytes], of: ProxyRequest = HTTPS) -> ProxyRequest:
    return of._replace(headers=of.headers + fields)


def test_ordinary_requests_pass() -> None:
    for fields in (
        [(b"Connection", b"keep-alive"), (b"Proxy-Connection", b"close")],
        [(b"Connection", b"TE, Close"), (b"TE", b"trailers")],
        [(b"Content-Length", b"0")],
        [(b"Trailer", b"X")],
        [(b"X-Text", b"tab\tand \xe4")],
        [(b"Cookie", b"a=b"), (b"Cookie", b"c=d")],
        [(b"X-Forwarded-For", b"10.0.0.1"), (b"X-Forwarded-Proto", b"https")],
        [(b"X_Forwarded_Port", b"443"), (b"X-Forwarded-Scheme", b"https")],
        [(b"X-Requested-With", b"a"), (b"X-Request-Id", b"1"), (b"X-Api-Key", b"k")],
        [(b"Origin", b"https://a.test"), (b"X-Originating-IP", b"10.0.0.1")],
    ):
        assert check_request(with_fields(*fields)).url == "https://a.test/x"
    post = HTTPS._replace(method=b"POST")
    assert check_request(with_fields((b"Transfer-Encoding", b"Chunked"), of=post)).method == "POST"
    assert check_request(with_fields((b"Content-Length", b"12"), of=post)).method == "POST"
    assert check_request(HTTP._replace(http_version=b"HTTP/1.0")).url == "http://a.test/x"
    assert check_request(HTTP._replace(tunnel=("a.test", 80))).url == "http://a.test/x"
    assert check_request(HTTP._replace(scheme="https", port=443)).url == "https://a.test/x"
    assert check_request(with_fields(*WEBSOCKET)).method == "WS"
    assert check_request(HTTPS._replace(sni=None)).host == "a.test"
    assert check_request(HTTPS._replace(sni="A.Test")).host == "a.test"


@pytest.mark.parametrize(
    ("fields", "left"),
    [
        (H2C, ()),
        (((b"connection", b"keep-alive ,\tupgrade,http2-settings"), (b"UPGRADE", b"H2C"), H2C[2]),
         ((b"connection", b"keep-alive"),)),
        ((*H2C[:2], (b"X-A", b"b"), (b"Connection", b"close"), H2C[2]),
         ((b"X-A", b"b"), (b"Connection", b"close"))),
    ],
)  # fmt: skip
def test_an_offer_of_http2_is_dropped(fields: requests.Fields, left: requests.Fields) -> None:
    for method in (b"GET", b"POST"):
        asked = with_fields(*fields, of=HTTP._replace(method=method))
        with pytest.raises(BadRequestError):
            check_request(asked)
        plain = asked._replace(headers=requests.without_h2c(asked.headers))
        assert plain.headers == HTTP.headers + left
        assert check_request(plain) == check_request(HTTP._replace(method=method))


@pytest.mark.parametrize("fields", [(), WEBSOCKET, ((b"Connection", b"close"), (b"Host", b"b"))])
def test_what_offers_no_http2_stays_as_it_is(fields: requests.Fields) -> None:
    assert requests.without_h2c(fields) == fields


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (HTTPS._replace(method=b""), "capital"),
        (HTTPS._replace(method=b"GET\xff"), "capital"),
        (HTTPS._replace(scheme="ftp"), "neither"),
        (HTTPS._replace(port=0, tunnel=("a.test", 0)), "no port"),
        (HTTPS._replace(http_version=b"HTTP/1.2"), "not HTTP/1.1"),
        (HTTPS._replace(tunnel=("a.test", 444)), "than the CONNECT"),
        (HTTPS._replace(is_tls=False), "without TLS"),
        (HTTPS._replace(sni=""), "SNI"),
        (HTTP._replace(is_tls=True), "TLS to the proxy"),
        (HTTPS._replace(method=b"PRI"), "only HTTP/2"),
        (HTTPS._replace(headers=((b"Host", b"a.test:80"),)), "another host"),
        (HTTPS._replace(headers=((b"Host", b"a.test, b.test"),)), "not a host name"),
        (HTTPS._replace(headers=((b"Host", b""),)), "Host field"),
        (with_fields(*WEBSOCKET, (b"HTTP2-Settings", b"x")), "Upgrade to HTTP/2"),
        (with_fields((b"Connection", b"upgrade")), "names other fields"),
        (with_fields((b"Content-Length", b"0"), (b"content-length", b"0")), "two fields"),
        (with_fields((b"Content-Length", b"00")), "not a number"),
        (with_fields((b"Content-Length", b"")), "not a number"),
        (with_fields((b"Transfer-Encoding", b"chunked;a")), "other than chunked"),
        (with_fields(*((b"X", b"y") for _ in range(200))), "too many"),
        (with_fields((b"X", b"y" * 65536)), "too many"),
    ],
)  # fmt: skip
def test_requests_that_no_line_can_allow(bad: ProxyRequest, why: str) -> None:
    with pytest.raises(BadRequestError, match=why):
        check_request(bad)


@pytest.mark.parametrize(
    "name",
    ["X-HTTP-Host-Override", "X-Original-HTTP-Method", "X-Forwarded-Url", "X-HTTP-DestinationURL",
     "X-HTTP-Destination-Url", "X-MS-Original-URL", "X-Envoy-Original-Host",
     "X-Envoy-Original-Path", "X-OriginalUrl", "X-Original-URI", "X-Original-Host",
     "X-Original-Path", "X-Original-Method", "X-Method-Override", "X-HTTP-Path-Override",
     "X-Rewrite-URI", "X-Forwarded-Host", "X-Forwarded-Server", "X-Forwarded-Path",
     "X-Forwarded-Uri", "X-Forwarded-Prefix", "X-Forwarded-Method", "X-Forwarded-For-Host",
     "X-Forwarded", "Forwarded", "X-Host", "X-HTTP-Method", "X-HTTP-Host", "Method-Override",
     "HTTP-Method-Override", "X-Request-URI"],
)  # fmt: skip
def test_fields_by_which_servers_go_instead_of_the_url(name: str) -> None:
    for spelled in (name, name.upper(), name.replace("-", "_")):
        with pytest.raises(BadRequestError, match="instead of the URL"):
            check_request(with_fields((spelled.encode(), b"x")))


def test_which_denied_bodies_are_waited_for() -> None:
    for value, is_long in ((b"0", False), (b"1048576", False), (b"1048577", True), (b"x", True)):
        assert requests.has_long_body(((b"content-length", value),)) == is_long
    assert requests.has_long_body(((b"Transfer-Encoding", b"chunked"),))
    assert not requests.has_long_body(())


@pytest.mark.parametrize(
    "text",
    ["0.0.0.0", "255.255.255.255", "224.0.0.1", "239.1.2.3", "::", "ff02::1", "::ffff:0.0.0.0",
     "64:ff9b::e000:1"],
)  # fmt: skip
def test_addresses_that_no_line_admits(text: str) -> None:
    address = ipaddress.ip_address(text)
    assert "no line can allow" in addresses.why_blocked(address, text, True)


@pytest.mark.parametrize(
    "text",
    ["10.1.2.3", "172.16.0.1", "192.168.0.1", "100.64.0.1", "198.18.0.1", "192.0.2.1", "fd00::1",
     "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::1", "::10.0.0.1", "240.0.0.1",
     "::ffff:0:10.0.0.1", "fec0::3", "64:ff9b:1::a00:1", "5f00::1", "4000::1"],
)  # fmt: skip
def test_private_addresses_need_their_word(text: str) -> None:
    address = ipaddress.ip_address(text)
    assert "private-address" in addresses.why_blocked(address, "a.test", False)
    assert addresses.why_blocked(address, "a.test", True) == ""


@pytest.mark.parametrize(
    "text",
    ["127.0.0.1", "127.8.8.8", "::1", "169.254.169.254", "fe80::1", "::ffff:127.0.0.1",
     "64:ff9b::7f00:1", "2002:7f00:1::1", "::ffff:169.254.169.254", "::ffff:0:7f00:1"],
)  # fmt: skip
def test_loopback_and_link_local_must_be_named(text: str) -> None:
    address = ipaddress.ip_address(text)
    assert addresses.why_blocked(address, "a.test", False) != ""
    assert addresses.why_blocked(address, "127.0.0.2", True) != ""
    assert addresses.why_blocked(address, "a.test", True) != ""
    assert addresses.why_blocked(address, text, True) == ""


def test_public_addresses_need_nothing() -> None:
    for text in ("11.22.33.44", "2606:4700::1111", "::ffff:11.22.33.44", "64:ff9b::b16:212c"):
        assert addresses.why_blocked(ipaddress.ip_address(text), "a.test", False) == "", text


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_an_address_in_another_form_is_judged_as_what_it_means(number: int) -> None:
    plain = ipaddress.IPv4Address(number)
    for form in (f"::ffff:{plain}", f"64:ff9b::{plain}"):
        wrapped = ipaddress.IPv6Address(form)
        if addresses.why_blocked(plain, "a.test", False):
            assert addresses.why_blocked(wrapped, "a.test", False)
        if addresses.why_blocked(plain, "a.test", True):
            assert addresses.why_blocked(wrapped, "a.test", True)
