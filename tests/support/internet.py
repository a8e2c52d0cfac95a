"""A stand-in for the internet: a server with a certificate for many hosts, behind a proxy.

The proxy notes the hosts that it is asked for and refuses those that are not allowed.
"""

import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

Answer = bytes | Callable[[BaseHTTPRequestHandler], None]


@dataclass
class Internet:
    """What is served, by URL without the scheme, and what was asked for."""

    certificate: Path
    proxy: str = ""
    pages: dict[str, Answer] = field(default_factory=dict)
    allowed: set[str] = field(default_factory=set)
    """Hosts that the proxy lets through."""
    hosts: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)


def redirect(target: str) -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(302)
        request.send_header("Location", target)
        request.send_header("Content-Length", "0")
        request.end_headers()

    return answer


def _begin(request: BaseHTTPRequestHandler, body: bytes, at: int) -> None:
    """Promise the whole body and send some of it."""
    request.send_response(200)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body[:at])
    request.wfile.flush()


def cut(body: bytes, at: int) -> Answer:
    """Promise the whole body and end the connection after some of it."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        _begin(request, body, at)
        request.close_connection = True

    return answer


def stalled(body: bytes, at: int, arrived: threading.Event, go_on: threading.Event) -> Answer:
    """Stop after some of the body: set ``arrived`` and wait for ``go_on``."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        _begin(request, body, at)
        arrived.set()
        go_on.wait(60)
        with suppress(OSError):
            request.wfile.write(body[at:])

    return answer


@contextmanager
def internet(place: Path, hosts: list[str]) -> Iterator[Internet]:
    """Serve ``hosts`` by HTTPS, through a proxy; the certificate is in ``place``."""
    certificate, key = place / "ca.pem", place / "key.pem"
    names = ",".join(f"DNS:{host}" for host in hosts)
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "2", "-subj", "/CN=tests", "-addext", f"subjectAltName={names}",
         "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    net = Internet(certificate, allowed=set(hosts))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with ExitStack() as stack:
        server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), _pages(net)))
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
        proxy = stack.enter_context(
            ThreadingHTTPServer(("127.0.0.1", 0), _tunnels(net, server.server_port))
        )
        for each in (server, proxy):
            each.daemon_threads = True
            threading.Thread(target=each.serve_forever, args=(0.02,), daemon=True).start()
            stack.callback(each.shutdown)
        net.proxy = f"http://127.0.0.1:{proxy.server_port}"
        yield net


def _pages(net: Internet) -> type[BaseHTTPRequestHandler]:
    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _answer(net, self, self.headers["Host"] + self.path)

        def log_message(self, *_: object) -> None:
            pass

    return Pages


def _answer(net: Internet, request: BaseHTTPRequestHandler, url: str) -> None:
    net.fetched.append(url)
    answer = net.pages.get(url)
    if callable(answer):
        answer(request)
        return
    request.send_response(404 if answer is None else 200)
    request.send_header("Content-Length", str(len(answer or b"")))
    request.end_headers()
    request.wfile.write(answer or b"")


def _tunnels(net: Internet, port: int) -> type[BaseHTTPRequestHandler]:
    class Tunnels(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Answer a request without a tunnel, by plain HTTP."""
            _answer(net, self, f"http:{self.path}")

        def do_CONNECT(self) -> None:
            host, _, asked = self.path.partition(":")
            net.hosts.append(host)
            if host not in net.allowed or asked != "443":
                self.send_error(418)
                return
            self.send_response(200)
            self.end_headers()
            with socket.create_connection(("127.0.0.1", port)) as inner, suppress(OSError):
                back = threading.Thread(target=_copy, args=(inner, self.connection), daemon=True)
                back.start()
                _copy(self.connection, inner)
                back.join()
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    return Tunnels


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
