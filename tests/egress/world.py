"""Helpers for tests of the proxy: the proxy as a process, upstream servers, a raw client."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from gitguardfs.host.egress.proxy import ca_certificate
from gitguardfs.host.egress.start import COMMAND, StartedProxy
from tests.egress.upstream import FakeDns, Upstream

LIMIT = 20.0
"""Seconds after which a client gives up."""
SLOW_PORT = 446
SLOW = f"allowed.test:{SLOW_PORT}"
"""Where a test itself serves."""


class Answer(NamedTuple):
    status: int
    """0: closed without an answer."""
    headers: http.client.HTTPMessage
    body: bytes


NOTHING = Answer(0, http.client.HTTPMessage(), b"")


class Client:
    """A client that sends bytes as they are."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.socket: socket.socket = socket.create_connection(("127.0.0.1", world.port), LIMIT)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # it may have hung up already
            self.socket.sendall(data)

    def send_until_blocked(self, data: bytes) -> int:
        """Send until no byte is taken for a second, or any more. Return how many bytes were."""
        sent = 0
        self.socket.settimeout(1)
        with contextlib.suppress(OSError), memoryview(data) as view:
            while sent < len(data):
                sent += self.socket.send(view[sent : sent + 65536])
        self.socket.settimeout(LIMIT)
        return sent

    def answer(self, method: str = "GET") -> Answer:
        response = http.client.HTTPResponse(self.socket, method=method)
        try:
            response.begin()
            return Answer(response.status, response.headers, response.read())
        except (OSError, http.client.HTTPException):
            return NOTHING
        finally:
            response.close()

    def chosen_protocol(self) -> str | None:
        """Return the protocol that TLS has agreed on (ALPN)."""
        assert isinstance(self.socket, ssl.SSLSocket)
        return self.socket.selected_alpn_protocol()

    def anything(self, seconds: float = 1.0) -> bytes:
        """Return the next bytes, or none if nothing comes within ``seconds``."""
        self.socket.settimeout(seconds)
        try:
            return self.socket.recv(65536)
        except OSError:
            return b""
        finally:
            self.socket.settimeout(LIMIT)

    def tunnel(
        self, target: str = "allowed.test:443", sni: str | None = "", alpn: Sequence[str] = ()
    ):
        """CONNECT and, unless ``sni`` is None, start TLS, by default with the target's name."""
        self.send(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        said = b""
        while not said.endswith(b"\r\n\r\n"):
            part = self.socket.recv(1)
            assert part, said
            said += part
        assert said.startswith(b"HTTP/1.1 200 "), said
        if sni is None:
            return self
        context = ssl.create_default_context(cadata=self._world.ca)
        context.check_hostname = False
        if alpn:
            context.set_alpn_protocols(list(alpn))
        name = sni or target.rpartition(":")[0]
        self.socket = context.wrap_socket(self.socket, server_hostname=name)
        return self


def start_proxy(directory: Path, command: Sequence[str] = COMMAND) -> StartedProxy:
    """Start a proxy and wait until it listens."""
    proxy = StartedProxy(directory, command)
    try:
        assert proxy.port
    except BaseException:
        proxy.stop()
        raise
    return proxy


def pid_of(directory: Path) -> int:
    """The process id of the running proxy."""
    return int(json.loads((directory / "proxy.json").read_text())["pid"])


class World:
    """A running proxy whose allowlist the test writes."""

    def __init__(
        self, directory: Path, upstream: Upstream, dns: FakeDns, command: Sequence[str] = ()
    ) -> None:
        self.directory = directory
        self.upstream = upstream
        self.dns = dns
        directory.mkdir(mode=0o700)
        shutil.copy(upstream.ca["ca"], directory / "upstream-ca.pem")
        self.allow()
        self.proxy = start_proxy(directory, command or COMMAND)
        self.port = self.proxy.port
        self.ca = ca_certificate(directory)

    def allow(self, *lines: str) -> None:
        """Make these the lines of the allowlist, and forget what upstream has seen so far."""
        path = self.directory / "allowlist.txt"
        path.unlink(missing_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines))
        self.forget()

    def forget(self) -> None:
        self.upstream.connections.clear()
        self.dns.asked.clear()
        with contextlib.suppress(FileNotFoundError):
            (self.directory / "blocked.jsonl").unlink()

    def client(self) -> Client:
        return Client(self)

    def get(self, url: str, method: str = "GET", headers: str = "", body: bytes = b"") -> Answer:
        """One request on a connection of its own, as a client sends it."""
        scheme, _, rest = url.partition("://")
        where, _, path = rest.partition("/")
        length = f"Content-Length: {len(body)}\r\n" if body else ""
        head = f" HTTP/1.1\r\nHost: {where}\r\n{length}{headers}\r\n".encode()
        with self.client() as client:
            if scheme == "https":
                client.tunnel(where if ":" in where else f"{where}:443")
                client.send(f"{method} /{path}".encode() + head + body)
            else:
                client.send(f"{method} {url}".encode() + head + body)
            return client.answer(method)

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition holds, such as a request that reaches a server."""
        deadline = time.monotonic() + LIMIT
        while not holds():
            assert time.monotonic() < deadline, "it does not come"
            time.sleep(0.005)

    @property
    def blocked(self) -> list[dict[str, str]]:
        path = self.directory / "blocked.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def log(self) -> str:
        return (self.directory / "mitmdump.log").read_text()

    @property
    def pid(self) -> int:
        """The proxy's process id."""
        return pid_of(self.directory)

    def open_sockets(self) -> int:
        """The number of sockets that the proxy has open."""
        links = Path(f"/proc/{self.pid}/fd").iterdir()
        return sum(path.is_socket() for path in links)

    def peak_memory(self) -> int:
        """Bytes that were resident at most so far."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        (peak,) = [line for line in lines if line.startswith("VmHWM:")]
        return int(peak.split()[1]) * 1024


@contextlib.contextmanager
def running(
    directory: Path, upstream: Upstream, dns: FakeDns, command: Sequence[str] = ()
) -> Iterator[World]:
    world = World(directory, upstream, dns, command)
    try:
        yield world
    finally:
        world.proxy.stop()
