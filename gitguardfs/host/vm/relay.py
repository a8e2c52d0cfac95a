"""Copies one connection of the guest to the proxy. QEMU starts this for each connection.

``python -I -S relay.py STATE_DIRECTORY``, with the guest's connection as standard input and output.
The program imports little, so that it starts quickly. Standard error is the guest's connection too,
so nothing is written to it.

The guest decides how many of these are started, and whether it takes what they send. So their
number, the size of their buffers and the time for which they wait for the guest are limited.
"""

import fcntl
import json
import os
import select
import socket
import sys

ANSWER = (
    b"HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    b"The proxy on the host is not running. Ask your human to run: gitguard vm proxy\n"
)
TOO_MANY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    b"There are too many connections at a time. Close some of them.\n"
)
MAX_RELAYS = 160
"""Relays of one VM at the same time. It is more than the connections that the proxy serves: to
serve a new one, the proxy closes one that lies idle."""
SLOTS = "relays.lock"
"""A file of the state directory. Each relay locks one of its first MAX_RELAYS bytes."""
CHUNK = 65536
BUFFER = 65536
"""Bytes for each of a socket's two buffers, in the kernel. By itself it takes up to 6 MiB."""
STALL_LIMIT = 300.0
"""Seconds for which the guest may take nothing of what there is for it."""


def main(directory: str) -> None:
    """Connect to the proxy whose port is in ``directory``/proxy.json, and copy bytes both ways."""
    guest = socket.socket(fileno=0)
    slots = os.open(os.path.join(directory, SLOTS), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    if not _take_slot(slots):
        guest.sendall(TOO_MANY)
        return
    try:
        proxy = _connected(os.path.join(directory, "proxy.json"))
    except (OSError, ValueError, KeyError, TypeError):
        guest.sendall(ANSWER)
        return
    _limit_buffers(guest)
    copy(guest, proxy)


def _take_slot(slots: int) -> bool:
    """Lock a byte of the file until this process ends; return False if each byte is locked."""
    for slot in range(MAX_RELAYS):
        try:
            fcntl.lockf(slots, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, slot)
        except (BlockingIOError, PermissionError):
            continue
        return True
    return False


def _connected(path: str) -> socket.socket:
    """Connect to the proxy that has written the file ``path``, and to no other program.

    Raises OSError, ValueError, KeyError, TypeError.
    """
    with open(path) as file:
        proxy = socket.socket()
        _limit_buffers(proxy)
        proxy.connect(("127.0.0.1", int(json.load(file)["port"])))
        # After connecting: a held lock shows that the proxy lives, so that the port is its own. The
        # port of a dead proxy may be another program's, which the guest must not reach.
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return proxy
    proxy.close()
    raise ConnectionRefusedError


def _limit_buffers(peer: socket.socket) -> None:
    for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        peer.setsockopt(socket.SOL_SOCKET, buffer, BUFFER)


def copy(guest: socket.socket, proxy: socket.socket) -> None:
    """Copy both ways until the proxy hangs up and the guest has taken what came from it.

    Returns at once if the guest hangs up or a connection breaks, and after STALL_LIMIT if the guest
    takes nothing. Raises OSError if a connection breaks.
    """
    guest.setblocking(False)
    proxy.setblocking(False)
    to_guest = to_proxy = memoryview(b"")
    guest_has_ended = both_have_ended = False
    while True:
        poller = select.poll()
        reads_guest = not to_proxy and not guest_has_ended
        poller.register(guest, _events(reads=reads_guest, writes=bool(to_guest)))
        if not (to_guest and both_have_ended):  # poll(2) would report that again and again
            poller.register(proxy, _events(reads=not to_guest, writes=bool(to_proxy)))
        found = dict(poller.poll(STALL_LIMIT * 1000 if to_guest else None))
        at_guest, at_proxy = found.get(guest.fileno(), 0), found.get(proxy.fileno(), 0)
        if not found or (at_guest | at_proxy) & select.POLLERR or at_guest == select.POLLHUP:
            return
        both_have_ended = both_have_ended or bool(at_proxy & select.POLLHUP)
        if at_guest & select.POLLOUT:
            to_guest = to_guest[guest.send(to_guest) :]
        if at_proxy & select.POLLOUT:
            to_proxy = to_proxy[proxy.send(to_proxy) :]
        if at_guest & select.POLLIN:
            to_proxy = memoryview(guest.recv(CHUNK))
            if not to_proxy:
                guest_has_ended = True
                proxy.shutdown(socket.SHUT_WR)
        if at_proxy & (select.POLLIN | select.POLLHUP) and not to_guest:
            to_guest = memoryview(proxy.recv(CHUNK))
            if not to_guest:
                return


def _events(*, reads: bool, writes: bool) -> int:
    return (select.POLLIN if reads else 0) | (select.POLLOUT if writes else 0)


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    finally:
        os._exit(0)
