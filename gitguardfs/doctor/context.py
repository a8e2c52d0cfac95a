"""What a check is, and what it has to go by.

A check is a function from a ``Context`` to results. It looks with ``run_as``, and decides with
pure functions of its module.
"""

from __future__ import annotations

import grp
import os
from collections.abc import Callable
from dataclasses import dataclass, field

from gitguardfs.doctor.run_as import Groups, User
from gitguardfs.findings import Result
from gitguardfs.linux import mountinfo
from gitguardfs.linux.mountinfo import Mount

SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


@dataclass(frozen=True)
class Seen:
    """A line of mountinfo with its options (``mountinfo.Mount`` leaves them out)."""

    mount: Mount
    options: frozenset[str]
    """Of the mount (nosuid ...) and of its file system (user_id=0 ...)."""

    @property
    def root(self) -> str:
        """What of its file system is mounted, by its path there."""
        return os.fsdecode(self.mount.root)

    @property
    def path(self) -> str:
        """Where it is mounted."""
        return os.fsdecode(self.mount.path)

    @property
    def device(self) -> int:
        """Its st_dev."""
        major, _, minor = self.mount.device.partition(":")
        return os.makedev(int(major), int(minor))


def parse_table(text: bytes) -> tuple[Seen, ...]:
    """The mounts of a mountinfo file, in its order."""
    lines = [line for line in text.split(b"\n") if line]
    return tuple(
        Seen(mount, _options(line))
        for mount, line in zip(mountinfo.parse(text), lines, strict=True)
    )


def _options(line: bytes) -> frozenset[str]:
    left, _, right = line.partition(b" - ")
    fields = (left.split(b" ")[5], right.split(b" ")[2])
    return frozenset(os.fsdecode(option) for field in fields for option in field.split(b","))


def read_table(pid: str = "self") -> tuple[Seen, ...]:
    """The mounts that a process sees; none if it is gone or not to be looked at."""
    try:
        with open(f"/proc/{pid}/mountinfo", "rb") as file:
            return parse_table(file.read())
    except OSError:
        return ()


def top_at(table: tuple[Seen, ...], path: str) -> Seen | None:
    """The mount that is on top of exactly ``path``."""
    return next((seen for seen in reversed(table) if seen.path == path), None)


def holding(table: tuple[Seen, ...], path: str) -> Seen | None:
    """The mount in which ``path`` (resolved) lies."""
    while (seen := top_at(table, path)) is None and path not in ("", "/"):
        path = os.path.dirname(path)
    return seen


@dataclass(frozen=True)
class Daemon:
    """A process that may serve a mount."""

    pid: int
    uid: int
    arguments: tuple[str, ...]
    connection: int | None
    """The minor number of the mount's device that its /dev/fuse belongs to, if the kernel tells."""
    held: tuple[str, ...] = ()
    """The directories that it has open, without those in another of them: root is told."""


def group_name(gid: int) -> str:
    """The name of a group; its number if it has none."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


@dataclass(frozen=True)
class System:
    """Where things are on this system; tests put others in place."""

    search_path: str = SEARCH_PATH
    groups_of: Groups = os.getgrouplist
    group_name: Callable[[int], str] = group_name
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
    table: tuple[Seen, ...] = ()
    daemons: tuple[Daemon, ...] = ()
    """Of the mount at ``mountpoint``."""
    servers: tuple[Daemon, ...] = ()
    """All processes that have a FUSE device open."""
    system: System = field(default_factory=System)

    @property
    def guard(self) -> Seen | None:
        """The gitguardfs mount on top of the mount point."""
        seen = top_at(self.table, self.mountpoint)
        return seen if seen is not None and seen.mount.fstype == mountinfo.FSTYPE else None


Check = Callable[[Context], list[Result]]
