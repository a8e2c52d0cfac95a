"""The guest of ``vm up`` as programs see it, without a machine: its files, and its network.

A network namespace has one address to connect to, the proxy's. A mount namespace has the files that
the guest gets, over those of this machine.
"""

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

from gitguardfs.base.constants import SYSTEM_PATH
from gitguardfs.host.vm import guest_files, provision, qemu_command
from gitguardfs.host.vm.guest_files import GuestFile
from gitguardfs.host.vm.settings import Settings
from tests.egress.world import World

PATIENCE = 120.0
"""Seconds for one command; the longest takes three on an idle machine."""
_NEW_NETWORK = 0x40000000


class Guest:
    """Runs programs of this machine as the guest would."""

    def __init__(self, world: World, directory: Path) -> None:
        self._world = world
        self._etc = directory.resolve() / "etc"
        shutil.copytree("/etc", self._etc, symlinks=True)
        for file in provision.guest_files(Settings("/srv/p"), world.ca):
            if file.path.startswith("/etc/"):
                self._write(file)
        bundle = Path(guest_files.BUNDLE)
        trusted = bundle.read_text() if bundle.exists() else ""
        for path, text in (
            (guest_files.BUNDLE, trusted + world.ca),  # as provisioning does
            ("/etc/resolv.conf", ""), ("/etc/hosts", "127.0.0.1 localhost\n"),
        ):  # fmt: skip
            self._write(GuestFile(path, text))
        lines = (self._etc / "environment").read_text().splitlines()
        self.environment = dict(line.replace('"', "").split("=", 1) for line in lines)
        self._listen()

    def _write(self, file: GuestFile) -> None:
        path = self._etc / file.path.removeprefix("/etc/")
        path.parent.mkdir(parents=True, exist_ok=True)
        assert path.parent.resolve().is_relative_to(self._etc), "a link leads out of the copy"
        path.unlink(missing_ok=True)
        path.write_bytes(file.data)
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
        """Run a command and return what it prints; ``more`` are variables with addresses.

        Its home directory is in the directory.
        """
        script = f"mount --bind {shlex.quote(str(self._etc))} /etc && cd -- "
        script += f'{shlex.quote(str(directory))} && exec "$@"'
        network = f"--net=/proc/{os.getpid()}/fd/{self._network}"
        home = directory / "home"
        home.mkdir(exist_ok=True)
        path = f"{Path(command[0]).parent}:{SYSTEM_PATH}"
        done = subprocess.run(
            ["nsenter", network, "unshare", "--mount", "sh", "-ec", script, "sh", *command],
            env={**self.environment, **more, "PATH": path, "HOME": str(home)},
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
