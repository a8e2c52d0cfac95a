"""The matcher of the allowlist: the meaning of lines, and requests that no line can allow."""

import re
import string
from urllib.parse import unquote

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from gitguardfs.base.errors import UserError
from gitguardfs.host.egress import allowlist, presets, urls
from gitguardfs.host.egress.allowlist import (
    CREATED_TEXT,
    Allowlist,
    BadLineError,
    BlockKind,
    parse_line,
    validate_line,
)
from gitguardfs.host.egress.requests import CheckedRequest, ProxyRequest
from gitguardfs.host.egress.urls import BadUrlError, normal_host, normal_target

LABELS = st.text(string.ascii_lowercase + string.digits + "-_", min_size=1, max_size=8)
HOSTS = st.lists(LABELS, min_size=1, max_size=3).map(lambda labels: ".".join([*labels, "test"]))
PORTS = st.integers(1, 65535)
TARGETS = st.text(string.ascii_letters + string.digits + "/?.;%25EF&=*-_~!:@+$", max_size=30).map(
    lambda text: f"/{text}"
)
NASTY = st.lists(
    st.sampled_from(
        ["/", "..", ".", "%2e", "%2E", "%2f", "%5c", "%25", "%00", ";", "?", "*", "a", "b%41", "%",
         "ok", "//", "\\", "#", "%252e", "%c0%ae", "~",
         "%e0%80", "%ae", "%20", "%3f", "%23", "%EF%BC%8E", "%c2%a0", "%C3%A4",
         "%7E", "%2A", "é", " ", "\r\n"]
    ),
    max_size=12,
).map(lambda parts: "/" + "".join(parts))  # fmt: skip


def request(
    url: str = "https://example.com/", method: str = "GET", **changes: object
) -> ProxyRequest:
    """A request as mitmproxy gives it, for a URL that is well formed."""
    scheme, _, rest = url.partition("://")
    where, _, path = rest.partition("/")
    host, port = urls.split_authority(where)
    number = urls.normal_port(port, scheme)
    made = ProxyRequest(
        method=method.encode(),
        scheme=scheme,
        host=host,
        port=number,
        target=f"/{path}".encode(),
        headers=((b"Host", where.encode()),),
        is_tls=scheme == "https",
        sni=host if scheme == "https" else None,
        tunnel=(host, number) if scheme == "https" else None,
    )
    return made._replace(**changes)


def allows(line: str, url: str, method: str = "GET") -> bool:
    return Allowlist.parse(line).decide(request(url, method)).is_allowed


@pytest.mark.parametrize(
    ("line", "url", "is_allowed"),
    [
        ("GET https://a.test/x", "https://a.test/x", True),
        ("GET https://a.test/x", "https://A.TEST/x", True),
        ("GET https://A.test:443/x", "https://a.test/x", True),
        ("GET https://a.test/x", "https://a.test/X", False),
        ("GET https://a.test/x", "https://a.test/x?", False),
        ("GET https://a.test/x", "https://a.test/x?q", False),
        ("GET https://a.test/x", "https://a.test/x/", False),
        ("GET https://a.test/x", "http://a.test/x", False),
        ("GET https://a.test/x", "https://a.test:8443/x", False),
        ("GET https://a.test:8443/x", "https://a.test:8443/x", True),
        ("GET https://a.test/x", "https://b.a.test/x", False),
        ("GET https://a.test/x", "https://a.test.evil/x", False),
        ("GET https://a.test/x/*", "https://a.test/x/", True),
        ("GET https://a.test/x/*", "https://a.test/x/y/z?q=/../", True),
        ("GET https://a.test/x/*", "https://a.test/x", False),
        ("GET https://a.test/x/*", "https://a.test/xy/z", False),
        ("GET https://a.test/x*", "https://a.test/xy/z", True),
        ("GET https://a.test/*/x", "https://a.test/a/b/x", True),
        ("GET https://a.test/*/x", "https://a.test/a?b/x", False),
        ("GET https://a.test/*/x", "https://a.test/a/x?b/x", False),
        ("GET https://a.test/*/x?k=*", "https://a.test/a/x?k=1&j=2", True),
        ("GET https://a.test/*/x?k=*", "https://a.test/a?b/x?k=1", False),
        ("GET https://a.test/a*a", "https://a.test/a", False),
        ("GET https://a.test/a*b*c", "https://a.test/axbxbc", True),
        ("GET https://a.test/a*b*c", "https://a.test/axcxb", False),
        ("GET https://a.test/[ab]?", "https://a.test/a1", False),
        ("GET https://a.test/.", "https://a.test/x", False),
        ("GET https://a.test/%41%7e%2f", "https://a.test/A~%2F", True),
        ("GET https://a.test/a/b", "https://a.test/a%2Fb", False),
        ("GET https://a.test/%2A", "https://a.test/*", True),
        ("GET https://a.test/x  # why", "https://a.test/x", True),
        ("GET https://[2A00:1::0:1]/x", "https://[2a00:1::1]/x", True),
    ],
)
def test_what_a_line_admits(line: str, url: str, is_allowed: bool) -> None:
    assert allows(line, url) == is_allowed


