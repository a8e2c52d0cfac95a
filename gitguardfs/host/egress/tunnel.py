"""Opens connections through the company's proxy, by CONNECT to an address that was checked.

The proxy is never told a name: it would resolve it again, and could come to another address.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import Sequence
from http import HTTPStatus
from http.client import responses
from typing import Any

import h11

from gitguardfs.host.egress import connecting, urls
from gitguardfs.host.egress.upstream_proxy import UpstreamProxy

LIMIT = 60.0
"""Seconds for the proxy to open a tunnel, shared out to the addresses of a server. A proxy itself
waits up to a minute for one."""
_PROXY = "the company proxy"
"""The proxy's name in texts for the agent. Its address is in mitmdump.log only."""


_NO_LOGIN = (HTTPStatus.PROXY_AUTHENTICATION_REQUIRED, HTTPStatus.UNAUTHORIZED)
"""Statuses for a missing or wrong password. tinyproxy answers 401 to a wrong one."""
_BASIC = re.compile(rb"(?:^|,)\s*basic\b", re.IGNORECASE)
"""Basic authentication, the only kind supported, in a proxy's list of kinds."""


class _RefusedError(OSError):
    """The proxy does not connect to an address; it may connect to another one of the host."""


async def connect(
    loop: asyncio.AbstractEventLoop,
    proxy: UpstreamProxy,
    answers: Sequence[Any],
    targets: Sequence[Any],
) -> socket.socket:
    """Return a socket that leads through the proxy to the first of the targets that it reaches.

    ``answers`` has the proxy's own addresses, both as getaddrinfo() returns them. Raises OSError.
    """
    for number, target in enumerate(connecting.ordered(targets), 1):
        try:
            sock = await _tunnel(loop, proxy, answers, target[4], LIMIT / len(targets))
        except _RefusedError:
            connecting.note(target, is_dead=True)
            if number == len(targets):
                raise
        else:
            connecting.note(target, is_dead=False)
            return sock
    raise OSError("no address")


async def _tunnel(
    loop: asyncio.AbstractEventLoop, proxy: UpstreamProxy, answers: Sequence[Any], target: Any,
    limit: float,
) -> socket.socket:  # fmt: skip
    try:
        sock = await connecting.first(loop, answers)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise OSError(f"cannot connect to {_PROXY}: {why}") from None
    try:
        async with asyncio.timeout(limit):
            await _ask(loop, sock, proxy, urls.authority("", *target[:2]))
    except BaseException as error:
        sock.close()
        if isinstance(error, OSError) and error.strerror:  # of the system
            raise OSError(f"the connection to {_PROXY} broke: {error.strerror}") from None
        if isinstance(error, TimeoutError):
            text = f"{_PROXY} opened no connection within {limit:.0f} seconds"
            raise _RefusedError(text) from None
        raise
    return sock


async def _ask(
    loop: asyncio.AbstractEventLoop, sock: socket.socket, proxy: UpstreamProxy, target: str
) -> None:
    """Send CONNECT, and read the answer. Raises OSError unless all that came is a status of 2xx."""
    http = h11.Connection(h11.CLIENT)  # raises for a header of more than 16 KiB
    fields = [("Host", target)]
    if proxy.authorization:
        fields.append(("Proxy-Authorization", proxy.authorization))
    request = http.send(h11.Request(method="CONNECT", target=target, headers=fields))
    await loop.sock_sendall(sock, request or b"")
    http.send(h11.EndOfMessage())
    try:
        while not isinstance(event := http.next_event(), h11.Response):
            if event is h11.NEED_DATA:
                if not (data := await loop.sock_recv(sock, 4096)):
                    raise OSError(f"{_PROXY} closed the connection without an answer")
                http.receive_data(data)
    except h11.ProtocolError as error:
        why = "more than 16 KiB" if error.error_status_hint == 431 else "what is no HTTP"
        raise OSError(f"{_PROXY} answered {why}") from None
    logins = [value for name, value in event.headers if name == b"proxy-authenticate"]
    _check_status(event.status_code, b",".join(logins))
    if http.trailing_data[0]:
        raise OSError(f"{_PROXY} sent data before the server was asked for anything")


def _check_status(code: int, logins: bytes) -> None:
    if 200 <= code < 300:
        return
    status = f"{code} {responses.get(code, '')}".rstrip()  # the proxy's own words may be anything
    if code in _NO_LOGIN and logins and not _BASIC.search(logins):
        raise OSError(
            f"{_PROXY} has only logins such as NTLM or Kerberos ({status}); your human can run a"
            " proxy that speaks them, and name that: gitguard vm up --upstream-proxy URL"
        )
    if code in _NO_LOGIN:  # no second try: accounts get locked
        raise OSError(
            f"{_PROXY} wants a user with a password, or another one ({status}); your human"
            " can change it: gitguard vm up --upstream-proxy http://USER@HOST:PORT"
        )
    if code < 400:
        raise OSError(f"{_PROXY} answered {status}, which is not followed")
    raise _RefusedError(f"{_PROXY} refused to connect to the server: {status}")
