"""The kernel's list of mounts (/proc/PID/mountinfo, proc(5)), and unmounting one of them."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from gitguardfs.base.errors import os_error
from gitguardfs.linux import syscalls

_USER_ID = re.compile(r"(?:^|,)user_id=([0-9]+)(?:,|$)")
LOCAL_TYPES = frozenset(
    (
        "bcachefs", "btrfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "hfsplus",
        "iso9660", "jfs", "msdos", "nilfs2", "ntfs", "ntfs3", "ramfs", "squashfs", "tmpfs", "udf",
        "vfat", "xfs", "zfs",
    )
)  # fmt: skip
"""Types of file systems on this machine's disks and memory. Any other may wait for a server."""


@dataclass(frozen=True, kw_only=True)
class MountInfo:
    """One line of mountinfo, with the kernel's escapes undone."""

    mnt_id: int = 0
    """The number of the mount, unique among those that exist now."""
    parent_id: int = 0
    """The mnt_id of the mount that this one lies on."""
    device: str
    """Major and minor number of the file system's device, with a colon between."""
    root: bytes = b"/"
    """The path, in the file system, of what is mounted: a bind mount may show a part of it."""
    mount_point: bytes
    options: str = ""
    """Options of the mount (nosuid ...)."""
    fstype: str
    source: str
    super_options: str = ""
    """Options of the file system (user_id=0 ...)."""

    @property
    def path(self) -> str:
        """The mount point as text."""
        return os.fsdecode(self.mount_point)

    @property
    def st_dev(self) -> int:
        """The st_dev of its file system; subvolumes of btrfs have others."""
        major, _, minor = self.device.partition(":")
        return os.makedev(int(major), int(minor))

    @property
    def all_options(self) -> frozenset[str]:
        """The options of the mount (nosuid ...) and of its file system (user_id=0 ...)."""
        return frozenset((*self.options.split(","), *self.super_options.split(",")))

    @property
    def owner(self) -> int | None:
        """The uid of the user who mounted it (user_id); None unless it is a FUSE file system."""
        found = _USER_ID.search(self.super_options) if self.fstype.startswith("fuse") else None
        return int(found[1]) if found else None

    @property
    def identity(self) -> tuple[int, str, str, str]:
        """The values that stay the same while it is mounted, wherever it is moved to.

        mnt_id alone is not enough: the kernel gives the number of an unmounted one to another.
        """
        return self.mnt_id, self.device, self.fstype, self.source

    @property
    def is_fuse(self) -> bool:
        """Whether a process serves it by /dev/fuse; fusectl, which lists connections, is not."""
        return self.fstype.partition(".")[0] in ("fuse", "fuseblk")

    @property
    def is_local(self) -> bool:
        """Whether writes go to memory first, and wait for no server."""
        return self.fstype in LOCAL_TYPES

    @property
    def is_ninep(self) -> bool:
        """Whether a descriptor leads to whatever is at its path by now, as with QEMU's 9p server.

        Its fids hold paths (hw/9pfs/9p.c, V9fsPath), which it updates for its own renames only.
        """
        return self.fstype == "9p"


def parse(text: bytes) -> list[MountInfo]:
    """Return the mounts in the order of mountinfo: the oldest first."""
    found = []
    for line in text.split(b"\n"):
        if not line:
            continue
        left, _, right = line.partition(b" - ")
        fields, rest = left.split(b" "), right.split(b" ")
        found.append(
            MountInfo(
                mnt_id=int(fields[0]),
                parent_id=int(fields[1]),
                device=fields[2].decode(),
                root=unescape(fields[3]),
                mount_point=unescape(fields[4]),
                options=os.fsdecode(fields[5]),
                fstype=os.fsdecode(unescape(rest[0])),
                source=os.fsdecode(unescape(rest[1])),
                super_options=os.fsdecode(unescape(rest[2])) if len(rest) > 2 else "",
            )
        )
    return found


def unescape(field: bytes) -> bytes:
    """Return a name without the octal escapes that the kernel and libmount write for some bytes."""
    if b"\\" not in field:
        return field
    return re.sub(rb"\\([0-3][0-7]{2})", lambda m: bytes([int(m[1], 8)]), field)


def listed(process: str = "/proc/self") -> list[MountInfo]:
    """Return the mounts of a process's namespace that lie below its root directory.

    ``process`` is its directory in /proc. Raises OSError.
    """
    with open(f"{process}/mountinfo", "rb") as file:
        return parse(file.read())


def top_at(path: str, table: Iterable[MountInfo] | None = None) -> MountInfo | None:
    """Return the mount on top of exactly ``path`` (resolved); None if nothing is mounted there.

    ``table`` is a list of mounts, by default of those that this process sees. The last one listed
    need not be on top: a mount may be put beneath an older one.
    """
    mount_point = os.fsencode(path)
    found = [m for m in (listed() if table is None else table) if m.mount_point == mount_point]
    covered = {m.parent_id for m in found if m.parent_id != m.mnt_id}
    return next((m for m in reversed(found) if m.mnt_id not in covered), None)


def stack_of(fd: int) -> list[MountInfo]:
    """Return a descriptor's mount, then the mounts that it covers at the same path.

    Returns [] if the descriptor's mount is not in this namespace.
    """
    by_number = {m.mnt_id: m for m in listed()}
    found: list[MountInfo] = []
    here = by_number.get(number_of(fd))
    while (
        here is not None
        and here not in found
        and here.mount_point == (found or [here])[0].mount_point
    ):
        found.append(here)
        here = by_number.get(here.parent_id)
    return found


def on_top_of(number: int, path: str) -> MountInfo | None:
    """Return the mount that lies directly on ``path`` in the mount with this number."""
    target = os.fsencode(path)
    return next((m for m in listed() if m.parent_id == number and m.mount_point == target), None)


def current(mount: MountInfo) -> MountInfo | None:
    """Return a mount as it is listed now, maybe at another path; None if it is gone."""
    return next((m for m in listed() if m.identity == mount.identity), None)


def of_device(device: int) -> MountInfo | None:
    """Return a mount of the file system with this st_dev; None for a subvolume of btrfs."""
    number = f"{os.major(device)}:{os.minor(device)}"
    return next((m for m in listed() if m.device == number), None)


def number_of(fd: int | str, process: str = "/proc/self") -> int:
    """Return the mnt_id of a descriptor's mount. Raises OSError.

    ``process`` is the directory in /proc of the process that has the descriptor. The number is 0
    for an object that is mounted nowhere, such as a memfd.
    """
    with open(f"{process}/fdinfo/{fd}", "rb") as file:
        for line in file:
            if line.startswith(b"mnt_id:"):
                return int(line.split()[1])
    raise os_error(errno.EBADF)


def detach(mount: MountInfo, flags: int = 0) -> bool:
    """Unmount this very mount and no other; return False if its path leads elsewhere by now.

    With MNT_FORCE, its connection ends, if it is a FUSE file system. Raises OSError if the kernel
    refuses.
    """
    try:
        fd = os.open(mount.mount_point, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if number_of(fd) != mount.mnt_id or current(mount) is None:
            return False
        syscalls.umount(b"/proc/self/fd/%d" % fd, syscalls.MNT_DETACH | flags)
    finally:
        os.close(fd)
    return True
