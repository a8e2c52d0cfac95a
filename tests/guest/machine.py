"""One virtual machine: QEMU and its file servers, from their start to their end."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from gitguardfs.base.constants import CHANGES_PORT
from gitguardfs.guest.run import MODULES
from tests.guest import emulator
from tests.guest import image as images
from tests.guest.channel import Channel, Done, GuestGone
from tests.guest.inside.agent import PORT
from tests.support.mounting import until

BOOT_LIMIT = 240.0
"""Seconds until a boot is taken to hang; one takes 10 to 20 here, on a busy machine twice that."""
DOWN_LIMIT = 120.0
BOOT_ATTEMPTS = 2
"""Under emulation a kernel panics now and then for no fault of anything under test."""

_TROUBLE = re.compile(r"Kernel panic|Attempted to kill init|emergency mode")
_WITH_US = ("setpriv", "--pdeathsig", "KILL")
"""Ends QEMU and the servers when the run is killed."""
_VIRTIOFSD = ("/usr/libexec/virtiofsd", "/usr/lib/qemu/virtiofsd")


@dataclass(frozen=True)
class Share:
    """A directory of the host, as the guest is offered it."""

    tag: str
    path: Path
    transport: Literal["9p", "virtiofs"] = "9p"
    read_only: bool = False


@dataclass
class Machine:
    """A guest; its disk is kept when it is stopped and started again."""

    image: images.Image
    work: Path
    shares: list[Share]
    memory_mib: int = 1024
    cpus: int = 1
    """More than one costs time where other guests run beside: a processor that waits for a lock
    spins while the one that holds it is not being emulated."""
    boots: list[tuple[str, float]] = field(default_factory=list)
    """The boots with their seconds, for the report."""
    _qemu: subprocess.Popen[bytes] | None = None
    _servers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _channel: Channel | None = None

    def __post_init__(self) -> None:
        images.overlay(self.image, self.work / "disk.qcow2")

    @property
    def console(self) -> Path:
        return self.work / "console.log"

    @property
    def changes(self) -> Path:
        """The socket at which the host tells of its changes."""
        return self.work / "changes.sock"

    # ------------------------------------------------------------------------- life

    def start(self, what: str = "boot") -> None:
        """Boot; a panicked or hung boot is tried once more. Raises GuestGone."""
        for attempt in range(1, BOOT_ATTEMPTS + 1):
            started = time.monotonic()
            self._launch()
            if self._is_up(None):
                # The agent answers while udev still loads modules: a mount would miss its tag.
                self.sh(["modprobe", "--all", *MODULES])
                self.boots.append((what, time.monotonic() - started))
                return
            self.kill()
            shutil.copy(self.console, self.work / f"console-failed-{attempt}.log")
        raise GuestGone(f"{what}: no boot came up; the console ends with\n{self.tail()}")

    def reboot(self, what: str = "reboot") -> None:
        """Reboot from within; if the new boot fails, a fresh start of QEMU stands in for it.

        Raises GuestGone if the guest does not go down.
        """
        assert self._channel is not None
        started = time.monotonic()
        said = self.console.stat().st_size
        before = self._channel.boot_id
        self._channel.start(["systemctl", "reboot"])
        if self._is_up(before):
            self.boots.append((what, time.monotonic() - started))
            return
        if b"reboot: Restarting system" not in self.console.read_bytes()[said:]:
            raise GuestGone(f"the guest does not go down:\n{self.tail()}")
        shutil.copy(self.console, self.work / "console-failed-reboot.log")
        self.kill()
        self.start(f"{what}, second attempt")

    def stop(self) -> None:
        """Shut down in an orderly way. Raises GuestGone if that does not end, or not well."""
        assert self._channel is not None and self._qemu is not None
        self._channel.start(["systemctl", "poweroff"])
        try:
            status = self._qemu.wait(DOWN_LIMIT)
        except subprocess.TimeoutExpired:
            raise GuestGone(f"the guest does not go down:\n{self.tail()}") from None
        finally:
            self.kill()
        if status != 0 or b"reboot: Power down" not in self.console.read_bytes():
            raise GuestGone(f"QEMU ended with status {status}:\n{self.tail()}")

    def kill(self) -> None:
        """Kill everything that was started, whatever its state."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        started = [*([self._qemu] if self._qemu else []), *self._servers]
        for process in started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
        self._qemu = None
        self._servers.clear()

    # ------------------------------------------------------------------------- use

    def run(self, command: Any, **how: Any) -> Done:
        """Run a command in the guest: a shell line or a list of words. See Channel.start."""
        assert self._channel is not None, "the guest is not running"
        return self._channel.run(command, **how)

    def sh(self, command: Any, **how: Any) -> str:
        """Output of a command that has to succeed, without the newline at its end."""
        return self.run(command, **how).ok().stdout.rstrip("\n")

    @property
    def channel(self) -> Channel:
        assert self._channel is not None, "the guest is not running"
        return self._channel

    def tail(self, lines: int = 40) -> str:
        """The end of what the guest wrote to its console."""
        text = self.console.read_text(errors="replace") if self.console.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    # ------------------------------------------------------------------------- parts

    def _launch(self) -> None:
        for socket in self.work.glob("*.sock"):
            socket.unlink()
        for share in self.shares:
            if share.transport == "virtiofs":
                self._serve(share)
        with open(self.work / "qemu.log", "ab") as log:
            self._qemu = subprocess.Popen(
                [*_WITH_US, *self.command()], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        agent = self.work / "agent.sock"
        until(lambda: agent.exists() or self._ended(), "QEMU listens for the agent")
        if self._ended():
            raise GuestGone(f"QEMU: {(self.work / 'qemu.log').read_text()[-2000:]}")
        self._channel = Channel(agent)

    def _ended(self) -> bool:
        return self._qemu is None or self._qemu.poll() is not None

    def _serve(self, share: Share) -> None:
        program = next(path for path in _VIRTIOFSD if os.path.exists(path))
        socket = self.work / f"{share.tag}.sock"
        options = (
            ["-o", f"source={share.path}", "-o", "cache=auto", "-o", "sandbox=chroot",
             "--rlimit-nofile=10000"]
            if "qemu" in program
            else [f"--shared-dir={share.path}", "--cache=auto", "--sandbox=chroot"]
        )  # fmt: skip
        with open(self.work / f"virtiofsd-{share.tag}.log", "ab") as log:
            self._servers.append(
                subprocess.Popen(
                    [*_WITH_US, program, f"--socket-path={socket}", *options],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                )
            )  # fmt: skip
        until(socket.exists, f"virtiofsd listens for {share.tag}")

    def command(self) -> list[str]:
        """QEMU's command line. Emulated, since hardware virtualisation is rare where CI runs."""
        found = [
            str(emulator.directory() / emulator.NAME), "-accel", "tcg,thread=multi",
            # A plain processor: emulating the newest costs a fifth more, most of it in the kernel,
            # for five-level page tables, protection keys and copies by single bytes (erms).
            "-cpu", "qemu64,+rdrand", "-smp", str(self.cpus), "-m", str(self.memory_mib),
            "-object", f"memory-backend-memfd,id=memory,size={self.memory_mib}M,share=on",
            "-machine", "q35,memory-backend=memory", "-nodefaults", "-display", "none",
            "-serial", f"file:{self.console}", "-nic", "none",
            "-kernel", str(self.image.kernel), "-initrd", str(self.image.initrd),
            "-append", f"console=ttyS0 {self.image.recipe.cmdline}",
            "-drive", f"file={self.work}/disk.qcow2,if=virtio,format=qcow2,cache=unsafe",
            "-device", "virtio-rng-pci",
            "-chardev", f"socket,id=agent,path={self.work}/agent.sock,server=on,wait=off",
            "-device", "virtio-serial-pci",
            "-device", f"virtserialport,chardev=agent,name={PORT}",
            "-chardev", f"socket,id=changes,path={self.changes},server=on,wait=off",
            "-device", f"virtserialport,chardev=changes,name={CHANGES_PORT}",
        ]  # fmt: skip
        for number, share in enumerate(self.shares):
            if share.transport == "virtiofs":
                found += [
                    "-chardev", f"socket,id=c{number},path={self.work}/{share.tag}.sock",
                    "-device",
                    f"vhost-user-fs-pci,queue-size=1024,chardev=c{number},tag={share.tag}",
                ]  # fmt: skip
            else:
                # As root, "none" keeps every owner as the guest gives it.
                readonly = ",readonly=on" if share.read_only else ""
                found += [
                    "-virtfs",
                    f"local,id=s{number},path={share.path},mount_tag={share.tag},"
                    f"security_model=none,multidevs=remap{readonly}",
                ]
        return found

    def _is_up(self, other_than: str | None) -> bool:
        assert self._channel is not None
        deadline = time.monotonic() + BOOT_LIMIT
        begin = self.console.stat().st_size if self.console.exists() and other_than else 0
        while time.monotonic() < deadline and not self._ended():
            if self._channel.await_boot(other_than, 0.5):
                return True
            if self.console.exists():
                with open(self.console, errors="replace") as console:
                    console.seek(begin)
                    if _TROUBLE.search(console.read()):
                        return False
        return False
