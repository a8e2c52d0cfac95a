"""A host with a project, a user without root, and a registry; and `gitguard vm` as that user."""

from __future__ import annotations

import os
import pwd
import shlex
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from gitguardfs.host.vm.state import is_held
from tests.guest import emulator
from tests.support.mounting import REPOSITORY, area
from tests.support.repos import HOST_GID, HOST_UID, git, make_project

BOOT_LIMIT = 900.0
"""Seconds after which a `vm up` is taken to hang."""
LIMIT = 300.0


def _own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("203.0.113.1", 9))  # which sends nothing
        return str(sock.getsockname()[0])


ADDRESS = _own_address()
"""The registry's, an address of this machine: a name would have to be resolved, and clients use no
proxy for a loopback address."""
LARGE = 100 << 20
"""Bytes of the large file: more than the proxy may ever need."""

PHASES: list[tuple[str, float]] = []
"""Phases and their seconds, for the summary."""

GITGUARD = (
    f"import sys; sys.path.insert(0, {str(REPOSITORY)!r});"
    " from gitguardfs.commands.gitguard import main; main()"
)
UNRESTRICTED = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
from gitguardfs.host.vm import driver, settings, state
where = state.find(None)
arguments = driver.UpArguments(settings.load(where), words=(sys.argv[1],), restricted=False)
sys.exit(driver.up(where, arguments))
"""
"""`vm up` with the guest's network open: the control run of the probes of isolation."""


