"""Completes mitmproxy's HTTP/1: limits, trailers, interim responses and repairs.

What a server has sent is quoted in no log and no error page: it may be the value of a secret.

mitmproxy reads a head, and the fields after a body (trailers), whole before it looks at them. It
raises NotImplementedError at trailers, and takes an interim response, such as 103 Early Hints, for
the response itself. RFC 9110 lets a proxy drop trailers, and interim responses that its client has
not asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import h11
from h11._readers import ChunkedReader
from h11._receivebuffer import ReceiveBuffer, blank_line_regex
from mitmproxy.http import Request, Response
from mitmproxy.net.http import validate
from mitmproxy.proxy.layers import tls
from mitmproxy.proxy.layers.http import _http1
from mitmproxy.tls import ClientHello

from gitguardfs.host.egress.clients import MAX_WHOLE

MAX_LINES, MAX_HEAD = 256, 128 * 1024
"""Most lines and bytes of a head, or of trailers. Longer ones are refused while they arrive, before
they are parsed. A request that a line can allow has fewer."""
MAX_RECORDS, MAX_HELLO = 16, 64 * 1024
"""Records and bytes of a ClientHello, which mitmproxy reads anew with each part that arrives.
Real clients send one or two records, and less than 10 KiB."""

_INTERIM = re.compile(rb"HTTP/1\.[01] 1(?!01)[0-9][0-9](?: |$)")
"""The first line of an interim response. 101 is final: the connection changes its protocol."""
_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-zA-Z]+")
_LENGTH, _CODING = b"content-length", b"transfer-encoding"
_BODILESS = (204, 304)
"""Statuses without a body. mitmproxy would refuse one that is in chunks, or send a body's end."""


class _TooLongError(h11.RemoteProtocolError, ValueError):
    """A head, trailers or a line of a chunk beyond the limits."""

    def __init__(self) -> None:
        super().__init__(f"more than {MAX_LINES} lines or {MAX_HEAD >> 10} KiB of header")


class _UnreadableLines(list[bytearray]):
    """Lines that raise _TooLongError when read, which mitmproxy answers as it does bad HTTP."""

    def __iter__(self) -> Iterator[bytearray]:
        raise _TooLongError


class _Chunks(ChunkedReader):
    """Reads a body in chunks, of which all that have come are one part; drops its trailers."""

    _end: h11.EndOfMessage | None = None

    def __call__(self, buf: ReceiveBuffer) -> h11.Data | h11.EndOfMessage | None:
        part = bytearray()
        while self._end is None:
            event = super().__call__(buf)
            if isinstance(event, h11.Data):
                part += event.data
            elif isinstance(event, h11.EndOfMessage):
                self._end = h11.EndOfMessage()
            else:
                break
        return h11.Data(data=bytes(part)) if part else self._end


