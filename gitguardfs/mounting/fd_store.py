"""Passes descriptors to the next daemon, by way of the keeper and of the service manager.

A manager takes them from the main process of a service alone, which may be the daemon's keeper.
"""

from __future__ import annotations

import array
import logging
import os
import select
import socket
from collections.abc import Callable, Mapping
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
    try:
        _send(address, message, *descriptors)
    except OSError as error:
        log.error("the service manager was not notified: %s", error.strerror)


def _send(address: str, message: str, *descriptors: int) -> None:
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        sock.connect(address)
        sock.sendmsg([message.encode()], _rights(descriptors))


def store(address: str, descriptors: Mapping[str, int]) -> None:
    """Let the manager keep descriptors, by their names. Raises OSError."""
    for name, fd in descriptors.items():
        _send(address, f"FDSTORE=1\nFDNAME={name}", fd)


def store_before_the_end(address: str, descriptors: Mapping[str, int]) -> None:
    """Let the manager keep descriptors, and wait until it has them. Raises OSError.

    What a slow manager has not taken in time waits in its socket: it takes that before our end.
    """
    store(address, descriptors)
    readable, writable = os.pipe()
    try:
        try:
            _send(address, "BARRIER=1", writable)
        finally:
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
    """A connection by which a daemon hands descriptors to its keeper.

    To be opened before the daemon is forked. The keeper has the descriptors that were sent last.
    The next daemon inherits them.
    """

    def __init__(self, address: str | None) -> None:
        """The manager of a service keeps the descriptors as well; ``address`` is its socket."""
        self._address = address
        self._is_receiving = False
        self._is_handed_over = False
        """Whether the descriptors were sent by ``hand_over``."""
        self.goes_on = True
        """Whether the next daemon goes on with the view; otherwise it mounts the view anew."""
        self._stored: list[str] = []
        """The names of the descriptors that the manager keeps."""
        self.kept: dict[str, int] = {}
        """The descriptors that the daemon has sent last, by name."""

    def open(self) -> None:
        """Connect the two processes. Raises OSError."""
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)  # recv_fds ignores its flags

    def close(self) -> None:
        """Close the connection, in a process that is neither daemon nor keeper."""
        self._ours.close()
        self._theirs.close()

    @property
    def descriptors(self) -> tuple[int, ...]:
        """All open descriptors of the relay, in the keeper and in its daemons."""
        return self._ours.fileno(), self._theirs.fileno(), *self.kept.values()

    # In the daemon

    def keep(self, descriptors: Mapping[str, int]) -> None:
        """Hand descriptors to the keeper in case of a kill, in place of former ones.

        Without descriptors, keeper and manager drop those that they have. Raises OSError.
        """
        self._send("", descriptors)

    def hand_over(self, descriptors: Mapping[str, int]) -> None:
        """Hand descriptors to the keeper before a planned end. Raises OSError."""
        self._send("end", descriptors)

    def _send(self, kind: str, descriptors: Mapping[str, int]) -> None:
        rights = _rights(tuple(descriptors.values()))
        self._theirs.sendmsg(["\0".join((kind, *descriptors)).encode()], rights)

    # In the keeper

    def receive(self) -> None:
        """Take the descriptors that the daemon has sent. May be called in a signal handler."""
        if self._is_receiving:
            return
        self._is_receiving = True
        with suppress(BlockingIOError):
            while True:
                text, fds, _, _ = socket.recv_fds(self._ours, 1 << 16, MOST)
                for fd in fds:
                    os.set_inheritable(fd, False)
                self._drop()
                kind, *names = text.decode().split("\0")
                self.kept, self._is_handed_over = dict(zip(names, fds, strict=True)), bool(kind)
                if not names:
                    self._store(store)
        self._is_receiving = False

    def _drop(self) -> None:
        while self.kept:
            os.close(self.kept.popitem()[1])

    def starting(self) -> None:
        """Let the manager keep nothing: a next daemon does not note in what the last one noted."""
        for name in self._stored:
            notify(self._address, f"FDSTOREREMOVE=1\nFDNAME={name}")
        self._stored = []

    def started(self) -> None:
        """Store the descriptors of a daemon that is ready."""
        self.receive()
        self._store(store)

    def ended(self) -> None:
        """Store what the last daemon has handed over; drop what was only kept for its kill."""
        self.receive()
        if not self._is_handed_over:
            self._drop()
        self._store(store_before_the_end)

    def _store(self, put: Callable[[str, Mapping[str, int]], None]) -> None:
        self.starting()
        if self._address is not None:
            self._stored = list(self.kept)
            try:
                if self.kept:
                    put(self._address, self.kept)
            except OSError as error:
                log.error("the service manager keeps nothing: %s", error.strerror)


def _rights(descriptors: tuple[int, ...]) -> list[tuple[int, int, array.array[int]]]:
    if not descriptors:
        return []
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
