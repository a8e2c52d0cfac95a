"""QEMU's command line for a sandbox VM, as a list of arguments."""

from __future__ import annotations

import os
import platform
import shlex
from dataclasses import dataclass

from gitguardfs.base import quote
from gitguardfs.host.share import qemu
from gitguardfs.host.vm.images import Image
from gitguardfs.host.vm.settings import Settings
from gitguardfs.host.vm.shares import Share
from gitguardfs.host.vm.state import State

SEED_SERIAL = "gitguard-seed"
"""The serial number of the disk with the seed, by which the guest finds it."""
CHANNEL = "gitguard"
"""The name of the port by which root in the guest tells how far it is."""
PROXY_ADDRESS, PROXY_PORT = "10.0.2.100", 8080
"""The address at which the guest reaches the proxy: QEMU answers there, on this port only."""
GUEST_ADDRESS = "10.0.2.15"
"""The address that QEMU's user network gives its one guest."""

# QEMU may start programs, since it starts the relay for each connection. elevateprivileges=deny
# would kill the relay.
SANDBOX = "on,obsolete=deny,resourcecontrol=deny"
HARDENED_SANDBOX = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"

_PROCESSORS = {"kvm": "host", "hvf": "host", "tcg": "max"}


IS_MAC = platform.system() == "Darwin"
IS_ARM = qemu.is_arm(platform.machine())
"""Whether the host is 64-bit ARM, and so the guest as well."""
FIRMWARE_PLACES = (*qemu.FIRMWARE_PLACES, f"/opt/homebrew/share/qemu/{qemu.FIRMWARE}")
"""Paths of the UEFI for ARM on Linux, and on a Mac by Homebrew."""


@dataclass(frozen=True)
class Machine:
    """One start of a VM."""

    state: State
    image: Image
    exported: tuple[Share, ...]
    """The shares; with a guard on the host their directories are guarded views."""
    settings: Settings
    accelerator: str
    """``kvm``, ``hvf`` or ``tcg``."""
    relay: tuple[str, ...]
    """The program that connects the guest to the proxy; unused if hardened."""
    channel: int
    """The descriptor of a socket on which root in the guest tells how far it is."""
    restricted: bool = True
    """False only in tests, to show that their attempts to get out would work without it."""


def command(machine: Machine) -> list[str]:
    """Return the command that starts the machine; it runs until the guest is off."""
    state = machine.state
    return [
        qemu.program(IS_ARM),
        *("-name", f"gitguard-{state.name}", "-nodefaults", "-no-user-config"),
        *("-display", "none", "-no-reboot"),
        *_board(machine),
        *("-accel", machine.accelerator, "-cpu", _cpu(machine)),
        # Not the clock of the machine, which stands still while that is paused: files/clock.sh.
        *("-rtc", "base=utc,clock=host"),
        *("-m", str(machine.settings.memory), "-smp", str(machine.settings.cpus)),
        # append=on: after the log is truncated, QEMU writes at its new end.
        *("-chardev", f"file,id=console,path={quote.qemu(state.console)},append=on"),
        *("-serial", "chardev:console"),
        *("-qmp", f"unix:{quote.qemu(state.qmp)},server=on,wait=off"),
        *_disks(machine),
        *("-device", "virtio-rng-pci"),
        *("-chardev", f"socket,id={CHANNEL},fd={machine.channel}"),
        *("-device", "virtio-serial-pci"),
        *("-device", f"virtserialport,chardev={CHANNEL},name={CHANNEL}"),
        *_changes(machine),
        *_network(machine),
        *(
            word
            for one in machine.exported
            for word in qemu.p9_share(one.directory, one.tag, one.is_writable)
        ),
        *(() if IS_MAC else ("-sandbox", _sandbox(machine))),
    ]


def _cpu(machine: Machine) -> str:
    model = _PROCESSORS[machine.accelerator]
    # An emulator takes a fifth longer with page tables of five levels.
    is_emulated_pc = machine.accelerator == "tcg" and not IS_ARM
    return f"{model},la57=off" if is_emulated_pc else model


def _board(machine: Machine) -> list[str]:
    board = ["-machine", "virt" if IS_ARM else "q35"]
    image = machine.image
    if image.kernel is not None:
        console = "ttyAMA0" if IS_ARM else "ttyS0"
        board += ["-kernel", image.kernel, "-append", f"console={console} {image.append}"]
        if image.initrd is not None:
            board += ["-initrd", image.initrd]
    elif IS_ARM:
        board += ["-bios", next(filter(os.path.exists, FIRMWARE_PLACES), qemu.FIRMWARE)]
    return board


def _disks(machine: Machine) -> list[str]:
    disk, seed = quote.qemu(machine.state.disk), quote.qemu(machine.state.seed)
    # The order decides which of the two the guest calls /dev/vda.
    return [
        *("-drive", f"file={disk},format=qcow2,if=none,id=disk,discard=unmap"),
        *("-device", "virtio-blk-pci,drive=disk"),
        *("-drive", f"file={seed},format=raw,if=none,id=seed,readonly=on"),
        *("-device", f"virtio-blk-pci,drive=seed,serial={SEED_SERIAL}"),
    ]


def _changes(machine: Machine) -> list[str]:
    # A machine without shares is one that sets a disk up.
    if not (machine.exported and machine.settings.tells_changes):
        return []
    return qemu.changes_port(machine.state.changes)


def _network(machine: Machine) -> list[str]:
    options = [
        "user,id=net",
        f"restrict={'on' if machine.restricted else 'off'}",
        "ipv6=off",
        "hostfwd=tcp:127.0.0.1:0-:22",
    ]
    if not machine.settings.hardened:
        helper = shlex.join(machine.relay)
        target = f"guestfwd=tcp:{PROXY_ADDRESS}:{PROXY_PORT}-cmd:{helper}"
        options.append(quote.qemu(target))
    return ["-netdev", ",".join(options), "-device", "virtio-net-pci,netdev=net"]


def _sandbox(machine: Machine) -> str:
    return HARDENED_SANDBOX if machine.settings.hardened else SANDBOX
