"""Teaches mitmproxy's HTTP/1 what it lacks: trailers and interim responses, which are dropped.

Error pages quote what a server has sent; the values of secrets are hidden in them.

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

from gitguardfs.egress.masks import MASKS

_INTERIM = re.compile(rb"HTTP/1\.[01] 1(?!01)[0-9][0-9](?: |$)")
"""The first line of an interim response. 101 is final: the connection changes its protocol."""


class _Chunks(ChunkedReader):
    """Reads a body in chunks; drops its trailers."""

    def __call__(self, buf: ReceiveBuffer) -> h11.Data | h11.EndOfMessage | None:
        event = super().__call__(buf)
        return h11.EndOfMessage() if isinstance(event, h11.EndOfMessage) else event


class _Buffer(ReceiveBuffer):
    """Holds what was received; drops interim responses."""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Return the lines up to the first blank one, that of a final response; None if not yet."""
        lines = super().maybe_extract_lines()
        while lines and _INTERIM.match(lines[0]):
            lines = super().maybe_extract_lines()
        return lines


def _error_page(status_code: int, message: str = "") -> bytes:
    """Return the whole response with an error of mitmproxy's own."""
    return _make_error_response(status_code, MASKS.masked_text(message))


_make_error_response = _http1.make_error_response


def install() -> None:
    """Make mitmproxy use the readers of this module, for all connections of this process."""
    _http1.ChunkedReader = _Chunks  # type: ignore[attr-defined]
    _http1.ReceiveBuffer = _Buffer  # type: ignore[attr-defined]
    _http1.make_error_response = _error_page