class _Buffer(ReceiveBuffer):
    """The received bytes, within limits and without interim responses."""

    def __bytes__(self) -> bytes:
        """Return the text for mitmproxy's messages, for which alone it calls this."""
        return b"(%d bytes)" % len(self) if self else b""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Return the lines up to the first blank one, that of a final response; None if not yet."""
        lines = self._lines()
        while lines and _INTERIM.match(lines[0]):
            lines = self._lines()
        return lines

    def _lines(self) -> list[bytearray] | None:
        if self._data.startswith((b"\n", b"\r\n")):  # no lines, but what follows them is here too
            is_long = len(self) > MAX_WHOLE
        else:
            blank = blank_line_regex.search(self._data, self._multiple_lines_search, MAX_HEAD)
            end = blank.end() if blank else len(self)
            is_long = end > MAX_HEAD or self._data.count(b"\n", 0, end) > MAX_LINES
        return _UnreadableLines([bytearray()]) if is_long else super().maybe_extract_lines()

    def maybe_extract_next_line(self) -> bytearray | None:
        """Return the first line, that of a chunk; None if not yet. Raises _TooLongError."""
        line = super().maybe_extract_next_line()
        if line is None and len(self) > MAX_HEAD:
            raise _TooLongError
        return line


def _request_head(lines: list[bytes]) -> Request:
    """Return a request; HTTP/2's preface as one that is refused with a reason. Raises ValueError.

    To mitmproxy a request without a host is no HTTP.
    """
    if lines[0] == b"PRI * HTTP/2.0":
        lines = [b"PRI http://http2.invalid/ HTTP/1.1"]
    request: Request = _read_request_head(lines)
    return request


def _response_head(lines: list[bytes]) -> Response:
    """Return a response with one field at most that says where its body ends.

    Raises ValueError if clients could differ about that; its text quotes nothing.
    """
    try:
        response: Response = _read_response_head(lines)
    except (ValueError, IndexError):
        raise ValueError("its first line or a field is not valid HTTP") from None
    fields = [(name.rstrip(b" \t"), value) for name, value in response.headers.fields]
    if not all(_TOKEN.fullmatch(name) for name, _ in fields):
        raise ValueError("a field's name that is not valid")
    codings = [word for word in _words(fields, _CODING) if word != b"identity"]
    lengths = _words(fields, _LENGTH)
    if response.status_code in _BODILESS:
        codings = []
    if codings:
        lengths = []  # the coding counts (RFC 9112, 6.3)
        try:
            validate.parse_transfer_encoding(b",".join(codings))
        except ValueError:
            raise ValueError("a Transfer-Encoding that is not known") from None
        if response.http_version != "HTTP/1.1" or response.status_code == 101:
            raise ValueError("a Transfer-Encoding before HTTP/1.1, or of a response without a body")
    if not all(re.fullmatch(rb"[0-9]{1,18}", length) for length in lengths):
        raise ValueError("a Content-Length that is not a number")
    if len(set(map(int, lengths))) > 1:
        raise ValueError("two Content-Lengths that differ")
    kept = [(name, value) for name, value in fields if name.lower() not in (_LENGTH, _CODING)]
    if codings:
        kept.append((b"Transfer-Encoding", b", ".join(codings)))
    elif lengths:
        kept.append((b"Content-Length", b"%d" % int(lengths[0])))
    response.headers.fields = tuple(kept)
    return response


def _words(fields: Sequence[tuple[bytes, bytes]], wanted: bytes) -> list[bytes]:
    values = [value for name, value in fields if name.lower() == wanted]
    return [word.strip(b" \t").lower() for value in values for word in value.split(b",")]


def _client_hello(data: bytes) -> ClientHello | None:
    """Return the ClientHello, None before it is complete. Raises ValueError."""
    at = records = 0
    while at < len(data) and records <= MAX_RECORDS:
        at += 5 + int.from_bytes(data[at + 3 : at + 5])
        records += 1
    if records > MAX_RECORDS or len(data) > MAX_HELLO:
        raise ValueError
    return _parse_client_hello(data)


def _error_page(status_code: int, message: str = "") -> bytes:
    """Return the response for an error that mitmproxy reports, without the bytes it quotes."""
    if message.startswith(_OF_RESPONSE):
        message = f"The server's answer was refused: {message.removeprefix(_OF_RESPONSE)}"
    elif message.startswith(_QUOTING):
        message = _QUOTE.split(message, 1)[0]
    return _make_error_response(status_code, message)


_OF_RESPONSE = "Cannot parse HTTP response: "
_QUOTING = ("HTTP/1 protocol error", "Received ")
"""Beginnings of messages that quote received bytes."""
_QUOTE = re.compile(r": | b?['\"]|, refusing")
_make_error_response = _http1.make_error_response
_read_request_head = _http1.http1.read_request_head  # type: ignore[attr-defined]
_read_response_head = _http1.http1.read_response_head  # type: ignore[attr-defined]
_parse_client_hello = tls.parse_client_hello


def install() -> None:
    """Replace mitmproxy's own parts, for all connections of this process."""
    _http1.ChunkedReader = _Chunks  # type: ignore[attr-defined]
    _http1.ReceiveBuffer = _Buffer  # type: ignore[attr-defined]
    _http1.make_error_response = _error_page
    _http1.http1.read_request_head = _request_head  # type: ignore[attr-defined]
    _http1.http1.read_response_head = _response_head  # type: ignore[attr-defined]
    tls.parse_client_hello = _client_hello
