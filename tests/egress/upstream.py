"""Servers that the proxy talks to in tests, and that record every byte they are sent."""

import contextlib
import datetime
import ipaddress
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Message, Ping, Request

PUBLIC = "11.22.33.44"
OTHER = "11.22.33.55"
PRIVATE = "10.1.2.3"
LINK_LOCAL = "169.254.169.254"
OWN, NEIGHBOUR = "22.33.44.5", "22.33.44.9"
"""Public addresses: of an interface of this machine, and of another machine in its network."""
OWN_6, NEIGHBOUR_6 = "2a00:1:2:3::5", "2a00:1:2:3::9"
NAMES = {
    "allowed.test": [PUBLIC],
    "other.test": [OTHER],
    "private.test": [PRIVATE],
    "loop.test": ["127.0.0.1"],
    "metadata.test": [LINK_LOCAL],
    "mixed.test": ["127.0.0.1", PRIVATE, PUBLIC],
    "xn--bcher-kva.test": [PUBLIC],
    "registry.npmjs.org": [PUBLIC],
    "upload.pypi.org": [PUBLIC],
    "proxy.test": [PRIVATE],
    "proxies.test": [OTHER, PRIVATE],
    "double.test": [OTHER, PUBLIC],
    "own.test": [OWN],
    "neighbour.test": [NEIGHBOUR],
    "github.com": [PUBLIC],
    "codeberg.org": [PUBLIC],
    "git.other.test": [PUBLIC],
}
UNTRUSTED_PORT = 444
SILENT_PORT = 445
"""Closes without an answer."""
BIG = 1 << 20
WEBSOCKET_KEY, WEBSOCKET_ACCEPT = "AAAAAAAAAAAAAAAAAAAAAA==", b"ICX+Yqv66kxgM0FcWaLWlFLwTAI="
"""A client's key, and the answer by which a server accepts its WebSocket."""


@dataclass
class Connection:
    """A connection, and the bytes that its client has sent."""

    address: tuple[str, int]  # and more, of IPv6
    """The server's address, as the client reached it."""
    sni: str | None = None
    alpn: str | None = None
    data: bytearray = field(default_factory=bytearray)


class Upstream:
    """HTTP on ports 80 and 8080, HTTPS on 443 and 8443, of every IPv4 address; HTTP on ::1."""

    def __init__(self, directory: Path) -> None:
        self.connections: list[Connection] = []
        self.files: dict[str, bytes] = {}
        """What is served, by path and query; other requests get an answer of two bytes."""
        self.ca = make_authority(directory / "ca")
        good = _context(self.ca, self)
        bad = _context(make_authority(directory / "bad"), self)
        contexts = {80: None, 8080: None, 443: good, 8443: good, UNTRUSTED_PORT: bad}
        self._listeners = []
        for port, context in (contexts | {SILENT_PORT: None}).items():
            listener = socket.create_server(("0.0.0.0", port), backlog=64)
            self._listeners.append(listener)
            _start(self._accept, listener, context)
        sixth = socket.create_server(("::1", 80), family=socket.AF_INET6)
        self._listeners.append(sixth)
        _start(self._accept, sixth, None)

    def close(self) -> None:
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    @property
    def raw(self) -> bytes:
        """All bytes that were sent, of all connections."""
        return b"".join(bytes(connection.data) for connection in self.connections)

    @property
    def requests(self) -> list[bytes]:
        """The first lines of what looks like a request, in all that was sent."""
        lines = self.raw.split(b"\r\n")
        return [line for line in lines if line.endswith((b"HTTP/1.1", b"HTTP/1.0"))]

    def _accept(self, listener: socket.socket, context: ssl.SSLContext | None) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            _start(self._serve, client, context)

    def _serve(self, client: socket.socket, context: ssl.SSLContext | None) -> None:
        seen = Connection(client.getsockname())
        self.connections.append(seen)
        with contextlib.suppress(OSError, ValueError), client:
            if seen.address[1] == SILENT_PORT:
                client.recv(65536)
                return
            if context is not None:
                client = context.wrap_socket(client, server_side=True)
                seen.sni = getattr(client, "seen_sni", None)
                seen.alpn = client.selected_alpn_protocol()
            with client:
                _answer(client, seen, self.files)


def _start(function, *arguments) -> None:
    threading.Thread(target=function, args=arguments, daemon=True).start()


