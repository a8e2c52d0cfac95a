"""Teaches mitmproxy's HTTP/1 what it lacks: trailers and interim responses, which are dropped.

What a server has sent is quoted in no log and no error page: it may be the value of a secret.

mitmproxy raises NotImplementedError at the fields after a body (trailers). It takes an interim
response, such as 103 Early Hints, for the response itself. RFC 9110 lets a proxy drop trailers, and
interim responses that its client has not asked for.
"""

from __future__ import annotations

import re

import h11
from h11._readers import ChunkedReader
from h11._receivebuffer import ReceiveBuffer
from mitmproxy.proxy.layers.http import _http1

_INTERIM = re.compile(rb"HTTP/1\.[01] 1(?!01)[0-9][0-9](?: |$)")
"""The first line of an interim response. 101 is final: the connection changes its protocol."""


class _Chunks(ChunkedReader):
    """Reads a body in chunks; drops its trailers."""

    def __call__(self, buf: ReceiveBuffer) -> h11.Data | h11.EndOfMessage | None:
        event = super().__call__(buf)
        return h11.EndOfMessage() if isinstance(event, h11.EndOfMessage) else event


class _Buffer(ReceiveBuffer):
    """Holds what was received; drops interim responses."""

    def __bytes__(self) -> bytes:
        """Return what mitmproxy says in its messages, for which alone it calls this."""
        return b"(%d bytes)" % len(self) if self else b""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Return the lines up to the first blank one, that of a final response; None if not yet."""
        lines = super().maybe_extract_lines()
        while lines and _INTERIM.match(lines[0]):
            lines = super().maybe_extract_lines()
        return lines


def _error_page(status_code: int, message: str = "") -> bytes:
    """Return the whole response with an error of mitmproxy's own."""
    if message.startswith(_QUOTING):
        message = _QUOTE.split(message, 1)[0]
    return _make_error_response(status_code, message)


_QUOTING = ("Cannot parse HTTP response", "HTTP/1 protocol error", "Received ")
"""Beginnings of messages that quote what was received."""
_QUOTE = re.compile(r": | b?['\"]")
_make_error_response = _http1.make_error_response


def install() -> None:
    """Make mitmproxy use the readers of this module, for all connections of this process."""
    _http1.ChunkedReader = _Chunks  # type: ignore[attr-defined]
    _http1.ReceiveBuffer = _Buffer  # type: ignore[attr-defined]
    _http1.make_error_response = _error_page