def test_methods_are_exact() -> None:
    assert not allows("GET https://a.test/x", "https://a.test/x", "HEAD")
    assert not allows("GET https://a.test/x", "https://a.test/x", "get")
    assert allows("POST https://a.test/x", "https://a.test/x", "POST")


def test_a_websocket_needs_its_own_line() -> None:
    fields = ((b"Host", b"a.test"), (b"Connection", b"Upgrade"), (b"Upgrade", b"websocket"),
              (b"Sec-WebSocket-Key", b"x"))  # fmt: skip
    asked = request("https://a.test/x/1", headers=fields)
    assert Allowlist.parse("WS https://a.test/x/*").decide(asked).is_allowed
    assert not Allowlist.parse("GET https://a.test/x/*").decide(asked).is_allowed
    assert not Allowlist.parse("WS http://a.test/x/*").decide(asked).is_allowed
    assert not Allowlist.parse("WS https://a.test/y/*").decide(asked).is_allowed
    assert not allows("WS https://a.test/x/*", "https://a.test/x/1")
    assert parse_line("WS https://A.test:443/x  # why").line == "WS https://a.test/x"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("https://a.test/x", "METHOD URL"),
        ("GET https://a.test/x y z", "METHOD URL"),
        ("GET https://a.test/x private", "only private-address"),
        ("get https://a.test/x", "the method must be"),
        ("GET,POST https://a.test/x", "the method must be"),
        ("* https://a.test/x", "the method must be"),
        ("CONNECT https://a.test/x", "the method must be"),
        ("GET a.test/x", "must begin with"),
        ("GET ftp://a.test/x", "must begin with"),
        ("WS wss://a.test/x", "must begin with https:// or http://, also for a WebSocket"),
        ("ws https://a.test/x", "or WS for a WebSocket"),
        ("WSS https://a.test/x", "or WS for a WebSocket"),
        ("WS https://a.test", "has no path"),
        ("GET HTTPS://a.test/x", "must begin with"),
        ("GET https://*.a.test/x", "in the path only"),
        ("GET https://a.test:*/x", "in the path only"),
        ("GET https://a.test", "has no path"),
        ("GET https://a.test?x", "has no path"),
        ("GET https:///x", "not HOST"),
        ("GET https://u@a.test/x", "user name"),
        ("GET https://a.test./x", "ends with a dot"),
        ("GET https://a..test/x", "not a host name"),
        ("GET https://-a.test/x", "not a host name"),
        ("GET https://bücher.test/x", "xn--"),
        ("GET https://127.1/x", "four decimal numbers"),
        ("GET https://0x7f.0.0.1/x", ""),
        ("GET https://a.0x7f/x", "four decimal numbers"),
        ("GET https://2130706433/x", "four decimal numbers"),
        ("GET https://010.0.0.1/x", "four decimal numbers"),
        ("GET https://[::1%lo]/x", "zone"),
        ("GET https://[::g]/x", "not an IPv6 address"),
        ("GET https://::1/x", "not HOST"),
        ("GET https://a.test:0/x", "not a port"),
        ("GET https://a.test:65536/x", "not a port"),
        ("GET https://a.test:+80/x", "not a port"),
        ("GET https://a.test:/x", "without a port"),
        ("GET https://a.test//x", "begins with //"),
        ("GET https://a.test/x/../y", ". or .."),
        ("GET https://a.test/%2e%2E/*", ". or .."),
        ("GET https://a.test/a\\b", "backslash"),
        ("GET https://a.test/a#b", "#"),
        ("GET https://a.test/ä", "ASCII"),
        ("GET https://a.test/%2", "hexadecimal"),
        ("GET https://a.test/%*", "hexadecimal"),
        ("GET https://a.test/x?a=%*", "hexadecimal"),
        ("GET https://a.test/%00", "%00"),
        ("GET https://a.test/%252e", "%252e"),
        (f"GET https://a.test/{'a' * 9000}", "longer than"),
        (f"GET https://a.test/{'a' * 90000}", "too long"),
    ],
)
def test_lines_that_have_no_meaning(line: str, why: str) -> None:
    with pytest.raises(UserError) as raised:
        validate_line(line)
    assert why in str(raised.value)
    found = Allowlist.parse(f"# comment\n\n{line}\nGET https://ok.test/x")
    assert [error.number for error in found.errors] == [3]
    assert why in found.errors[0].why
    assert [rule.host for rule in found.rules] == ["ok.test"]


