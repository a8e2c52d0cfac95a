"""A company's proxy: it records what it is asked, and answers as the test says."""

import contextlib
import socket
import threading
from collections.abc import Iterator

from tests.egress.upstream import PRIVATE, _start

PORT = 3128
ESTABLISHED = b"HTTP/1.0 200 Connection established\r\nVia: company\r\n\r\n"
HELD = b""
"""No answer at all; the connection stays open."""


class CompanyProxy:
    """Serves CONNECT on a private address."""

    def __init__(self) -> None:
        self.heads: list[str] = []
        """What each client has asked first."""
        self.refused: set[str] = set()
        """Targets that it will not connect to."""
        self.held: set[str] = set()
        """Targets for which it does not answer; the connection stays open."""
        self.answer = ESTABLISHED
        """Sent to each request. If it is another, the connection is closed after it."""
        self.drip = 0.0
        """Seconds between the bytes of the answer."""
        self.closed = threading.Event()
        self._listener = socket.create_server((PRIVATE, PORT), backlog=64)
        _start(self._accept)

    def close(self) -> None:
        self.closed.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    @property
    def targets(self) -> list[str]:
        """What it was asked to connect to."""
        return [head.split(" ")[1] for head in self.heads]

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            _start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), client:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                part = client.recv(1)
                if not part:
                    return
                head += part
            self.heads.append(head.decode())
            target = self.targets[-1]
            if target in self.refused:
                client.sendall(b"HTTP/1.1 503 no route\r\nContent-Length: 0\r\n\r\n")
                return
            for at in range(len(self.answer) if self.drip else 0):
                client.sendall(self.answer[at : at + 1])
                if self.closed.wait(self.drip):
                    return
            if self.answer == HELD or target in self.held:
                client.recv(1)
            if self.answer != ESTABLISHED:
                client.sendall(self.answer)
                return
            host, _, port = target.rpartition(":")
            with socket.create_connection((host.strip("[]"), int(port)), 20) as server:
                client.sendall(self.answer)
                _start(_copy, server, client)
                _copy(client, server)


def _copy(source: socket.socket, to: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while part := source.recv(65536):
            to.sendall(part)
    with contextlib.suppress(OSError):
        to.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def company_proxy() -> Iterator[CompanyProxy]:
    proxy = CompanyProxy()
    try:
        yield proxy
    finally:
        proxy.close()
