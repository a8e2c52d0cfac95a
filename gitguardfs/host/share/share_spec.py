"""The description of one share on the host: validated, frozen."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from enum import StrEnum

from gitguardfs.base.constants import UTM_TAG
from gitguardfs.base.errors import UserError
from gitguardfs.base.paths import is_inside
from gitguardfs.names import dotgit
from gitguardfs.options.guarded_share import check_tag

SOCKET_PATH_BYTES = 107
"""The longest path of a socket: sun_path (unix(7)) without its final NUL byte."""

LEAST_MEMORY = 256
"""MiB: with less, no current distribution boots."""

# A terminal acts on control characters, and bytes that are not UTF-8 cannot be copied from it.
# XML carries neither of these, nor U+FFFE and U+FFFF ("Char" in its specification).
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


class Hypervisor(StrEnum):
    """What runs the virtual machine."""

    QEMU = "qemu"
    LIBVIRT = "libvirt"
    UTM = "utm"


class Transport(StrEnum):
    """The device over which the guest mounts the directory."""

    P9 = "9p"
    VIRTIOFS = "virtiofs"


class GuardPlacement(StrEnum):
    """Where gitguardfs runs: in the guest, or on the host, so that the guest gets its view."""

    GUEST = "guest"
    HOST = "host"


class MachineNetwork(StrEnum):
    """The network of the machine that QEMU starts: open, or nothing but ssh from the host."""

    OPEN = "open"
    RESTRICTED = "restricted"


@dataclass(frozen=True)
class Host:
    """The host, and its user who shares the directory: ids as numbers, ``group`` by name."""

    uid: int
    gid: int
    group: str
    runtime: str
    """That user's directory that a reboot empties: $XDG_RUNTIME_DIR, or /run for root."""
    selinux: bool = False
    """Whether files need a label before a confined QEMU may use them."""
    is_arm: bool = False
    """Whether the processors are 64-bit ARM, which need another QEMU program."""
    is_mac: bool = False
    firmware: str | None = None
    """The path of the UEFI for ARM guests; None if it is not found outside of QEMU."""
    virtiofsd: str | None = None
    """The path of virtiofsd; None if it is not in VIRTIOFSD_PLACES."""

    @property
    def is_root(self) -> bool:
        """Return whether root shares the directory."""
        return self.uid == 0


@dataclass(frozen=True)
class ShareSpec:
    """A directory of the host, and how a guest gets it. Paths are absolute.

    Raises UserError for values that one of the formats cannot carry or that contradict one another.
    """

    directory: str
    tag: str
    transport: Transport
    hypervisor: Hypervisor
    guard: GuardPlacement
    host: Host
    memory: int = 2048
    """MiB."""
    cpus: int = 2
    disk: str = field(default="")
    """The path of the guest's disk; empty for one beside the directory."""
    network: MachineNetwork = MachineNetwork.OPEN
    hiding: tuple[str, ...] = ()
    """Options with which a guard on the host hides names."""

    def __post_init__(self) -> None:
        _check_tag(self.tag, self.hypervisor)
        _check_path(self.directory, "the directory")
        if self.guard is GuardPlacement.HOST:
            self._check_guard_on_host()
        if self.hypervisor is Hypervisor.QEMU:
            self._check_machine()

    @property
    def disk_path(self) -> str:
        """Return the path of the guest's disk."""
        return self.disk or os.path.join(os.path.dirname(self.directory), "agent.qcow2")

    @property
    def mountpoint(self) -> str:
        """Return where the guarded view is mounted on the host."""
        return os.path.join(self.host.runtime, "gitguardfs", self.tag)

    @property
    def exported(self) -> str:
        """Return the directory that is exported to the virtual machine."""
        return self.mountpoint if self.guard is GuardPlacement.HOST else self.directory

    @property
    def socket(self) -> str:
        """Return the path of the socket between virtiofsd and QEMU."""
        return os.path.join(self.host.runtime, f"gitguardfs-{self.tag}.sock")

    @property
    def changes(self) -> str:
        """Return the path of the socket by which QEMU gets changes for the guest."""
        return os.path.join(self.host.runtime, f"gitguardfs-{self.tag}.changes")

    @property
    def uses_runtime(self) -> bool:
        """Return whether the host's runtime directory gets a mount or a socket."""
        is_served = self.hypervisor is Hypervisor.QEMU and self.transport is Transport.VIRTIOFS
        return self.guard is GuardPlacement.HOST or is_served

    @property
    def name(self) -> str:
        """Return the directory's name in the guest."""
        return os.path.basename(self.directory) or self.tag

    def _check_guard_on_host(self) -> None:
        if self.hypervisor is Hypervisor.UTM or self.host.is_mac:
            raise UserError(
                "gitguardfs runs on Linux, not on a Mac", "leave --guard out: it is in the guest"
            )
        _check_path(self.mountpoint, "the mount point on the host")
        if is_inside(self.mountpoint, self.directory):
            raise UserError(
                f"the guarded view would lie in {self.directory} itself",
                "share a directory further down",
            )

    def _check_machine(self) -> None:
        if self.memory < LEAST_MEMORY:
            raise UserError(f"--memory {self.memory} is too little", f"at least {LEAST_MEMORY}")
        if self.cpus < 1:
            raise UserError(f"--cpus {self.cpus} is too little", "at least 1")
        _check_path(self.disk_path, "the disk's path")
        if is_inside(self.disk_path, self.directory):
            raise UserError(
                f"the disk {self.disk_path} would lie in the shared directory",
                "the guest could change it from within: --disk PATH",
            )
        if self.transport is Transport.VIRTIOFS and self.host.is_mac:
            raise UserError("virtiofsd runs on Linux only", "--transport 9p, or --for utm")
        if self.transport is Transport.VIRTIOFS:
            self._check_socket(self.socket)
        if self.guard is GuardPlacement.GUEST:
            self._check_socket(self.changes)

    @staticmethod
    def _check_socket(path: str) -> None:
        _check_path(path, "the socket's path")
        if len(path.encode()) > SOCKET_PATH_BYTES:
            raise UserError(
                f"the socket's path {path} is longer than {SOCKET_PATH_BYTES} bytes",
                "choose a shorter XDG_RUNTIME_DIR",
            )


def _check_tag(tag: str, hypervisor: Hypervisor) -> None:
    if not tag:
        raise UserError("the mount tag is empty", "--tag projects")
    check_tag(tag, Transport.P9.value)
    awkward = "/" in tag or tag in (".", "..") or tag.startswith("-") or _UNPRINTABLE.search(tag)
    if awkward or dotgit.is_dotgit(tag.encode()):
        raise UserError(
            f"{tag!r} cannot be a mount tag here",
            "it becomes part of a path: no /, no - at the start, not ., .. or .git",
        )
    if hypervisor is Hypervisor.UTM and tag != UTM_TAG:
        raise UserError(f"UTM's tag is always {UTM_TAG}", f"leave --tag out, or --tag {UTM_TAG}")


def _check_path(path: str, role: str) -> None:
    if not path.startswith("/"):
        raise UserError(f"{role} {path!r} is not an absolute path")
    if _UNPRINTABLE.search(path):
        raise UserError(
            f"{role} {path!r} cannot be printed for copying",
            "no control characters, UTF-8 only, and neither U+FFFE nor U+FFFF",
        )
