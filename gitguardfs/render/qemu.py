"""Arguments for QEMU: the share, and a whole machine round it. Lists, before any shell."""

from __future__ import annotations

import re
import zlib

from gitguardfs.host.spec import ShareSpec, Transport
from gitguardfs.render import quote

PROGRAM = "qemu-system-x86_64"
INSTALLER = "installer.iso"
"""Stands for the image that the user has downloaded."""
DISK_SIZE = "20G"
"""What the disk may grow to; qcow2 takes up only what is used."""
SECURITY_MODEL = "none"
"""mapped-xattr would hide owners and symlinks in attributes that the host's programs ignore."""
QUEUE_SIZE = 1024
"""As virtiofsd and libvirt document it; QEMU's default is 128."""

# qemu_opts_create takes the tag for an id, and an id must be of this form (util/id.c).
_ID = re.compile(r"[A-Za-z][A-Za-z0-9._-]*\Z", re.ASCII)


def share(spec: ShareSpec) -> list[str]:
    """The arguments that give a machine the share."""
    if spec.transport is Transport.NINEP:
        return _ninep(spec)
    ident = _id(spec.tag)
    return [
        *("-object", f"memory-backend-memfd,id=mem,size={spec.memory}M,share=on"),
        *("-machine", "memory-backend=mem"),
        *("-chardev", f"socket,id={ident},path={quote.qemu(spec.socket)}"),
        "-device",
        f"vhost-user-fs-pci,queue-size={QUEUE_SIZE},chardev={ident},tag={quote.qemu(spec.tag)}",
    ]


def _ninep(spec: ShareSpec) -> list[str]:
    options = [
        "local",
        f"path={quote.qemu(spec.exported)}",
        f"mount_tag={quote.qemu(spec.tag)}",
        f"security_model={SECURITY_MODEL}",
        "multidevs=remap",
    ]
    if _id(spec.tag) != spec.tag:
        options.append(f"id={_id(spec.tag)}")
    return ["-virtfs", ",".join(options)]


def _id(tag: str) -> str:
    return tag if _ID.match(tag) else f"share-{zlib.crc32(tag.encode()):08x}"


def create_disk(spec: ShareSpec) -> list[str]:
    """The command that makes the guest's disk."""
    return ["qemu-img", "create", "-f", "qcow2", spec.disk_path, DISK_SIZE]


def machine(spec: ShareSpec) -> list[str]:
    """A machine with the disk and a user network, without the share."""
    return [
        PROGRAM,
        *("-machine", "q35"),
        *("-accel", "kvm", "-accel", "tcg"),
        *("-cpu", "max"),
        *("-m", str(spec.memory)),
        *("-smp", str(spec.cpus)),
        *("-drive", f"file={quote.qemu(spec.disk_path)},format=qcow2,if=virtio"),
        *("-nic", "user,model=virtio-net-pci"),
    ]


def install(spec: ShareSpec) -> list[str]:
    """The machine as it is started the first time, from the installer's image."""
    return [*machine(spec), "-cdrom", INSTALLER, "-boot", "once=d"]


def run(spec: ShareSpec) -> list[str]:
    """The machine with the share."""
    return [*machine(spec), *share(spec)]
