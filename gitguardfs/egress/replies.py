"""Answers of the proxy's own."""

from __future__ import annotations

from mitmproxy import http

from gitguardfs.egress import reports
from gitguardfs.egress.allowlist import BlockKind
from gitguardfs.egress.requests import WEBSOCKET

_FIELDS = {"Content-Type": "text/plain; charset=utf-8", "Cache-Control": "no-store"}


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
