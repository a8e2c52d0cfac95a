"""Arguments of QEMU for the share and for a whole machine, as unquoted lists."""

from __future__ import annotations

import re
import zlib

from gitguardfs.base import quote
from gitguardfs.host.share.share_spec import MachineNetwork, ShareSpec, Transport
from gitguardfs.host.share.virtiofsd import QUEUE_SIZE

FIRMWARE = "edk2-aarch64-code.fd"
"""The UEFI for ARM; QEMU finds it in its own directory, if it is installed there."""
FIRMWARE_PLACES = (
    "/usr/share/qemu-efi-aarch64/QEMU_EFI.fd",
    "/usr/share/edk2/aarch64/QEMU_EFI.fd",
)
"""Where it is on Debian and Ubuntu, and on Fedora."""
SSH_PORT = 2222
"""Port on this machine's 127.0.0.1 that leads to ssh in the guest."""
NETWORK = "user,model=virtio-net-pci"
INSTALLER = "installer.iso"
"""A placeholder for the installer's image that the user has downloaded."""
DISK_SIZE = "20G"
"""The disk's greatest size; qcow2 takes up only what is used."""
SECURITY_MODEL = "none"
"""mapped-xattr would hide owners and symlinks in attributes that the host's programs ignore."""

# qemu_opts_create uses the tag as an id, and an id must have this form (util/id.c).
_ID = re.compile(r"[A-Za-z][A-Za-z0-9._-]*\Z", re.ASCII)


def share(spec: ShareSpec) -> list[str]:
    """Return the arguments that share the directory with a machine."""
    if spec.transport is Transport.P9:
        return p9_share(spec.exported, spec.tag)
    ident = _id(spec.tag)
    return [
        *("-object", f"memory-backend-memfd,id=mem,size={spec.memory}M,share=on"),
        *("-machine", "memory-backend=mem"),
        *("-chardev", f"socket,id={ident},path={quote.qemu(spec.socket)}"),
        "-device",
        f"vhost-user-fs-pci,queue-size={QUEUE_SIZE},chardev={ident},tag={quote.qemu(spec.tag)}",
    ]


def p9_share(exported: str, tag: str) -> list[str]:
    """Return the arguments that share a directory with a machine by virtio-9p."""
    options = [
        "local",
        f"path={quote.qemu(exported)}",
        f"mount_tag={quote.qemu(tag)}",
        f"security_model={SECURITY_MODEL}",
        "multidevs=remap",
    ]
    if _id(tag) != tag:
        options.append(f"id={_id(tag)}")
    return ["-virtfs", ",".join(options)]


def _id(tag: str) -> str:
    return tag if _ID.match(tag) else f"share-{zlib.crc32(tag.encode()):08x}"


def create_disk(spec: ShareSpec) -> list[str]:
    """Return the command that makes the guest's disk."""
    return ["qemu-img", "create", "-f", "qcow2", spec.disk_path, DISK_SIZE]


def machine(spec: ShareSpec) -> list[str]:
    """Return the machine without network and share."""
    accelerator = "hvf" if spec.host.is_mac else "kvm"
    return [
        program(spec.host.is_arm),
        *_board(spec),
        *("-accel", accelerator, "-accel", "tcg"),
        *("-cpu", "max"),
        *("-m", str(spec.memory)),
        *("-smp", str(spec.cpus)),
        *("-drive", f"file={quote.qemu(spec.disk_path)},format=qcow2,if=virtio"),
    ]


def program(is_arm: bool) -> str:
    """Return the QEMU that emulates 64-bit ARM, or a PC."""
    return "qemu-system-aarch64" if is_arm else "qemu-system-x86_64"


def is_arm(processor: str) -> bool:
    """Return whether platform.machine() of a host stands for 64-bit ARM."""
    return processor in ("aarch64", "arm64")


def _board(spec: ShareSpec) -> list[str]:
    if not spec.host.is_arm:
        return ["-machine", "q35"]
    return ["-machine", "virt", "-bios", spec.host.firmware or FIRMWARE]


def _network(network: MachineNetwork) -> list[str]:
    """Return the arguments of a user network; RESTRICTED lets the guest connect to nothing.

    ssh leads into either from this machine.
    """
    closed = ["restrict=on", "ipv6=off"] if network is MachineNetwork.RESTRICTED else []
    return ["-nic", ",".join([NETWORK, *closed, f"hostfwd=tcp:127.0.0.1:{SSH_PORT}-:22"])]


def install(spec: ShareSpec) -> list[str]:
    """Return the machine's first start, from the installer's image.

    The network is open, since the installer downloads packages.
    """
    # The board for ARM has no "boot once"; with an empty disk it boots the installer anyway.
    once = [] if spec.host.is_arm else ["-boot", "once=d"]
    return [*machine(spec), "-nic", NETWORK, "-cdrom", INSTALLER, *once]


def run(spec: ShareSpec) -> list[str]:
    """Return the machine with the share."""
    return [*machine(spec), *_network(spec.network), *share(spec)]


def login() -> list[str]:
    """Return the command that logs in to the guest."""
    return ["ssh", "-p", str(SSH_PORT), "USER@127.0.0.1"]


def copy(file: str) -> list[str]:
    """Return the command that copies a file into the guest."""
    return ["scp", "-P", str(SSH_PORT), file, "USER@127.0.0.1:"]
