"""One share as the host is to offer it: validated, frozen."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from enum import StrEnum

from gitguardfs.constants import UTM_TAG
from gitguardfs.errors import Exit, UserError
from gitguardfs.guard import dotgit
from gitguardfs.render.guarded_share import check_tag

SOCKET_PATH_BYTES = 107
"""The longest path of a socket: sun_path (unix(7)) without its closing NUL."""

LEAST_MEMORY = 256
"""MiB below which no current distribution boots."""

# A terminal acts on control characters, and bytes that are no UTF-8 cannot be copied from one.
# XML carries neither those nor the two that are no characters ("Char" in its specification).
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


class Target(StrEnum):
    """What runs the virtual machine."""

    QEMU = "qemu"
    LIBVIRT = "libvirt"
    UTM = "utm"


class Transport(StrEnum):
    """How the directory gets into the guest."""

    NINEP = "9p"
    VIRTIOFS = "virtiofs"


class Guard(StrEnum):
    """Where ``.git`` is kept out of reach: within the guest, or below the export."""

    GUEST = "guest"
    HOST = "host"


class Network(StrEnum):
    """What the machine that QEMU starts may reach."""

    OPEN = "open"
    RESTRICTED = "restricted"


@dataclass(frozen=True)
class Host:
    """The host, and who shares: ids as numbers, ``group`` by name."""

    uid: int
    gid: int
    group: str
    runtime: str | None
    """A directory of that user's that is gone after a restart: $XDG_RUNTIME_DIR, or /run."""
    selinux: bool = False
    """Whether files need a label before a confined QEMU may use them."""
    is_arm: bool = False
    """Whether the processors are 64-bit ARM, which take another QEMU."""
    is_mac: bool = False
    firmware: str | None = None
    """Where the UEFI for ARM guests is; None where QEMU brings it along."""
    virtiofsd: str | None = None
    """Where virtiofsd is; None if it is not installed where it is known to be."""

    @property
    def is_root(self) -> bool:
        """Whether root shares."""
        return self.uid == 0


@dataclass(frozen=True)
class ShareSpec:
    """A directory of the host as a guest is to have it. Paths are absolute.

    Raises UserError for what one of the formats cannot carry, and for what makes no sense.
    """

    directory: str
    tag: str
    transport: Transport
    target: Target
    guard: Guard
    host: Host
    memory: int = 2048
    """MiB."""
    cpus: int = 2
    disk: str = field(default="")
    """The guest's disk; by default beside the directory."""
    network: Network = Network.OPEN

    def __post_init__(self) -> None:
        _check_tag(self.tag, self.target)
        _check_path(self.directory, "the directory")
        if self.guard is Guard.HOST:
            self._check_guard_on_host()
        if self.target is Target.QEMU:
            self._check_machine()

    @property
    def disk_path(self) -> str:
        """Where the guest's disk is."""
        return self.disk or os.path.join(os.path.dirname(self.directory), "agent.qcow2")

    @property
    def mountpoint(self) -> str:
        """Where the guarded view is mounted on the host."""
        return os.path.join(self._runtime(), "gitguardfs", self.tag)

    @property
    def exported(self) -> str:
        """What the virtual machine is given."""
        return self.mountpoint if self.guard is Guard.HOST else self.directory

    @property
    def socket(self) -> str:
        """Where virtiofsd and QEMU meet."""
        return os.path.join(self._runtime(), f"gitguardfs-{self.tag}.sock")

    @property
    def name(self) -> str:
        """What to call the directory in the guest."""
        return os.path.basename(self.directory) or self.tag

    def _runtime(self) -> str:
        if self.host.runtime is None:
            raise UserError(
                "there is no XDG_RUNTIME_DIR to put mounts and sockets in",
                "log in as that user, or run it as root",
                Exit.SYSTEM,
            )
        return self.host.runtime

    def _check_guard_on_host(self) -> None:
        if self.target is Target.UTM or self.host.is_mac:
            raise UserError(
                "gitguardfs runs on Linux, not on a Mac", "leave --guard out: it is in the guest"
            )
        _check_path(self.mountpoint, "the mount point on the host")
        if _inside(self.mountpoint, self.directory):
            raise UserError(
                f"the guarded view would lie in {self.directory} itself",
                "share a directory further down",
            )

    def _check_machine(self) -> None:
        if self.memory < LEAST_MEMORY:
            raise UserError(f"--memory {self.memory} is too little", f"at least {LEAST_MEMORY}")
        if self.cpus < 1:
            raise UserError(f"--cpus {self.cpus} is too little")
        _check_path(self.disk_path, "the disk's path")
        if _inside(self.disk_path, self.directory):
            raise UserError(
                f"the disk {self.disk_path} would lie in the shared directory",
                "the guest could change it from within: --disk PATH",
            )
        if self.transport is not Transport.VIRTIOFS:
            return
        if self.host.is_mac:
            raise UserError("virtiofsd runs on Linux only", "--transport 9p, or --for utm")
        _check_path(self.socket, "the socket's path")
        if len(self.socket.encode()) > SOCKET_PATH_BYTES:
            raise UserError(
                f"the socket's path {self.socket} is longer than {SOCKET_PATH_BYTES} bytes",
                "choose a shorter XDG_RUNTIME_DIR",
            )


def _check_tag(tag: str, target: Target) -> None:
    if not tag:
        raise UserError("the mount tag is empty", "--tag projects")
    check_tag(tag, Transport.NINEP.value)
    awkward = "/" in tag or tag in (".", "..") or tag.startswith("-") or _UNPRINTABLE.search(tag)
    if awkward or dotgit.is_dotgit(tag.encode()):
        raise UserError(
            f"{tag!r} cannot be a mount tag here",
            "it becomes part of a path: no /, no - at the start, not ., .. or .git",
        )
    if target is Target.UTM and tag != UTM_TAG:
        raise UserError(f"UTM's tag is always {UTM_TAG}", f"leave --tag out, or --tag {UTM_TAG}")


def _check_path(path: str, what: str) -> None:
    if not path.startswith("/"):
        raise UserError(f"{what} {path!r} is not an absolute path")
    if _UNPRINTABLE.search(path):
        raise UserError(
            f"{what} {path!r} cannot be printed for copying",
            "no control characters, UTF-8 only, and neither U+FFFE nor U+FFFF",
        )


def _inside(path: str, directory: str) -> bool:
    return os.path.commonpath([path, directory]) == directory
