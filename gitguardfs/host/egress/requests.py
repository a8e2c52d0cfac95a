"""A request as the proxy sees it, and checks for requests that no line can allow. Pure.

A server may read a request differently from the allowlist: for another host, path or method, or
with a second request in what looks like a body. Such a request is blocked here.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from gitguardfs.base.errors import word
from gitguardfs.host.egress import urls
from gitguardfs.host.egress.urls import BadUrlError

WEBSOCKET = "WS"
"""Stands for the method of a request that asks for a WebSocket: a GET with an Upgrade field."""
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
MAX_HEADERS = 200
MAX_NAME = 40
"""Characters of a field's name that a message quotes."""
MAX_HEADER_BYTES = 65536
"""Bytes of all fields together; servers accept 8 to 48 KiB."""
MAX_BLOCKED_BODY = 1 << 20
"""Bytes: a blocked request with a longer body is not answered, its connection is closed."""

_BODILESS = (b"GET", b"HEAD")
_OVERRIDE_FIELDS = frozenset(
    (
        b"forwarded", b"x-forwarded", b"x-host", b"x-http-host", b"x-http-method", b"x-method",
        b"x-http-path", b"x-http-url", b"x-http-uri", b"x-request-uri", b"x-request-url",
        b"method-override", b"http-method-override",
    )
)  # fmt: skip
"""Fields that some servers use instead of the method, the path or the host."""
_OVERRIDE_PATTERN = re.compile(
    rb"x-.*(?:original|override|rewrite|destination-?ur[il]"
    rb"|forwarded-(?!(?:for|proto|protocol|scheme|port|ssl|by)$))"
)
"""The names of more such fields. X-Forwarded-* fields that only describe the client pass."""
_HARMLESS_CONNECTION = frozenset((b"close", b"keep-alive", b"te"))
HOP_BY_HOP_FIELDS = ("Proxy-Connection", "Proxy-Authorization", "Keep-Alive", "TE", "Trailer")
"""Fields for the connection to the proxy only; they are removed. Trailer names fields that follow
the body; these are dropped."""

ONLY_HTTP_2 = (
    "the client speaks only HTTP/2, which does not pass: set it to HTTP/1.1, a gRPC library to REST"
)
PREFACE = b"PRI"
"""The method in the first bytes of an HTTP/2 client, which look like a request."""

Fields = tuple[tuple[bytes, bytes], ...]
"""The header fields of a request, in order: names and values."""
_OFFER_FIELDS = (b"upgrade", b"http2-settings")
"""Fields that offer HTTP/2 by http:// (h2c); Connection names them."""


def without_h2c(headers: Fields) -> Fields:
    """Return the fields without an offer of HTTP/2, or as they are if it is not written as usual.

    Java offers it with each request for an http:// URL. A server may ignore the offer (RFC 7540,
    3.2), so the request stays the same without it. What is left is judged by ``check_request``.
    """
    offers = [value.lower() for name, value in headers if name.lower() == b"upgrade"]
    settings = [value for name, value in headers if name.lower() == b"http2-settings"]
    if offers != [b"h2c"] or len(settings) != 1:
        return headers
    left = []
    for name, value in headers:
        if name.lower() == b"connection":
            tokens = [token.strip(b" \t") for token in value.split(b",")]
            tokens = [token for token in tokens if token.lower() not in _OFFER_FIELDS]
            if tokens:
                left.append((name, b", ".join(tokens)))
        elif name.lower() not in _OFFER_FIELDS:
            left.append((name, value))
    return tuple(left)


class ProxyRequest(NamedTuple):
    """A request as the client sent it, with nothing normalised."""

    method: bytes
    scheme: str
    host: str
    port: int
    """Host and port that mitmproxy would send it to."""
    target: bytes
    headers: Fields
    http_version: bytes = b"HTTP/1.1"
    is_tls: bool = False
    sni: str | None = None
    """The server name (SNI) of the client's TLS connection."""
    tunnel: tuple[str, int] | None = None
    """Host and port of the CONNECT before it; None if there was none."""
    authority: bytes = b""
    """Host and port of an absolute-form target within a tunnel."""

    @property
    def url(self) -> str:
        """The URL with nothing normalised, for messages."""
        where = urls.authority(self.scheme, self.host, self.port)
        return f"{self.scheme}://{where}{self.target.decode('latin-1')}"