def test_a_message_is_one_printable_line() -> None:
    with pytest.raises(UserError) as raised:
        validate_line("GET https://a.test/\x1b[31m\u202e")
    assert str(raised.value).isprintable()


@pytest.mark.parametrize("text", [CREATED_TEXT, *presets.PRESETS.values()])
def test_what_we_write_ourselves_is_in_normal_form(text: str) -> None:
    found = Allowlist.parse(text)
    assert found.errors == ()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert lines == [rule.line for rule in found.rules]
    assert not any(rule.is_private_allowed for rule in found.rules)
    assert text.startswith("#")
    assert all(len(line) <= 100 for line in text.splitlines())


def test_the_packages_that_are_always_allowed_are_for_reading() -> None:
    assert {rule.method for rule in Allowlist.parse(CREATED_TEXT).rules} == {"GET", "HEAD"}


def test_the_line_with_the_private_address_holds_if_two_admit_a_request() -> None:
    for text in ("GET https://a.test/* private-address\nGET https://a.test/x",
                 "GET https://a.test/x\nGET https://a.test/* private-address"):  # fmt: skip
        rule = Allowlist.parse(text).decide(request("https://a.test/x")).rule
        assert rule is not None
        assert rule.is_private_allowed


PATHS_REFUSED = (
    "/a/../b", "/..", "/.", "/a/.", "/a/%2e%2e/b", "/a/%2E./b", "/a/..%2fb", "/a%2f..%2Fb",
    "/a/..;x/b", "/a/..%3bx/b", "/a%5cb", "/a\\b", "/a%00", "/a%0a", "/a%7f", "/a#b", "/a%25%32e",
    "/a%252e%252e", "/a%255c", "/a%c0%ae", "//a", "a", "", "/%", "/%zz", "/%u002e", "/a b", "/é",
    "/a\x7f", "*",
    # UTF-8 that is not valid: too long a form of a dot, half a character, a surrogate
    "/pub/%e0%80%ae%e0%80%ae/priv", "/pub/%f0%80%80%ae/priv", "/pub/%ff/x", "/pub/%C3/x",
    "/pub/%ed%a0%80",
    # Dots before what servers cut off, and dots and slashes that servers fold to plain ones
    "/a/..%20/b", "/a/.%20", "/a/%20../b", "/a/..%C2%A0/b", "/a/..%3f/b", "/a/..%3Fx", "/a/..%23/b",
    "/a/.%23", "/a/%EF%BC%8E%EF%BC%8E/b", "/a/.%ef%bc%8e/b", "/a/%E2%80%A5/b", "/a/%E2%80%A4%2fb",
    "/a/..%EF%BC%8Fb", "/a/..%EF%BC%BCb", "/a/..%EF%BC%9Bx/b",
)  # fmt: skip


@pytest.mark.parametrize("path", PATHS_REFUSED)
def test_paths_that_servers_read_in_two_ways_have_no_normal_form(path: str) -> None:
    with pytest.raises(BadUrlError):
        normal_target(path)
    decision = Allowlist.parse("GET https://a.test/*").decide(
        request("https://a.test/", target=path.encode())
    )
    assert (decision.is_allowed, decision.kind) == (False, BlockKind.REQUEST)


@pytest.mark.parametrize(
    "path", ["/...", "/a/..b", "/a/b..", "/.a", "/a;b", "/%2F", "/a//b", "/?/../%",
             "/%C3%A4%E2%82%AC%F0%9F%98%80", "/a%20..b", "/a%3F../b%23..", "/?%FF&..%20/",
             "/%E2%80%A6"],
)  # fmt: skip
def test_paths_that_can_be_read_in_one_way_only(path: str) -> None:
    assert normal_target(path) == path


@settings(deadline=None)
@given(NASTY | TARGETS)
@example("/%2541")
@example("/?%2541%*")
@example("/?%%34%31")
def test_a_normal_target_is_normal(text: str) -> None:
    try:
        once = normal_target(text)
    except BadUrlError:
        return
    assert normal_target(once) == once
    if not urls._BROKEN_ESCAPE.search(once):
        assert normal_target(once, is_pattern=True) == once
    path = unquote(once.partition("?")[0], errors="strict")
    parts = path.replace("\N{FULLWIDTH FULL STOP}", ".").split("/")
    assert not {".", ".."} & {re.split(r"[;?#\s]", part)[0] for part in parts}
    assert "*" not in once


