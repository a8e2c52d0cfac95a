"""Decides which addresses the proxy may connect to. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

PRIVATE_WORD = "private-address"
"""At the end of a line: its host may have an address that is not public."""

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_EMBEDDING_NETWORKS = (
    _NAT64, ipaddress.IPv6Network("::/96"), ipaddress.IPv6Network("::ffff:0:0:0/96")
)  # fmt: skip
"""IPv6 networks whose last 32 bits are an IPv4 address: NAT64, IPv4-compatible and
IPv4-translated addresses."""
_PUBLIC_NETWORKS = (_NAT64, ipaddress.IPv6Network("2000::/3"))
"""The networks that IANA has allocated for public IPv6 addresses. Python's is_global is
also true of the former site-local addresses (fec0::/10)."""


def parsed(text: str) -> Address | None:
    """Return the address that ``text`` spells; None if ``text`` is a name."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


_LOCAL_ENDS = (
    "corp", "home", "home.arpa", "internal", "intranet", "lan", "local", "localdomain", "localhost",
    "private", "example", "invalid", "onion", "test",
)  # fmt: skip
"""Ends of names that no server of the public DNS knows: special names (RFC 6761, RFC 6762, RFC
8375), .internal, and others that are used in networks and that ICANN delegates to nobody."""


def is_misled(address: Address, host: str) -> bool:
    """Return whether a name of the public DNS leads to an address that is not public.

    Hardly any server has such a name and address. It is the answer of a filter that blocks the
    name, or of a network that wants a sign-in first.
    """
    return (
        parsed(host) is None and "." in host
        and not any(host.endswith(f".{end}") for end in _LOCAL_ENDS)
        and not _is_public(address)
    )  # fmt: skip


def why_blocked(
    address: Address, host: str, is_private_allowed: bool, own: Collection[Network] = ()
) -> str:
    """Say why a request for ``host`` must not go to ``address``; "" if it may.

    ``own`` has the networks of this machine. Their addresses count as private, also where others
    could reach them: this machine, and a router before it, let in more from inside.
    A line with PRIVATE_WORD allows private addresses for its host. It allows a loopback or
    link-local address only if its host is that address itself: no name server can lead there.
    """
    meant = _embedded_ipv4(address)
    if meant.is_unspecified or meant.is_multicast or _is_broadcast(meant):
        return "a multicast, broadcast or unspecified address: no line can allow it"
    is_public = _is_public(address)
    if is_public and not any(found in network for network in own for found in (meant, address)):
        return ""
    if is_near(address) and parsed(host) != address:
        return "a loopback or link-local address, to which no name may lead"
    if not is_private_allowed:
        what = "in a network of this machine" if is_public else "not a public address"
        return f"{what}; a line that ends with {PRIVATE_WORD} would allow it"
    return ""


def is_near(address: Address) -> bool:
    """Return whether an address is of this machine's loopback or of its own link."""
    meant = _embedded_ipv4(address)
    return meant.is_loopback or meant.is_link_local


def _embedded_ipv4(address: Address) -> Address:
    if isinstance(address, ipaddress.IPv4Address):
        return address
    embedded = address.ipv4_mapped or address.sixtofour
    if embedded is not None:
        return embedded
    if (
        any(address in network for network in _EMBEDDING_NETWORKS) and int(address) > 1
    ):  # 1 is loopback
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _is_public(address: Address) -> bool:
    meant = _embedded_ipv4(address)
    return meant.is_global and address.is_global and _is_in_public_network(address)


def _is_in_public_network(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv4Address) or address.ipv4_mapped is not None:
        return True
    return any(address in network for network in _PUBLIC_NETWORKS)


def _is_broadcast(address: Address) -> bool:
    return address == ipaddress.IPv4Address("255.255.255.255")
