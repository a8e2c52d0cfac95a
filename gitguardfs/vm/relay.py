"""Copies one connection of the guest to the proxy. QEMU starts this for each connection.

``python -I -S relay.py STATE_DIRECTORY``, with the guest's connection as standard input and output.
The program imports little, so that it starts quickly. Standard error is the guest's connection too,
so nothing is written to it.
"""

import fcntl
import json
import os
import socket
import sys
import threading

ANSWER = (
    b"HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    b"The proxy on the host is not running. Ask your human to run: gitguard vm proxy\n"
)
CHUNK = 65536


def main(directory: str) -> None:
    """Connect to the proxy whose port is in ``directory``/proxy.json, and copy bytes both ways."""
    try:
        proxy = _connected(os.path.join(directory, "proxy.json"))
    except (OSError, ValueError, KeyError, TypeError):
        _write(1, ANSWER)
        return
    back = threading.Thread(target=_carry_back, args=(proxy,), daemon=True)
    back.start()
    try:
        while data := os.read(0, CHUNK):
            proxy.sendall(data)
        proxy.shutdown(socket.SHUT_WR)
    except OSError:
        return
    back.join()


def _connected(path: str) -> socket.socket:
    """Connect to the proxy that has written the file ``path``, and to no other program.

    Raises OSError, ValueError, KeyError, TypeError.
    """
    with open(path) as file:
        proxy = socket.create_connection(("127.0.0.1", int(json.load(file)["port"])))
        # After connecting: a held lock shows that the proxy lives, so that the port is its own. The
        # port of a dead proxy may be another program's, which the guest must not reach.
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return proxy
    proxy.close()
    raise ConnectionRefusedError


def _carry_back(proxy: socket.socket) -> None:
    try:
        while data := proxy.recv(CHUNK):
            _write(1, data)
    except OSError:
        pass
    os._exit(0)  # the proxy has closed, so both directions end


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    finally:
        os._exit(0)
