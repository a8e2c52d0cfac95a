"""Notifies the service manager, and lets it keep descriptors while a service is restarted.

It takes them from the main process alone, which may be the daemon's keeper.
"""

from __future__ import annotations

import array
import logging
import os
import select
import socket
from collections.abc import Mapping
from contextlib import suppress

log = logging.getLogger(__name__)

FIRST = 3
"""The first descriptor that a manager passes on (SD_LISTEN_FDS_START)."""
MOST = 200
"""Descriptors that are handed over at most: the kernel passes 253 at once."""
TAKEN_LIMIT = 5.0
"""Seconds that a manager may need to take descriptors out of its socket."""


def notify(address: str | None, message: str, *descriptors: int) -> None:
    """Send a message to the service manager (sd_notify(3)); do nothing without an address."""
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.connect(address)
            sock.sendmsg([message.encode()], _rights(descriptors))
    except OSError as error:
        log.error("the service manager was not notified: %s", error.strerror)


def store(address: str, descriptors: Mapping[str, int]) -> None:
    """Let the manager keep descriptors, by their names; wait until it has them."""
    for name, fd in descriptors.items():
        notify(address, f"FDSTORE=1\nFDNAME={name}", fd)
    readable, writable = os.pipe()
    try:
        notify(address, "BARRIER=1", writable)
        os.close(writable)
        poll = select.poll()
        poll.register(readable, 0)  # POLLHUP, once the manager has closed its copy
        poll.poll(TAKEN_LIMIT * 1000)
    finally:
        os.close(readable)


def taken(address: str | None) -> dict[str, int]:
    """Take the descriptors that the manager has kept for this process; return them by name."""
    names = os.environ.get("LISTEN_FDNAMES", "").split(":")[:MOST]
    is_ours = os.environ.get("LISTEN_PID") == str(os.getpid())
    for variable in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        os.environ.pop(variable, None)
    found = {name: fd for fd, name in enumerate(names, FIRST)} if is_ours else {}
    for name, fd in found.items():
        os.set_inheritable(fd, False)
        notify(address, f"FDSTOREREMOVE=1\nFDNAME={name}")
    return found


class Relay:
    """Hands descriptors from a daemon to its keeper. To be made before the daemon is forked."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)  # recv_fds ignores its flags

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Its descriptors: that of the keeper, and that of the daemons that the keeper starts."""
        return self._ours.fileno(), self._theirs.fileno()

    def send(self, descriptors: Mapping[str, int]) -> None:
        """Hand descriptors to the keeper; to be called in the daemon. Raises OSError."""
        rights = _rights(tuple(descriptors.values()))
        self._theirs.sendmsg(["\0".join(descriptors).encode()], rights)

    def pass_on(self, address: str) -> None:
        """Let the manager keep what the daemon has sent before its end, if anything.

        To be called in the keeper.
        """
        with suppress(BlockingIOError):
            text, fds, _, _ = socket.recv_fds(self._ours, 1 << 16, MOST)
            store(address, dict(zip(text.decode().split("\0"), fds, strict=True)))


def _rights(descriptors: tuple[int, ...]) -> list[tuple[int, int, array.array[int]]]:
    if not descriptors:
        return []
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