def _answer(client: socket.socket, seen: Connection, files: dict[str, bytes]) -> None:
    """Answer requests until the client closes. All that comes is noted before it is read."""
    buffer = bytearray()

    def more() -> bool:
        part = client.recv(65536)
        if len(seen.data) < 4 * BIG:
            seen.data += part
        buffer.extend(part)
        return bool(part)

    while True:
        while b"\r\n\r\n" not in buffer:
            if not more():
                return
        head, _, rest = bytes(buffer).partition(b"\r\n\r\n")
        buffer[:] = rest
        first = head.split(b"\r\n")[0].split(b" ")
        if len(first) != 3:  # no HTTP
            client.sendall(b"?")
            continue
        fields = head.lower()
        if b"\r\ntransfer-encoding: chunked" in fields:
            while b"0\r\n\r\n" not in buffer:
                if not more():
                    return
            buffer.clear()
        elif b"\r\ncontent-length: " in fields:
            length = int(fields.split(b"\r\ncontent-length: ")[1].split(b"\r\n")[0])
            while length > 0:
                length -= len(buffer)
                buffer.clear()
                if length > 0 and not more():
                    return
        target = first[1].decode("latin-1")
        if b"\r\nupgrade: websocket" in fields and "/ws" in target:
            _echo(client, head + b"\r\n\r\n", buffer, more)
            return
        if "/echo" in target:
            _repeat(client, head, target)
            return
        if "/private/" in target:
            _private_git(client, b"\r\nauthorization: " in fields)
            continue
        _respond(client, head.startswith(b"HEAD"), target, files.get(target))
        if target.endswith("/101"):
            while more():
                client.sendall(b"ECHO")


def _echo(client: socket.socket, head: bytes, buffer: bytearray, more: Callable[[], bool]) -> None:
    """Send each message of a WebSocket back, until the client closes it."""
    websocket = WSConnection(ConnectionType.SERVER)
    websocket.receive_data(head)
    while True:
        for event in websocket.events():
            if isinstance(event, Request):
                client.sendall(websocket.send(AcceptConnection()))
            elif isinstance(event, Message):
                client.sendall(websocket.send(event))
            elif isinstance(event, Ping | CloseConnection):
                client.sendall(websocket.send(event.response()))
            if isinstance(event, CloseConnection):
                return
        while not buffer:
            if not more():
                return
        websocket.receive_data(bytes(buffer))
        buffer.clear()


LATER = threading.Event()
"""When a request for /echo/later is answered."""


