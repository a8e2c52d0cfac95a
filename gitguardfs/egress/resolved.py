"""What was resolved, and checked, for the connection that is being opened."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

from gitguardfs.egress.shared import shared
from gitguardfs.egress.upstream_proxy import UpstreamProxy

Answer = tuple[int, int, int, str, Any]
"""An address, as getaddrinfo() returns it."""


class ResolvedHost(NamedTuple):
    """A host's addresses to which the proxy may connect."""

    address: tuple[str, int]
    answers: list[Answer]
    through: tuple[UpstreamProxy, list[Answer]] | None = None
    """The company's proxy and its addresses, if the host is reached through it."""


RESOLVED: ContextVar[ResolvedHost | None] = ContextVar("resolved", default=None)
"""The host of the connection that is being opened. The event loop connects to no other address."""


async def answers_of(what: str, host: str, port: int) -> list[Answer]:
    """Ask for the addresses of a host, ``what`` in an error's text. Raises OSError."""
    try:
        found = await shared(_asked, host, port)
    except OSError as error:
        raise OSError(f"cannot find the address of {what}: {error.strerror}") from None
    return [(*answer[:4], answer[4]) for answer in found]


def _asked(host: str, port: int) -> Sequence[Answer]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