class Registry(ThreadingHTTPServer):
    """A package index and a file server over TLS, with an authority of its own."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, place: Path) -> None:
        super().__init__((ADDRESS, 0), _Handler)
        self.files: dict[str, bytes] = {"/small": b"x" * 100_000}
        self.seen: list[str] = []
        """Request lines, as they came in."""
        self.certificate = place / "registry.pem"
        key = place / "registry.key"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3",
             "-subj", "/CN=registry", "-addext", f"subjectAltName=IP:{ADDRESS}",
             "-keyout", str(key), "-out", str(self.certificate)],
            check=True, capture_output=True,
        )  # fmt: skip
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, key)
        self.socket = context.wrap_socket(
            self.socket, server_side=True, do_handshake_on_connect=False
        )

    @property
    def url(self) -> str:
        return f"https://{ADDRESS}:{self.server_port}"

    def add_package(self, place: Path) -> None:
        """Offer a package called `sample`, made of one module."""
        wheel = place / "sample-1-py3-none-any.whl"
        info = "sample-1.dist-info"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("sample.py", "WORDS = 'from the registry'\n")
            archive.writestr(
                f"{info}/METADATA", "Metadata-Version: 2.1\nName: sample\nVersion: 1\n"
            )
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n"
                             "Tag: py3-none-any\n")  # fmt: skip
            archive.writestr(f"{info}/RECORD", "")
        self.files[f"/files/{wheel.name}"] = wheel.read_bytes()
        self.files["/simple/sample/"] = f'<a href="/files/{wheel.name}">{wheel.name}</a>'.encode()


class _Handler(BaseHTTPRequestHandler):
    server: Registry
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.seen.append(self.requestline)
        if self.path == "/large":
            self._send_large()
            return
        data = self.server.files.get(self.path)
        self.send_response(200 if data is not None else 404)
        self.send_header("Content-Type", "text/html" if self.path.endswith("/") else "x/y")
        self.send_header("Content-Length", str(len(data or b"")))
        self.end_headers()
        self.wfile.write(data or b"")

    do_POST = do_GET

    def _send_large(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(LARGE))
        self.end_headers()
        chunk = bytes(1 << 20)
        for _ in range(LARGE // len(chunk)):
            self.wfile.write(chunk)

    def log_message(self, *_: object) -> None:
        pass


@dataclass
class World:
    """One host."""

    place: Path
    project: Path
    image: Path
    registry: Registry
    sessions: list[Session] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        home = self.place / "home"
        return {
            "PATH": emulator.search_path(),
            "HOME": str(home),
            "XDG_RUNTIME_DIR": str(self.place / "run"),
            "XDG_STATE_HOME": str(self.place / "home/s"),  # short: sockets lie there
            "SECRET_OF_THE_HOST": "do-not-take-me-along",
        }

    @property
    def state(self) -> Path:
        """The state directory of the project's VM."""
        (found,) = self.states.glob(f"{self.project.name}-????????")
        return found

    @property
    def states(self) -> Path:
        """The directory of the state directories of all VMs."""
        return self.place / "home/s/gitguardfs/vm"

    @property
    def cache(self) -> Path:
        """The directory of images and ready disks."""
        return self.place / "home/.cache/gitguardfs/images"

    def ready_disks(self) -> list[Path]:
        """Return the directories of complete ready disks."""
        return [path for path in self.cache.glob("ready-*") if path.is_dir()]

    def other(self, name: str) -> World:
        """Return the same host with another project."""
        make_project(self.place / name)
        return replace(self, project=self.place / name)

    def popen(self, words: list[str], **how: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            words, env=self.environment, cwd=self.project, text=True, errors="replace",
            user=HOST_UID, group=HOST_GID, extra_groups=[], start_new_session=True, **how,
        )  # fmt: skip

    def vm(
        self, *words: str, limit: float = LIMIT, typed: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run ``gitguard vm WORDS`` in the project."""
        return self.gitguard("vm", *words, limit=limit, typed=typed)

    def gitguard(
        self, *words: str, limit: float = LIMIT, typed: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run ``gitguard WORDS`` in the project."""
        process = self.popen(
            gitguard(*words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            out, err = process.communicate(typed, timeout=limit)
        finally:
            process.kill()
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def ssh(self, line: str, root: bool = False) -> subprocess.CompletedProcess[str]:
        """Run a line of the shell in the guest."""
        return self.vm("ssh", *(["--root"] if root else []), "--", line)

    def sh(self, line: str, root: bool = False) -> str:
        """Output of a line that has to succeed."""
        done = self.ssh(line, root)
        assert done.returncode == 0, f"{line}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout.rstrip("\n")

    def each(self, *lines: str, root: bool = False) -> list[tuple[int, str]]:
        """Status and output of each line; one session for all, since an emulated one takes long."""
        script = "\n".join(
            f"out=$(bash -c {shlex.quote(line)} 2>&1 </dev/null); printf '%s\\0%s\\0' $? \"$out\""
            for line in lines
        )
        parts = self.sh(script, root).split("\0")[:-1]
        found = [(int(parts[i]), parts[i + 1]) for i in range(0, len(parts), 2)]
        assert len(found) == len(lines), parts
        return found

    def up(self, *options: str, what: str) -> Session:
        """Start the VM, and return when a command runs in it.

        .git is closed, unless the options say something else. The VM ends with the session.
        """
        words = command("up", "--git", "deny", *options, "--", "echo READY; exec cat")
        session = Session(self, words, what)
        self.sessions.append(session)
        session.await_ready()
        return session


def command(*words: str) -> list[str]:
    return gitguard("vm", *words)


def gitguard(*words: str) -> list[str]:
    return [sys.executable, "-I", "-c", GITGUARD, *words]


@dataclass
class Session:
    """A running `vm up`, whose command in the guest waits for the end of its input."""

    world: World
    words: list[str]
    what: str

    def __post_init__(self) -> None:
        self.started = time.monotonic()
        self.log = self.world.place / f"{len(self.world.sessions)}.log"
        with open(self.log, "w") as log:
            self.process = self.world.popen(
                self.words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )

    def await_ready(self) -> None:
        assert self.process.stdout is not None
        timer = threading.Timer(BOOT_LIMIT, self.process.kill)
        timer.start()
        try:
            line = self.process.stdout.readline()
        finally:
            timer.cancel()
        assert line == "READY\n", f"{self.what}: {line}{self.said()}\n{console(self.world)}"
        PHASES.append((f"{self.what}, from vm up to the command", time.monotonic() - self.started))

    def said(self) -> str:
        """Return what it has written to standard error."""
        return self.log.read_text()

    def leave(self) -> int:
        """End the command; return the status of `vm up`."""
        assert self.process.stdin is not None
        started = time.monotonic()
        self.process.stdin.close()
        status = self.process.wait(LIMIT)
        PHASES.append((f"{self.what}, leaving", time.monotonic() - started))
        return status

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(LIMIT)
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


def console(world: World, lines: int = 30) -> str:
    """Return the end of the guest's console."""
    with suppress(ValueError, OSError):
        text = (world.state / "console.log").read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])
    return ""


@contextmanager
def world(image: Path) -> Iterator[World]:
    """Make the host; at the end nothing of it runs."""
    with area() as place, _account(place):
        for name in ("home", "run"):
            (place / name).mkdir(mode=0o700)
            os.chown(place / name, HOST_UID, HOST_GID)
        (place / "home/.netrc").write_text("secret of the host")
        make_project(place / "project")
        with Registry(place) as registry:
            registry.add_package(place)
            thread = threading.Thread(target=registry.serve_forever)
            thread.start()
            made = World(place, place / "project", image, registry)
            try:
                yield made
            finally:
                for session in made.sessions:
                    session.end()
                made.vm("stop")
                registry.shutdown()
                thread.join()


@contextmanager
def _account(place: Path) -> Iterator[None]:
    """Give the host's user an account, without which ssh(1) refuses to start; only here."""
    with suppress(KeyError):
        pwd.getpwuid(HOST_UID)
        yield
        return
    # All of /etc: a mount on the file alone is gone as soon as useradd, outside, replaces the file.
    etc = place / "etc"
    subprocess.run(["cp", "-a", "/etc", etc], check=True)
    with open(etc / "passwd", "a") as file:
        file.write(f"vmhost:x:{HOST_UID}:{HOST_GID}::{place}/home:/bin/sh\n")
    subprocess.run(["mount", "--bind", etc, "/etc"], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "/etc"], check=True)


def is_running(world: World) -> bool:
    """Return whether anything holds the VM's lock."""
    return is_held(str(world.state / "lock"))


def processes_of(world: World) -> dict[int, str]:
    """Return the processes that have the VM's state directory on their command line."""
    found = {}
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            if str(world.state) in line:
                found[int(pid)] = line
    return found


def pid_of_qemu(world: World) -> int:
    """Return the process id of the running QEMU."""
    for pid, line in processes_of(world).items():
        if line.startswith("qemu-system"):
            return pid
    raise AssertionError("there is no QEMU")


def as_git(world: World, *words: str) -> str:
    """Run git on the host in the project."""
    return git(world.project, *words)