def _repeat(client: socket.socket, head: bytes, target: str) -> None:
    """Answer with what the client has sent; also as no HTTP that anybody can read."""
    sent = [line for line in head.split(b"\r\n")[1:] if not line.startswith(b"Host:")]
    what = target.partition("/echo")[2].partition("?")[0]
    if what == "/later":
        LATER.wait(20)
    if what == "/cut":
        client.sendall(b"HTTP/1.1 200 OK\r\n" + b"\r\n".join(sent))
    elif what == "/broken":
        client.sendall(b"HTTP/1.1 200 OK\r\n <" + b"|".join(sent) + b"\r\n\r\n")
    elif what == "/field":
        client.sendall(b"HTTP/1.1 200 OK\r\n(" + b"|".join(sent) + b"): x\r\n\r\n")
    elif what in ("/name", "/coding"):
        value = sent[0].partition(b": ")[2]
        field = b"X %b: x" if what == "/name" else b"Transfer-Encoding: %b"
        client.sendall(b"HTTP/1.1 200 OK\r\n" + field % value + b"\r\n\r\n")
    elif what == "/status":
        client.sendall(b"HTTP/1.1 20x " + b"|".join(sent) + b"\r\n\r\n")
    elif what == "/more":
        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        text = b"|".join(sent)
        for part in (text[: len(text) // 2], text[len(text) // 2 :]):
            client.sendall(part)
            time.sleep(0.05)
    else:
        query = target.partition("?")[2].encode()
        again = b"".join(b"X-Sent-%d: %s\r\n" % (n, line) for n, line in enumerate(sent))
        client.sendall(
            b"HTTP/1.1 302 Found, %s\r\nLocation: https://other.test/?%s\r\n%s"
            b"Content-Length: 0\r\n\r\n" % (b"|".join(sent), query, again)
        )


def _private_git(client: socket.socket, has_password: bool) -> None:
    """Answer as a repository with one commit, to those who send a password."""
    if not has_password:
        fields = b'WWW-Authenticate: Basic realm="x"\r\nContent-Length: 0'
        client.sendall(b"HTTP/1.1 401 No\r\n%s\r\n\r\n" % fields)
        return
    lines = (b"# service=git-upload-pack\n", b"", b"%s HEAD\0\n" % (b"1" * 40), b"")
    text = b"".join(b"%04x%s" % (len(line) + 4, line) if line else b"0000" for line in lines)
    kind = b"application/x-git-upload-pack-advertisement"
    fields = b"Content-Type: %s\r\nContent-Length: %d" % (kind, len(text))
    client.sendall(b"HTTP/1.1 200 OK\r\n%s\r\n\r\n%s" % (fields, text))


def _respond(client: socket.socket, is_head: bool, target: str, content: bytes | None) -> None:
    if content is not None:
        kinds = {b"{": b"application/json", b"<": b"text/html"}
        kind = kinds.get(content[:1], b"application/octet-stream")
        fields = b"Content-Type: %s\r\nContent-Length: %d" % (kind, len(content))
        client.sendall(b"HTTP/1.1 200 OK\r\n%s\r\n\r\n" % fields + content * (not is_head))
        return
    if target.endswith("/101"):
        client.sendall(
            b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n"
            b"Sec-WebSocket-Accept: %s\r\n\r\n" % WEBSOCKET_ACCEPT
        )
        return
    if target.endswith("/redirect"):
        text = b"HTTP/1.1 302 Found\r\nLocation: https://other.test/SECRET\r\nContent-Length: 0\r\n"
        client.sendall(text + b"\r\n")
        return
    if target.endswith("/smuggled"):
        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n")
        return
    size = int(target.rpartition("size=")[2]) if "size=" in target else 2
    client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
    block = b"x" * min(size, BIG)
    while size and not is_head:
        client.sendall(block[:size])
        size -= len(block[:size])


def make_authority(base: Path) -> dict[str, Path]:
    """Make an authority and a server's certificate for all names and addresses of the tests."""
    base.mkdir(parents=True)
    key, name = ec.generate_private_key(ec.SECP256R1()), _name("test authority")
    ca = _builder(name, name, key).add_extension(x509.BasicConstraints(True, None), True)
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    authority = ca.add_extension(usage, True).sign(key, hashes.SHA256())
    own = ec.generate_private_key(ec.SECP256R1())
    addresses = (PUBLIC, OTHER, PRIVATE, LINK_LOCAL, "127.0.0.1")
    names = [x509.DNSName(host) for host in NAMES]
    names += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
    leaf = _builder(_name("server"), name, own).add_extension(
        x509.SubjectAlternativeName(names), False
    )
    paths = {"ca": base / "ca.pem", "server": base / "server.pem"}
    pem = serialization.Encoding.PEM
    paths["ca"].write_bytes(authority.public_bytes(pem))
    paths["server"].write_bytes(
        own.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + leaf.sign(key, hashes.SHA256()).public_bytes(pem)
    )
    return paths


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(subject: x509.Name, issuer: x509.Name, key) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
    )


def _context(paths: dict[str, Path], upstream: Upstream) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(paths["server"])
    context.set_alpn_protocols(["h2", "http/1.1"])

    def note(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        connection.seen_sni = name  # type: ignore[attr-defined]

    context.sni_callback = note
    return context


@contextlib.contextmanager
def dead(address: str, port: int) -> Iterator[None]:
    """Take no connection: the queue of those that wait is full."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(socket.create_server((address, port), backlog=0))
        for _ in range(2):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex((address, port))
        yield


class FakeDns:
    """Answers for the names of the tests on UDP port 53, and notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.silent = ""
        """A name whose questions stay unanswered."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 53))
        _start(self._serve)

    def close(self) -> None:
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                query, client = self._socket.recvfrom(4096)
            except OSError:
                return
            name, end = _question(query)
            self.asked.append(name)
            if name == self.silent:
                continue
            kind = struct.unpack("!H", query[end : end + 2])[0]
            answers = NAMES.get(name.lower(), []) if kind == 1 else []
            flags = 0x8180 if name.lower() in NAMES else 0x8183
            head = query[:2] + struct.pack("!HHHHH", flags, 1, len(answers), 0, 0)
            body = b"".join(
                b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 0, 4) + socket.inet_aton(answer)
                for answer in answers
            )
            with contextlib.suppress(OSError):
                self._socket.sendto(head + query[12 : end + 4] + body, client)


def _question(query: bytes) -> tuple[str, int]:
    labels, at = [], 12
    while length := query[at]:
        labels.append(query[at + 1 : at + 1 + length].decode("latin-1"))
        at += length + 1
    return ".".join(labels), at + 1


@contextlib.contextmanager
def own_network(directory: Path) -> Iterator[None]:
    """Give this thread a network of its own, where the addresses of the tests are its own.

    There is no other network in it: what the proxy sends anywhere else goes nowhere. Names are
    asked of 127.0.0.1. Needs root, and a mount namespace of our own.
    """
    import ctypes
    import subprocess

    from tests.support import raw_calls

    libc = ctypes.CDLL(None, use_errno=True)
    new_net = 0x40000000
    with open("/proc/thread-self/ns/net") as before:
        assert libc.unshare(new_net) == 0, "cannot make a network namespace"
        try:
            commands = ["link set lo up"]
            # Routes, not addresses: to the proxy these are machines somewhere else.
            for address in (PUBLIC, OTHER, PRIVATE, LINK_LOCAL):
                commands.append(f"route add local {address}/32 dev lo")
            commands += [f"address add {OWN}/24 dev lo", f"address add {OWN_6}/64 dev lo"]
            for command in commands:
                subprocess.run(["ip", *command.split()], check=True)
            resolv = directory / "resolv.conf"
            resolv.write_text("nameserver 127.0.0.1\noptions timeout:2 attempts:1\n")
            target = Path("/etc/resolv.conf").resolve()
            raw_calls.mount(str(resolv), target, flags=raw_calls.MS_BIND)
            try:
                yield
            finally:
                raw_calls.umount(target, raw_calls.MNT_DETACH)
        finally:
            assert libc.setns(before.fileno(), new_net) == 0
