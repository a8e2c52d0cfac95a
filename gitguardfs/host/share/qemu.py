"""Arguments of QEMU, as unquoted lists."""

from __future__ import annotations

import re
import zlib

from gitguardfs.base import quote
from gitguardfs.base.constants import CHANGES_PORT

FIRMWARE = "edk2-aarch64-code.fd"
"""The UEFI for ARM; QEMU finds it in its own directory, if it is installed there."""
FIRMWARE_PLACES = (
    "/usr/share/qemu-efi-aarch64/QEMU_EFI.fd",
    "/usr/share/edk2/aarch64/QEMU_EFI.fd",
)
"""The UEFI's paths on Debian and Ubuntu, and on Fedora."""

# qemu_opts_create uses the tag as an id, and an id must have this form (util/id.c).
_ID = re.compile(r"[A-Za-z][A-Za-z0-9._-]*\Z", re.ASCII)


def p9_share(exported: str, tag: str, is_writable: bool = True) -> list[str]:
    """Return the arguments that share a directory with a machine by virtio-9p."""
    # security_model=mapped-xattr would hide owners and symlinks in attributes.
    path, name = quote.qemu(exported), quote.qemu(tag)
    options = f"path={path},mount_tag={name},security_model=none,multidevs=remap"
    options += "" if is_writable else ",readonly=on"
    return ["-virtfs", f"local,{options},id={device_id(tag)}"]


def changes_port(socket: str) -> list[str]:
    """Return the arguments for the port by which `gitguard watch` writes, by a socket of QEMU's.

    The port needs a virtio-serial device.
    """
    return [
        *("-chardev", f"socket,id=changes,path={quote.qemu(socket)},server=on,wait=off"),
        *("-device", f"virtserialport,chardev=changes,name={CHANGES_PORT}"),
    ]


def device_id(tag: str) -> str:
    """Return a share's id: the tag, or a checksum of a tag that cannot be an id."""
    return tag if _ID.match(tag) else f"share-{zlib.crc32(tag.encode()):08x}"


def program(is_arm: bool) -> str:
    """Return the QEMU that emulates 64-bit ARM, or a PC."""
    return "qemu-system-aarch64" if is_arm else "qemu-system-x86_64"


def is_arm(processor: str) -> bool:
    """Return whether platform.machine() of a host stands for 64-bit ARM."""
    return processor in ("aarch64", "arm64")
