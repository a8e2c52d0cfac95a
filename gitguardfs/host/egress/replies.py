"""Answers of the proxy's own."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from mitmproxy import http
from mitmproxy.net.http import http1

from gitguardfs.host.egress import reports
from gitguardfs.host.egress.allowlist import BlockKind
from gitguardfs.host.egress.requests import WEBSOCKET

_FIELDS = {"Content-Type": "text/plain; charset=utf-8", "Cache-Control": "no-store"}

FIRST_LINE_LIMIT = 5.0
"""Seconds for the first line of a request that is not served."""


def text(status: int, content: str) -> http.Response:
    """Return a response with a text."""
    return http.Response.make(status, content, _FIELDS)


def refusal(method: str, url: str, reason: str, kind: BlockKind, *, is_head: bool) -> http.Response:
    """Return the response to a request that was blocked: status 418, and a text for the agent.

    It is 426 for a WebSocket that a line could allow: many clients then use HTTP.
    """
    explanation = reports.explanation(method, url, reason, kind)
    response = text(418, "" if is_head else explanation)
    response.reason = "Blocked - run gitguard-blocked"  # many programs show only this
    if kind is BlockKind.RULE and method == WEBSOCKET:
        response.status_code = 426
        response.headers["Upgrade"] = "HTTP/1.1"
        response.headers["Connection"] = "Upgrade"
    if kind is not BlockKind.RULE:  # what follows may not be what it seems
        response.headers["Connection"] = "close"
    return response


def busy(why: str) -> bytes:
    """Return the whole response to a request for which there is no connection left."""
    response = text(503, f"The sandbox's proxy: {why}.\n")
    response.headers["Connection"] = "close"
    data: bytes = http1.assemble_response(response)
    return data


async def first_words(reader: asyncio.StreamReader) -> tuple[str, str]:
    """Return the method and the URL of a request that is not read any further."""
    line = b""
    with suppress(TimeoutError, OSError, ValueError):  # ValueError: the line is long
        async with asyncio.timeout(FIRST_LINE_LIMIT):
            line = await reader.readline()
    method, url, *_ = (*line.decode("latin-1").split(), "?", "?")
    return method, url
