"""The input of checks: mount point, user, mount table, daemons, paths of the system.

A check is a function from a ``Context`` to results. It observes by ``run_as``, and judges by pure
functions of its module.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gitguardfs.base.constants import FSTYPE, MAX_ID, SYSTEM_PATH
from gitguardfs.base.errors import UserError
from gitguardfs.base.findings import Result
from gitguardfs.linux import mountinfo
from gitguardfs.linux.mountinfo import MountInfo
from gitguardfs.linux.run_as import User
from gitguardfs.mounting.guards import GuardDaemon
from gitguardfs.options import accounts

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


Groups = Callable[[str, int], Sequence[int]]
"""The ids of a user's groups, from the user's name and own group (getgrouplist(3))."""

Table = tuple[MountInfo, ...]
"""The mounts of a mountinfo file, in its order."""


def read_table(pid: str = "self") -> Table:
    """Return the mounts that a process sees; empty if it is gone or may not be read."""
    try:
        return tuple(mountinfo.listed(f"/proc/{pid}"))
    except OSError:
        return ()


def holding(table: Table, path: str) -> MountInfo | None:
    """Return the mount that the resolved ``path`` lies in."""
    while (seen := mountinfo.top_at(path, table)) is None and path not in ("", "/"):
        path = os.path.dirname(path)
    return seen


def find_user(name: str, groups_of: Groups = os.getgrouplist) -> User:
    """Return a user with all groups, by name or number. Raises UserError for an unknown one."""
    try:
        found = accounts.find(name)
    except accounts.OutOfRangeError:
        raise UserError(f"no user can have the number {name}", f"0 to {MAX_ID}") from None
    except accounts.UnknownAccountError as error:
        raise UserError(error.message) from None
    groups = tuple(groups_of(found.name, found.gid))
    return User(found.uid, found.gid, groups, found.name, found.exists)


@dataclass(frozen=True)
class CheckedSystem:
    """Paths and look-ups of this system; tests replace them."""

    search_path: str = SYSTEM_PATH
    groups_of: Groups = os.getgrouplist
    group_name: Callable[[int], str] = accounts.group_name
    doas_files: tuple[str, ...] = ("/etc/doas.conf", "/usr/local/etc/doas.conf")
    run_by_root: tuple[str, ...] = (
        PACKAGE,
        "/etc/fstab",
        "/etc/fuse.conf",
        "/etc/systemd/system",
        "/run/systemd/system",
        "/usr/lib/systemd/system",
        "/usr/local/lib/gitguardfs",
        "/usr/local/lib/systemd/system",
    )
    """Files, and directories with everything in them, that root runs or reads for a mount."""
    programs: tuple[str, ...] = ("gitguardfs", "vm-mount", "gitguard", "mount.gitguardfs")
    """Names of programs that root runs, found in ``search_path``."""
    libraries: tuple[str, ...] = (
        *("pyfuse3", "trio", "click"),
        *("attr", "attrs", "exceptiongroup", "idna", "outcome", "sniffio", "sortedcontainers"),
    )
    """Python modules that the daemon imports; the second line has those that trio imports."""
    tags: tuple[str, ...] = (
        "/sys/bus/virtio/drivers/9pnet_virtio/*/mount_tag",
        "/sys/fs/virtiofs/*/tag",
    )
    """Files of sysfs with the mount tags of shares (virtiofs: since Linux 6.9)."""
    lima_socket: str = "/run/lima-guestagent.sock"
    """The socket of Lima's guest agent, a daemon that runs as root in the guest."""


@dataclass(frozen=True)
class Context:
    """One mount point, one user."""

    mountpoint: str
    user: User | None
    """The agent's user; None if unknown: then checks that need a user are left out."""
    is_root: bool
    table: Table = ()
    daemons: tuple[GuardDaemon, ...] = ()
    """The daemons of the mount at ``mountpoint``."""
    servers: tuple[GuardDaemon, ...] = ()
    """All processes that have a FUSE device open."""
    system: CheckedSystem = field(default_factory=CheckedSystem)
    say: Callable[[str], None] = lambda _: None
    """Shows the user which check goes on."""

    @property
    def guard(self) -> MountInfo | None:
        """Return the gitguardfs mount on top at the mount point; None if there is none."""
        seen = mountinfo.top_at(self.mountpoint, self.table)
        return seen if seen is not None and seen.fstype == FSTYPE else None

    @property
    def options(self) -> tuple[str, ...] | None:
        """The options that a daemon of the view was started with; None if unknown."""
        return next((one.options for one in self.daemons if one.options is not None), None)

    def option(self, name: str) -> str:
        """Return the value of an option that counts, the last one; "" if it is not given."""
        split = (option.partition("=") for option in self.options or ())
        values = [text for key, _, text in split if key == name]
        return values[-1] if values else ""


Check = Callable[[Context], list[Result]]
