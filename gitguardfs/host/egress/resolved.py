"""Resolves hosts, and checks their addresses, for the connection that is being opened."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

from gitguardfs.base.questions import asked_once
from gitguardfs.host.egress import addresses, interfaces
from gitguardfs.host.egress.allowlist import BlockKind
from gitguardfs.host.egress.upstream_proxy import UpstreamProxy

FINAL = (BlockKind.REQUEST, BlockKind.SINKHOLE)
"""Kinds of blocked addresses that no line can allow: what another address allows is told first."""
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


class BlockedAddressError(OSError):
    """A host has no address to which the proxy may connect; the text says why."""

    def __init__(self, why: str, kind: BlockKind) -> None:
        super().__init__(why)
        self.kind = kind


async def usable_answers(
    host: str, port: int, *, is_private_allowed: bool
) -> tuple[list[Answer], bool]:
    """Return the addresses to which the proxy may connect, and whether one of them is private.

    Raises BlockedAddressError if there is none; OSError.
    """
    answers = await answers_of(host, host, port)
    own = interfaces.networks()
    usable = []
    blocked: list[BlockedAddressError] = []
    is_private = False
    for answer in answers:
        address = addresses.parsed(str(answer[4][0]))
        if address is None:
            continue
        why = addresses.why_blocked(address, host, is_private_allowed, own)
        if why:
            is_final = addresses.why_blocked(address, host, True, own) != ""
            if addresses.is_misled(address, host):
                kind = BlockKind.SINKHOLE if is_final else BlockKind.MISLED
                why = f"a DNS block or a captive portal? {host} has the address {address}"
            else:
                kind = BlockKind.REQUEST if is_final else BlockKind.ADDRESS
                why = f"{host} has the address {address}: {why}"
            blocked.append(BlockedAddressError(why, kind))
        else:
            usable.append(answer)
            if addresses.why_blocked(address, host, False, own):
                is_private = True
    if not usable:
        none = BlockedAddressError(f"{host} has no address", BlockKind.REQUEST)
        raise min(blocked, key=lambda error: error.kind in FINAL, default=none)
    return usable, is_private


async def answers_of(what: str, host: str, port: int) -> list[Answer]:
    """Ask for the addresses of a host, called ``what`` in an error. Raises OSError."""
    try:
        found = await asked_once(_asked, host, port)
    except OSError as error:
        raise OSError(f"cannot find the address of {what}: {error.strerror}") from None
    return [(*answer[:4], answer[4]) for answer in found]


def _asked(host: str, port: int) -> Sequence[Answer]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
