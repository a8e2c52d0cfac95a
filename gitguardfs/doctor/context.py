"""What a check is, and what it has to go by.

A check is a function from a ``Context`` to results. It looks with ``run_as``, and decides with
pure functions of its module.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from gitguardfs import accounts
from gitguardfs.constants import SYSTEM_PATH
from gitguardfs.doctor.run_as import Groups, User
from gitguardfs.findings import Result
from gitguardfs.linux import mountinfo
from gitguardfs.linux.mountinfo import MountInfo
from gitguardfs.mounting.guards import GuardDaemon

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


Table = tuple[MountInfo, ...]
"""The mounts of a mountinfo file, in its order."""


def read_table(pid: str = "self") -> Table:
    """Return the mounts that a process sees; none if it is gone or not to be looked at."""
    try:
        return tuple(mountinfo.listed(f"/proc/{pid}"))
    except OSError:
        return ()


def top_at(table: Table, path: str) -> MountInfo | None:
    """Return the mount that is on top of exactly ``path``."""
    return mountinfo.uppermost(table, os.fsencode(path))


def holding(table: Table, path: str) -> MountInfo | None:
    """The mount in which ``path`` (resolved) lies."""
    while (seen := top_at(table, path)) is None and path not in ("", "/"):
        path = os.path.dirname(path)
    return seen


@dataclass(frozen=True)
class System:
    """Where things are on this system; tests put others in place."""

    search_path: str = SYSTEM_PATH
    groups_of: Groups = os.getgrouplist
    group_name: Callable[[int], str] = accounts.group_name
    doas_files: tuple[str, ...] = ("/etc/doas.conf", "/usr/local/etc/doas.conf")
    run_by_root: tuple[str, ...] = (
        PACKAGE,
        "/etc/fstab",
        "/etc/systemd/system",
        "/usr/local/lib/gitguardfs",
        "/usr/local/lib/systemd/system",
    )
    """Files, or directories with all in them, that root executes or obeys for a mount."""
    programs: tuple[str, ...] = ("gitguardfs", "vm-mount", "gitguard", "mount.gitguardfs")
    """Programs that root runs, by name, to be looked for in ``search_path``."""
    libraries: tuple[str, ...] = (
        *("pyfuse3", "trio", "click"),
        *("attr", "attrs", "exceptiongroup", "idna", "outcome", "sniffio", "sortedcontainers"),
    )
    """Python modules that the daemon imports; the second line is what trio imports."""
    tags: tuple[str, ...] = (
        "/sys/bus/virtio/drivers/9pnet_virtio/*/mount_tag",
        "/sys/fs/virtiofs/*/tag",
    )
    """Files that hold the tags of shares (9p in the kernel's terms, virtiofs since 6.9)."""
    lima_socket: str = "/run/lima-guestagent.sock"
    """Where the daemon listens by which Lima acts as root in its guests."""
    processes: str = "/proc"
    """Where the processes are whose mount namespaces are looked at."""


@dataclass(frozen=True)
class Context:
    """One mount point, one user."""

    mountpoint: str
    user: User | None
    """None when it is not known whom to become: then the checks that need that are left out."""
    is_root: bool
    table: Table = ()
    daemons: tuple[GuardDaemon, ...] = ()
    """Of the mount at ``mountpoint``."""
    servers: tuple[GuardDaemon, ...] = ()
    """All processes that have a FUSE device open."""
    system: System = field(default_factory=System)

    @property
    def guard(self) -> MountInfo | None:
        """The gitguardfs mount on top of the mount point."""
        seen = top_at(self.table, self.mountpoint)
        return seen if seen is not None and seen.fstype == mountinfo.FSTYPE else None


Check = Callable[[Context], list[Result]]