class CheckedRequest(NamedTuple):
    """A request in normal form, which servers can read in one way only."""

    method: str
    scheme: str
    host: str
    port: int
    target: str

    @property
    def authority(self) -> str:
        """The value of its Host field."""
        return urls.authority(self.scheme, self.host, self.port)

    @property
    def url(self) -> str:
        """The URL that the rules are compared with."""
        return f"{self.scheme}://{self.authority}{self.target}"


class BadRequestError(Exception):
    """A request that no line can allow; the text says why."""


def check_request(request: ProxyRequest) -> CheckedRequest:
    """Return the request in normal form. Raises BadRequestError."""
    if request.method == PREFACE:
        raise BadRequestError(ONLY_HTTP_2)
    try:
        host = urls.normal_host(request.host)
        target = urls.normal_target(request.target.decode("latin-1"))
    except BadUrlError as error:
        raise BadRequestError(str(error)) from None
    if request.scheme not in urls.DEFAULT_PORTS:
        raise BadRequestError("neither http:// nor https://")
    if not 1 <= request.port <= 65535:
        raise BadRequestError("no port")
    if not re.fullmatch(rb"[A-Z]+", request.method):
        raise BadRequestError("the method is not in capital letters")
    if request.method == WEBSOCKET.encode():
        raise BadRequestError(f"{WEBSOCKET} is a word of the allowlist, not a method")
    if request.http_version not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise BadRequestError("not HTTP/1.1")
    is_websocket = _asks_for_websocket(request)
    method = WEBSOCKET if is_websocket else request.method.decode()
    result = CheckedRequest(method, request.scheme, host, request.port, target)
    _check_connection(request, result)
    _check_headers(request.headers, is_websocket)
    _check_host_field(request, result)
    _check_body(request)
    return result


def _check_connection(request: ProxyRequest, result: CheckedRequest) -> None:
    """Raise BadRequestError if the tunnel or the TLS connection is not for the URL's host."""
    if request.authority:
        raise BadRequestError("a whole URL instead of a path, within a tunnel")
    if request.tunnel is None:  # the proxy itself speaks TLS to the server of an https:// URL
        if request.is_tls:
            raise BadRequestError("TLS to the proxy itself; use http:// for the proxy's address")
        return
    if request.tunnel != (result.host, result.port):
        raise BadRequestError("the URL names another host than the CONNECT before it")
    if (request.scheme == "https") != request.is_tls:
        raise BadRequestError("https:// without TLS, or http:// within TLS")
    if request.sni is not None and request.sni.lower() != result.host:
        raise BadRequestError("the TLS connection is for another host (SNI)")


def _asks_for_websocket(request: ProxyRequest) -> bool:
    """Return whether a request has an Upgrade field. Raises BadRequestError for another protocol.

    An incomplete handshake for a WebSocket is refused as well: servers could read it differently.
    """
    upgrades = [value.lower() for name, value in request.headers if name.lower() == b"upgrade"]
    if not upgrades:
        return False
    keys = [value for name, value in request.headers if name.lower() == b"sec-websocket-key"]
    named = [value for name, value in request.headers if name.lower() == b"connection"]
    if upgrades != [b"websocket"] or request.method != b"GET" or len(keys) != 1:
        raise BadRequestError("an Upgrade other than a GET's to a WebSocket")
    if request.http_version != b"HTTP/1.1" or b"upgrade" not in _tokens(b",".join(named)):
        raise BadRequestError("an Upgrade before HTTP/1.1, or one that Connection does not name")
    return True


def _tokens(value: bytes) -> set[bytes]:
    return {token.strip(b" \t").lower() for token in value.split(b",")}


