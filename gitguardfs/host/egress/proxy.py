"""The allowlist proxy as a process: ``python -m gitguardfs.host.egress.proxy STATE_DIR``.

It runs mitmproxy's master with only the addons that proxying needs, so that it serves nothing but
HTTP/1 over TCP. SIGTERM ends it at once, whatever it is doing: there is nothing to save.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import logging.handlers
import os
import resource
import shutil
import signal
import socket
import ssl
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gitguardfs.base.errors import Exit, GitguardExit, UserError, shown
from gitguardfs.host.egress import blocked, connecting, upstream_proxy
from gitguardfs.host.egress.clients import limit_server
from gitguardfs.host.egress.files import StateFiles, create_files
from gitguardfs.host.egress.resolved import RESOLVED, ResolvedHost
from gitguardfs.host.egress.start import LISTENING
from gitguardfs.host.egress.upstream_proxy import UpstreamProxy
from gitguardfs.options.config_files import make_private_directory

if TYPE_CHECKING:
    from mitmproxy.addons.proxyserver import Proxyserver
    from mitmproxy.master import Master

HOST = "127.0.0.1"
MAX_DATA = 1 << 30
"""Bytes of memory (RLIMIT_DATA): mitmproxy does not limit the header of a response."""
MAX_MESSAGE = 1 << 16
"""Characters of a message that are logged. mitmproxy logs a line that is no HTTP whole; a
traceback is shorter than this."""
EXTRA_HINT = "in a checkout of gitguardfs: pipx install --force --system-site-packages '.[vm]'"

OPTIONS: dict[str, Any] = {
    "listen_host": HOST,
    "listen_port": 0,  # any free one
    "mode": ["regular"],
    "connection_strategy": "lazy",  # else it asks DNS and connects before a request is decided on
    "http2": False,  # else a body without a length reaches an HTTP/1 server as a second request
    "http3": False,
    "rawtcp": False,
    "websocket": False,  # else frames are read and kept
    "ssl_insecure": False,
    "upstream_cert": False,
    "validate_inbound_headers": True,
}


def ca_certificate(state_dir: Path) -> str:
    """Return the certificate of the proxy's authority as PEM; make the authority if there is none.

    Certificate and key are made in a directory that is renamed when it is complete. Raises
    UserError if mitmproxy is missing or the files are damaged; OSError.
    """
    certs = _mitmproxy().certs
    files = StateFiles(state_dir)
    make_private_directory(state_dir)
    if not files.ca_directory.exists():
        new = Path(tempfile.mkdtemp(prefix=".mitmproxy-", dir=state_dir))
        certs.CertStore.create_store(new, "mitmproxy", 2048, "gitguardfs", "gitguardfs sandbox")
        with suppress(OSError):  # another process was quicker: its directory counts
            new.rename(files.ca_directory)
    for left in state_dir.glob(".mitmproxy-*"):  # left by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    try:
        os.stat(files.ca_directory / "mitmproxy-ca.pem")  # mitmproxy would make another
        certs.CertStore.from_store(files.ca_directory, "mitmproxy", 2048)
        return files.ca_certificate.read_text()
    except (OSError, ValueError) as error:
        raise UserError(
            f"cannot read the proxy's authority in {files.ca_directory}: {error}",
            "move that directory away: the next gitguard vm up makes another", Exit.SYSTEM,
        ) from None  # fmt: skip


def _mitmproxy() -> Any:
    try:
        import mitmproxy.certs
    except ImportError:
        raise UserError("mitmproxy is not installed", EXTRA_HINT, Exit.SYSTEM) from None
    return mitmproxy


def upstream_trust(files: StateFiles) -> dict[str, str | None]:
    """Return mitmproxy's options that say which authorities are trusted for servers.

    These are the system's (or those of SSL_CERT_FILE and SSL_CERT_DIR, as for OpenSSL), and
    those in upstream-ca.pem of the state directory. Raises UserError, OSError.
    """
    named = os.environ.get("SSL_CERT_FILE")
    if named and not os.path.isfile(named):
        raise UserError(
            f"SSL_CERT_FILE names {named}, which is not a regular file", code=Exit.SYSTEM
        )
    system = ssl.get_default_verify_paths()
    file: str | None = system.cafile
    directory: str | None = system.capath
    if not files.upstream_ca.exists():
        return {_TRUST_FILE: file, _TRUST_DIRECTORY: directory}
    own = files.upstream_ca.read_text()
    try:
        ssl.create_default_context(cadata=own)
    except (ssl.SSLError, ValueError) as error:
        raise UserError(f"{files.upstream_ca} holds no certificate: {error}") from None
    if file is None and directory is None:  # a Mac: the bundle that mitmproxy uses
        import certifi

        file = certifi.where()
    others = Path(file).read_text() if file else ""
    new = files.upstream_trust.with_suffix(".new")
    new.write_text(f"{others}\n{own}")
    new.replace(files.upstream_trust)
    return {_TRUST_FILE: str(files.upstream_trust), _TRUST_DIRECTORY: directory}


_TRUST_FILE = "ssl_verify_upstream_trusted_ca"
_TRUST_DIRECTORY = "ssl_verify_upstream_trusted_confdir"
CONNECT_LIMIT = 10.0
"""Seconds to connect to one address. The system would take two minutes."""


class _ApprovedAddressLoop(asyncio.SelectorEventLoop):
    """Connects only to addresses that ``AllowlistAddon.server_connect`` has approved.

    If the host is reached through the company's proxy, that proxy has the only such addresses.
    """

    own: tuple[str, int] | None = None
    """The address at which this proxy listens."""

    async def create_connection(  # type: ignore[override]  # as asyncio.open_connection() calls it
        self, protocol_factory: Any, host: Any, port: Any, **_: Any
    ) -> Any:
        found = _resolved((host, port))
        if found.through is None:
            sock = await connecting.first(self, found.answers)
        else:
            from gitguardfs.host.egress import tunnel  # it needs h11, which comes with mitmproxy

            sock = await tunnel.connect(self, *found.through, found.answers)
        try:
            return await super().create_connection(protocol_factory, sock=sock)
        except BaseException:
            sock.close()
            raise

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        return _resolved((host, port)).answers

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        found = _resolved(None)
        approved = found.through[1] if found.through else found.answers
        if address[:2] not in [answer[4][:2] for answer in approved]:
            raise OSError(f"{address[0]}: no connection to it was approved")
        limit_server(sock)
        try:
            async with asyncio.timeout(CONNECT_LIMIT):
                await super().sock_connect(sock, address)
        except TimeoutError:
            raise OSError(f"no connection within {CONNECT_LIMIT:g} seconds") from None
        if sock.getpeername()[:2] == self.own:
            raise OSError("it is the allowlist proxy itself: requests would go in a circle")


def _resolved(address: tuple[str, int] | None) -> ResolvedHost:
    """Return the addresses approved for the connection that is being opened.

    Raises OSError if no connection was approved, or none to ``address``.
    """
    found = RESOLVED.get()
    if found is None or address not in (None, found.address):
        raise OSError("no connection was approved")
    return found


def run(state_dir: Path, *, is_output_to_log: bool = False) -> None:
    """Serve on a free port of 127.0.0.1 until a signal ends it.

    Once it listens, it writes proxy.json and prints a line. With ``is_output_to_log`` its standard
    output goes to the log after that. Raises UserError if it cannot listen or cannot use a file;
    OSError.
    """
    files = StateFiles(state_dir)
    os.umask(0o077)  # also for logs that are rotated
    create_files(state_dir)
    ca_certificate(state_dir)
    options = {**OPTIONS, **upstream_trust(files), "confdir": str(files.ca_directory)}
    upstream = upstream_proxy.with_password(upstream_proxy.chosen(files))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    _limit_memory()
    handler = _start_log(files)
    try:
        with asyncio.Runner(loop_factory=_ApprovedAddressLoop) as runner:
            runner.run(_serve(files, options, upstream, is_output_to_log))
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()


async def _serve(
    files: StateFiles,
    options: dict[str, Any],
    upstream: UpstreamProxy | None,
    is_output_to_log: bool,
) -> None:
    from mitmproxy.addons.next_layer import NextLayer
    from mitmproxy.addons.proxyserver import Proxyserver
    from mitmproxy.addons.tlsconfig import TlsConfig
    from mitmproxy.master import Master
    from mitmproxy.options import Options

    from gitguardfs.host.egress import closing, http1, websocket
    from gitguardfs.host.egress.addon import AllowlistAddon

    http1.install()
    websocket.install()
    master = Master(Options())
    server = Proxyserver()
    allowlist = AllowlistAddon(files, server.connections, upstream)
    closing.close_on_hook_error(master, allowlist.close)
    announcer = _Announcer(files, master, server, upstream.text if upstream else "")
    # Ours first: the other addons may still stop a request that it allows.
    master.addons.add(allowlist, server, NextLayer(), TlsConfig(), announcer)
    if "store_streamed_bodies" in master.options:  # since mitmproxy 12
        options["store_streamed_bodies"] = False
    master.options.update(**options)
    announcer.is_output_to_log = is_output_to_log
    await master.run()
    if announcer.failure is not None:
        raise announcer.failure


class _Announcer:
    """An addon that announces the port once the proxy listens, or keeps the error."""

    def __init__(
        self, files: StateFiles, master: Master, server: Proxyserver, through: str
    ) -> None:
        self.failure: UserError | None = None
        self.is_output_to_log = False
        self._files = files
        self._master = master
        self._server = server
        self._through = through

    def running(self) -> None:
        """Write proxy.json and print the port; end the proxy if it does not listen."""
        try:
            self._announce()
        except (ValueError, OSError) as error:  # it has no address, or proxy.json is not written
            (instance,) = self._server.servers
            why = instance.last_exception or error
            self.failure = UserError(f"the proxy cannot listen on {HOST}: {why}", code=Exit.SYSTEM)
            self._master.shutdown()

    def _announce(self) -> None:
        ((host, port, *_),) = self._server.listen_addrs()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, _ApprovedAddressLoop)
        loop.own = (host, port)
        if self._through:
            logging.info("requests go %s", self._through)
        _write_record(self._files.proxy, port, self._through)
        with suppress(OSError):  # nobody may be reading
            print(f"{LISTENING}{host}:{port}", flush=True)
        if self.is_output_to_log:  # nobody reads standard output from now on
            with open(self._files.log, "ab") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)


def _write_record(path: Path, port: int, through: str) -> None:
    """Write proxy.json atomically, and keep it locked until this process ends.

    The lock tells others that the port in it is still the proxy's. Raises OSError.
    """
    new = path.with_suffix(".new")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(fd, 0)
        record = {"pid": os.getpid(), "port": port, "through": through}
        os.write(fd, json.dumps(record).encode() + b"\n")
        new.replace(path)
    except OSError:
        os.close(fd)
        raise


def _limit_memory() -> None:
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    limit = MAX_DATA if hard == resource.RLIM_INFINITY else min(MAX_DATA, hard)
    with suppress(OSError, ValueError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def _start_log(files: StateFiles) -> logging.Handler:
    """Log to mitmdump.log, in two parts of bounded size, with unprintable characters escaped."""

    class Printable(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            text = super().format(record)
            cut = "..." if len(text) > MAX_MESSAGE else ""
            return shown(text[:MAX_MESSAGE] + cut, keep="\n")

    handler = logging.handlers.RotatingFileHandler(
        files.log, maxBytes=blocked.MAX_BYTES, backupCount=1, errors="backslashreplace"
    )
    handler.setFormatter(Printable("%(asctime)s %(levelname)s %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    return handler


def main() -> int:
    """Run the proxy of the state directory that is the argument. Returns the exit code."""
    try:
        run(Path(sys.argv[1]), is_output_to_log=True)
    except UserError as error:
        print(shown(str(error)), file=sys.stderr)
        return GitguardExit.FAILED
    except OSError as error:
        print(shown(f"{error.filename or 'the proxy'}: {error.strerror}"), file=sys.stderr)
        return GitguardExit.FAILED
    return GitguardExit.OK


if __name__ == "__main__":
    sys.exit(main())
