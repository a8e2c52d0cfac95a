"""The guest of ``vm up`` as programs see it, without a machine: its files, and its network.

A network namespace has one address to connect to, the proxy's. A mount namespace has the files that
the guest gets, over those of this machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from gitguardfs.constants import SYSTEM_PATH
from gitguardfs.vm import guest_files, provision, qemu_command
from gitguardfs.vm.settings import Settings
from tests.egress.world import World

PATIENCE = 120.0
"""Seconds for one command; the longest takes three on an idle machine."""
_NEW_NETWORK = 0x40000000


class Guest:
    """Runs programs of this machine as the guest would."""

    def __init__(self, world: World, directory: Path) -> None:
        self._world = world
        self._etc = directory / "etc"
        self.home = directory / "home"
        self.home.mkdir()
        shutil.copytree("/etc", self._etc, symlinks=True)
        for file in provision.guest_files(Settings("/srv/p"), world.ca):
            if file.path.startswith("/etc/"):
                self._write(file)
        bundle = self._etc / guest_files.BUNDLE.removeprefix("/etc/")
        bundle.write_text(bundle.read_text() + world.ca)  # as provisioning does
        for name in ("resolv.conf", "hosts"):
            (self._etc / name).unlink(missing_ok=True)
            (self._etc / name).write_text("127.0.0.1 localhost\n" if name == "hosts" else "")
        lines = (self._etc / "environment").read_text().splitlines()
        self.environment = dict(line.replace('"', "").split("=", 1) for line in lines)
        self.environment["HOME"] = str(self.home)
        self._listen()

    def _write(self, file: guest_files.GuestFile) -> None:
        path = self._etc / file.path.removeprefix("/etc/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        content = file.content
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        path.chmod(file.mode)

    def _listen(self) -> None:
        """Make the guest's network, and the proxy's address in it."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open("/proc/thread-self/ns/net") as before:
            assert libc.unshare(_NEW_NETWORK) == 0
            try:
                for command in (
                    "link set lo up", f"address add {qemu_command.PROXY_ADDRESS}/32 dev lo"
                ):  # fmt: skip
                    subprocess.run(["ip", *command.split()], check=True)
                self._network = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
                address = (qemu_command.PROXY_ADDRESS, qemu_command.PROXY_PORT)
                self._listener = socket.create_server(address, backlog=64)
            finally:
                assert libc.setns(before.fileno(), _NEW_NETWORK) == 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        os.close(self._network)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                arguments = (client, self._world.port)
                threading.Thread(target=_relay, args=arguments, daemon=True).start()

    def run(self, command: Sequence[str | Path], directory: Path, **more: str) -> str:
        """Run a command and return what it prints; ``more`` are variables with addresses."""
        script = f"mount --bind {shlex.quote(str(self._etc))} /etc && cd -- "
        script += f'{shlex.quote(str(directory))} && exec "$@"'
        network = f"--net=/proc/{os.getpid()}/fd/{self._network}"
        path = f"{Path(command[0]).parent}:{SYSTEM_PATH}"
        done = subprocess.run(
            ["nsenter", network, "unshare", "--mount", "sh", "-ec", script, "sh", *command],
            env={**self.environment, **more, "PATH": path},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stdout}\n{self._world.blocked}"
        return done.stdout


def _relay(client: socket.socket, port: int) -> None:
    with client, socket.create_connection(("127.0.0.1", port)) as proxy:
        other = threading.Thread(target=_copy, args=(proxy, client), daemon=True)
        other.start()
        _copy(client, proxy)
        other.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while part := source.recv(65536):
            target.sendall(part)
        target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def running(world: World, directory: Path) -> Iterator[Guest]:
    guest = Guest(world, directory)
    try:
        yield guest
    finally:
        guest.close()