def _check_headers(headers: Fields, is_websocket: bool) -> None:
    size = sum(len(name) + len(value) for name, value in headers)
    if len(headers) > MAX_HEADERS or size > MAX_HEADER_BYTES:
        raise BadRequestError("too many header fields")
    for name, value in headers:
        lowered = _plain(name)
        if re.search(rb"[\x00-\x08\x0a-\x1f\x7f]", value):
            raise BadRequestError(f"a control character in the field {_shown(name)}")
        if is_instead_of_url(name):
            raise BadRequestError(
                f"the field {_shown(name)}, which servers may use instead of the URL"
            )
        if lowered == b"http2-settings":
            raise BadRequestError("an Upgrade to HTTP/2")
        harmless = _HARMLESS_CONNECTION | ({b"upgrade"} if is_websocket else set())
        if lowered == b"connection" and not _tokens(value) <= harmless:
            raise BadRequestError("a Connection field that names other fields")
        if lowered != name.lower() and lowered in _FRAMING:
            raise BadRequestError(f"the field {_shown(name)}")


def is_instead_of_url(name: bytes) -> bool:
    """Return whether some servers use the field ``name`` instead of the method or the URL."""
    lowered = _plain(name)
    return lowered in _OVERRIDE_FIELDS or bool(_OVERRIDE_PATTERN.match(lowered))


def _plain(name: bytes) -> bytes:
    return name.lower().replace(b"_", b"-")  # CGI does not tell them apart


_FRAMING = (b"content-length", b"transfer-encoding")


def _check_host_field(request: ProxyRequest, result: CheckedRequest) -> None:
    hosts = [value for name, value in request.headers if name.lower() == b"host"]
    if len(hosts) != 1:
        raise BadRequestError("two Host fields" if hosts else "no Host field")
    try:
        host, port = urls.split_authority(hosts[0].decode("latin-1"))
        named = (host, urls.normal_port(port, request.scheme))
    except BadUrlError as error:
        raise BadRequestError(f"the Host field: {error}") from None
    if named != (result.host, result.port):
        raise BadRequestError("the Host field names another host")


def _check_body(request: ProxyRequest) -> None:
    """Raise BadRequestError for a body that servers do not expect, or whose end is ambiguous."""
    lengths = [value for name, value in request.headers if name.lower() == b"content-length"]
    codings = [value for name, value in request.headers if name.lower() == b"transfer-encoding"]
    if len(lengths) + len(codings) > 1:
        raise BadRequestError("two fields that say how long the body is")
    if lengths and not re.fullmatch(rb"0|[1-9][0-9]{0,17}", lengths[0]):
        raise BadRequestError("a Content-Length that is not a number")
    if codings and codings[0].lower() != b"chunked":
        raise BadRequestError("a Transfer-Encoding other than chunked")
    if codings and request.http_version != b"HTTP/1.1":
        raise BadRequestError("a Transfer-Encoding before HTTP/1.1")
    if request.method in _BODILESS and (codings or (lengths and lengths[0] != b"0")):
        raise BadRequestError(f"a body with {request.method.decode()}")


def has_body(headers: Fields) -> bool:
    """Return whether the fields announce a body."""
    return any(name.lower() in _FRAMING and value != b"0" for name, value in headers)


def has_long_body(headers: Fields) -> bool:
    """Return whether a body has unknown length or more than MAX_BLOCKED_BODY bytes."""
    for name, value in headers:
        if name.lower() == b"transfer-encoding":
            return True
        if name.lower() == b"content-length":
            return not value.isdigit() or int(value) > MAX_BLOCKED_BODY
    return False


def field_name(name: str) -> str:
    """Return a field's name for a message: cut, and without blanks. The client chooses it."""
    return word(name) if len(name) <= MAX_NAME else f"{word(name[:MAX_NAME])}..."


def why_invalid(request: ProxyRequest) -> str:
    """Return why HTTP's parser has found a request invalid, in words of our own.

    The parser's own text quotes what the client has sent, at any length.
    """
    try:
        check_request(request)
    except BadRequestError as error:
        return str(error)
    return "not valid HTTP: a field's name, or what says how long the body is"


def _shown(name: bytes) -> str:
    return field_name(name.decode("latin-1"))
