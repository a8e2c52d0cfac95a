"""QEMU's own guestfwd between the proxy and a guest; a tap device of ours is the guest's card."""

import contextlib
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gitguardfs.host.egress.clients import MAX_CONNECTIONS
from gitguardfs.host.share import qemu
from gitguardfs.host.vm import qemu_command, relay
from gitguardfs.host.vm.state import State
from tests.egress.bypasses import head
from tests.egress.upstream import PUBLIC
from tests.egress.world import LIMIT, SLOW, SLOW_PORT, World
from tests.unit.vm.test_vm_qemu import MACHINE, values

DOWNLOAD, UPLOAD = 2 << 20, 6 << 20
"""Bytes of the kernel's buffers that are enough for a connection; of an upload, QEMU's own take
most of them. docs/vm.md names the second."""
RELAY_MEMORY = 6 << 20
"""Bytes that it says are enough for one relay."""
QEMU = qemu.program(qemu.is_arm(platform.machine()))
TAP = "tap-guest"


class Guestfwd:
    """QEMU without a machine, and this network namespace as its guest."""

    def __init__(self, world: World, process: subprocess.Popen[bytes]) -> None:
        self.world = world
        self.process = process

    @contextlib.contextmanager
    def connection(self) -> Iterator[socket.socket]:
        """A connection of the guest to the proxy's address."""
        with socket.socket() as peer:
            peer.settimeout(LIMIT)
            peer.connect((qemu_command.PROXY_ADDRESS, qemu_command.PROXY_PORT))
            yield peer

    def answer(self) -> bytes:
        """The answer to an allowed request, b"" if there is none."""
        with self.connection() as peer:
            peer.sendall(head("GET http://allowed.test/ok", "Connection: close"))
            with contextlib.suppress(ConnectionResetError):
                return peer.makefile("rb").read()
        return b""

    def relays(self) -> list[int]:
        """The process ids of the relays."""
        found = []
        for pid in filter(str.isdecimal, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if os.fsencode(relay.__file__) in words:
                    found.append(int(pid))
        return found

    def kernel_memory(self) -> int:
        """Bytes that the kernel keeps in the sockets of QEMU, the relays and the proxy."""
        pids = {self.process.pid, self.world.pid, *self.relays()}
        listed = subprocess.run(["ss", "-Htnmp"], capture_output=True, text=True, check=True)
        total = 0
        for entry in re.split(r"\n(?=\S)", listed.stdout):
            memory = re.search(r"skmem:\(r(\d+),rb\d+,t\d+,tb\d+,f(\d+),w(\d+)", entry)
            if pids & {int(pid) for pid in re.findall(r"pid=(\d+)", entry)} and memory:
                total += sum(map(int, memory.groups()))
        return total

    def relay_memory(self) -> int:
        """Bytes that a relay has for itself, the most of all relays."""
        found = [0]
        for pid in self.relays():
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{pid}/smaps_rollup").read_text()
                found.append(sum(map(int, re.findall(r"Private_\w+:\s+(\d+) kB", text))) << 10)
        return max(found)


@pytest.fixture
def guestfwd(world: World) -> Iterator[Guestfwd]:
    if shutil.which(QEMU) is None or not os.path.exists("/dev/net/tun"):
        pytest.skip(f"{QEMU} or /dev/net/tun is missing")
    program = (sys.executable, "-I", "-S", relay.__file__, str(world.directory))
    state = State("/nowhere", str(world.directory))
    (network,) = values(replace(MACHINE, state=state, relay=program), "-netdev")
    command = [QEMU, "-machine", "none", "-nodefaults", "-display", "none", "-netdev", network]
    for netdev in (
        f"tap,id=tap,ifname={TAP},script=no,downscript=no",
        "hubport,id=one,hubid=0,netdev=net", "hubport,id=two,hubid=0,netdev=tap",
    ):  # fmt: skip
        command += ["-netdev", netdev]
    with subprocess.Popen(command) as process:
        try:
            world.wait_until(lambda: TAP in (name for _, name in socket.if_nameindex()))
            address = f"{qemu_command.GUEST_ADDRESS}/24"
            subprocess.run(["ip", "address", "add", address, "dev", TAP], check=True)
            subprocess.run(["ip", "link", "set", TAP, "up"], check=True)
            yield Guestfwd(world, process)
        finally:
            process.kill()


def test_a_guest_that_takes_nothing_costs_the_host_little(guestfwd: Guestfwd) -> None:
    world = guestfwd.world
    world.allow("GET http://allowed.test/*")
    assert guestfwd.answer().endswith(b"\r\n\r\nxx")
    with contextlib.ExitStack() as stack:
        for _ in range(2 * MAX_CONNECTIONS):
            peer = stack.enter_context(guestfwd.connection())
            with contextlib.suppress(OSError):
                peer.sendall(head("GET http://allowed.test/size=900000000"))
        world.wait_until(lambda: "refused a connection" in world.log)
        world.wait_until(lambda: len(guestfwd.relays()) <= relay.MAX_RELAYS)
        assert guestfwd.relay_memory() < RELAY_MEMORY, f"{guestfwd.relay_memory() >> 20} MiB"
        used = guestfwd.kernel_memory()
        assert used < DOWNLOAD * relay.MAX_RELAYS, f"{used >> 20} MiB"
    world.wait_until(lambda: guestfwd.relays() == [])
    assert guestfwd.answer().endswith(b"\r\n\r\nxx")


def test_uploads_that_no_server_takes_cost_the_host_little(guestfwd: Guestfwd) -> None:
    world = guestfwd.world
    world.allow(f"POST http://{SLOW}/*")
    request = head(f"POST http://{SLOW}/up", "Content-Length: 900000000", host=SLOW)
    count = MAX_CONNECTIONS // 4
    with socket.create_server((PUBLIC, SLOW_PORT)), contextlib.ExitStack() as stack:
        for _ in range(count):
            peer = stack.enter_context(guestfwd.connection())
            peer.settimeout(0.1)
            with contextlib.suppress(TimeoutError):
                peer.sendall(request + bytes(64 << 20))
        used = guestfwd.kernel_memory()
    assert used < UPLOAD * count, f"{used >> 20} MiB"