@settings(deadline=None)
@given(HOSTS | st.text(max_size=12))
def test_a_normal_host_is_normal(text: str) -> None:
    try:
        once = normal_host(text)
    except BadUrlError:
        return
    assert normal_host(once) == once
    assert once.isascii()
    assert once == once.lower()


@settings(deadline=None)
@given(HOSTS, PORTS, TARGETS, st.booleans())
def test_a_valid_line_is_the_same_when_it_is_read_again(
    host: str, port: int, target: str, is_private: bool
) -> None:
    line = f"GET https://{host}:{port}{target}" + is_private * " private-address"
    try:
        normal = validate_line(line)
    except UserError:
        assume(False)
    assert validate_line(normal) == normal
    assert parse_line(normal) == parse_line(line)


@settings(deadline=None)
@given(HOSTS, HOSTS, PORTS, PORTS, TARGETS, TARGETS, st.sampled_from(["http", "https"]))
def test_no_line_admits_another_host_or_port(
    host: str, other: str, port: int, other_port: int, pattern: str, target: str, scheme: str
) -> None:
    assume((host, port) != (other, other_port))
    try:
        rule = parse_line(f"GET {scheme}://{host}:{port}{pattern}*")
    except BadLineError:
        assume(False)
    for checked in (
        CheckedRequest("GET", scheme, other, other_port, target),
        CheckedRequest("GET", {"http": "https", "https": "http"}[scheme], host, port, target),
        CheckedRequest("POST", scheme, host, port, target),
    ):
        assert not rule.allows(checked)


@settings(deadline=None)
@given(TARGETS, NASTY | TARGETS)
def test_nothing_outside_of_the_prefix_of_a_pattern_is_allowed(prefix: str, target: str) -> None:
    """Nor a path that a server would resolve to one outside of the prefix."""
    try:
        rule = parse_line(f"GET https://a.test{prefix}*")
    except BadLineError:
        assume(False)
    decision = Allowlist((rule,)).decide(
        request("https://a.test/", target=target.encode("latin-1", "replace"))
    )
    if decision.is_allowed:
        assert decision.checked is not None
        assert decision.checked.target.startswith(rule.pieces[0])


@settings(deadline=None)
@given(st.lists(st.text("ab?", max_size=3), min_size=2, max_size=4), st.text("ab?", max_size=9))
def test_matching_is_what_a_regular_expression_says(pieces: list[str], target: str) -> None:
    """``*`` does not match the first ``?``, except at the end of a pattern."""
    *most, last = [re.escape(piece) for piece in pieces]
    # The first ? as another character, which [^!] does not match.
    marked = target.replace("?", "!", 1)
    wanted = False
    for at in range(sum(piece.count("?") for piece in pieces) + 1):
        expression, left = [], at
        for piece in [*most, last]:
            text = ""
            for part in re.split(r"(\\\?)", piece):
                if part == "\\?":
                    left -= 1
                    part = "!" if left == 0 else part
                text += part
            expression.append(text)
        final = "(?s:.*)" if last == "" else "[^!]*"
        joined = "[^!]*".join(expression[:-1]) + final + expression[-1]
        wanted = wanted or re.fullmatch(joined, marked) is not None
    assert allowlist._matches(tuple(pieces), target) == wanted


def test_matching_takes_no_longer_than_the_target_is_long() -> None:
    pieces = ("/", *("a" * n for n in range(1, 100)), "b")
    assert not allowlist._matches(pieces, "/" + "a" * 8000)  # a regular expression would not end


@pytest.mark.parametrize(
    ("there", "proposed", "covers"),
    [
        ("GET https://a.test/*", "GET https://a.test/x", True),
        ("GET https://a.test/*", "GET https://a.test/x?*", True),
        ("GET https://a.test/x", "GET https://a.test/x", True),
        ("GET https://a.test/x?*", "GET https://a.test/x?*", True),
        ("GET https://a.test/x", "GET https://a.test/x?*", False),
        ("GET https://a.test/*/z", "GET https://a.test/y/z", True),
        ("GET https://a.test/*/z", "GET https://a.test/y/z?*", False),
        ("GET https://a.test/x", "GET https://a.test/y", False),
        ("POST https://a.test/*", "GET https://a.test/x", False),
        ("GET https://b.test/*", "GET https://a.test/x", False),
        ("GET https://a.test/*", "GET https://a.test/x private-address", False),
        ("GET https://a.test/* private-address", "GET https://a.test/x private-address", True),
    ],
)
def test_what_a_line_covers(there: str, proposed: str, covers: bool) -> None:
    assert Allowlist.parse(there).covers(proposed) == covers
