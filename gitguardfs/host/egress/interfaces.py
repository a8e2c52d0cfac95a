"""The networks of this machine's interfaces, by getifaddrs(3), which Linux and macOS have."""

from __future__ import annotations

import ctypes
import ipaddress
import os
import socket
import sys
from collections.abc import Iterator

from gitguardfs.host.egress.addresses import Network


class _Interface(ctypes.Structure):
    """``struct ifaddrs``, as far as it is needed."""


_Interface._fields_ = (
    ("next", ctypes.POINTER(_Interface)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
    ("netmask", ctypes.c_void_p),
)
_libc = ctypes.CDLL(None, use_errno=True)
_ADDRESS = {socket.AF_INET: slice(4, 8), socket.AF_INET6: slice(8, 24)}
"""The bytes of the address in a ``struct sockaddr`` of each family."""


def networks() -> list[Network]:
    """Return each interface's network, or its address alone if its netmask is 0. Raises OSError."""
    first = ctypes.POINTER(_Interface)()
    if _libc.getifaddrs(ctypes.byref(first)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    try:
        return list(_networks(first))
    finally:
        _libc.freeifaddrs(first)


def _networks(first: ctypes._Pointer[_Interface]) -> Iterator[Network]:
    at = first
    while at:
        family, address = _socket_address(at.contents.address)
        if address:
            mask = _socket_address(at.contents.netmask, family)[1]
            own = ipaddress.ip_address(address)
            length = int.from_bytes(mask).bit_count() or own.max_prefixlen
            yield ipaddress.ip_network((own, length), strict=False)
        at = at.contents.next


def _socket_address(at: int | None, family: int = 0) -> tuple[int, bytes]:
    """Return the family and the address of a ``struct sockaddr``; b"" if it has none."""
    if at is None:
        return 0, b""
    head = ctypes.string_at(at, 2)
    is_bsd = sys.platform != "linux"  # there the first byte is the size
    family = family or (head[1] if is_bsd else int.from_bytes(head, sys.byteorder))
    where = _ADDRESS.get(socket.AddressFamily(family)) if family in _ADDRESS else None
    if where is None:
        return family, b""
    size = min(head[0], where.stop) if is_bsd else where.stop
    return family, ctypes.string_at(at, size).ljust(where.stop, b"\0")[where]
