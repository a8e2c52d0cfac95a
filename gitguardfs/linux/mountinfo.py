"""The kernel's list of mounts (proc(5), /proc/pid/mountinfo)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from gitguardfs import constants
from gitguardfs.linux import processes, syscalls

SUBTYPE, FSTYPE, SHARE_TYPES = constants.SUBTYPE, constants.FSTYPE, constants.SHARE_TYPES

_USER_ID = re.compile(r"(?:^|,)user_id=([0-9]+)(?:,|$)")
LOCAL_TYPES = frozenset(
    (
        "bcachefs", "btrfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "hfsplus",
        "iso9660", "jfs", "msdos", "nilfs2", "ntfs", "ntfs3", "ramfs", "squashfs", "tmpfs", "udf",
        "vfat", "xfs", "zfs",
    )
)  # fmt: skip
"""File systems of this machine's own disks and memory. Any other may wait for a server."""


@dataclass(frozen=True, kw_only=True)
class MountInfo:
    """One line of mountinfo. What the kernel escapes there is unescaped here."""

    mnt_id: int = 0
    """Tells this mount from all others that are there now."""
    parent_id: int = 0
    """The mount that it lies on."""
    device: str
    """Major and minor number, with a colon between."""
    root: bytes = b"/"
    """What of its file system is mounted, by its path there: a bind mount may be of a part."""
    mount_point: bytes
    options: str = ""
    """Of the mount."""
    fstype: str
    source: str
    super_options: str = ""
    """Of the file system."""

    @property
    def path(self) -> str:
        """The mount point as text."""
        return os.fsdecode(self.mount_point)

    @property
    def st_dev(self) -> int:
        """The st_dev of its file system; volumes of btrfs have others."""
        major, _, minor = self.device.partition(":")
        return os.makedev(int(major), int(minor))

    @property
    def all_options(self) -> frozenset[str]:
        """The options of the mount (nosuid ...) and of its file system (user_id=0 ...)."""
        return frozenset((*self.options.split(","), *self.super_options.split(",")))

    @property
    def owner(self) -> int | None:
        """The user who mounted it, if it is a FUSE file system (user_id)."""
        found = _USER_ID.search(self.super_options) if self.fstype.startswith("fuse") else None
        return int(found[1]) if found else None

    @property
    def identity(self) -> tuple[int, str, str, str]:
        """What stays as long as it is mounted, wherever it is moved to.

        The number alone is given to another mount afterwards, the lowest free one first.
        """
        return self.mnt_id, self.device, self.fstype, self.source

    @property
    def is_fuse(self) -> bool:
        """Whether a process serves it by /dev/fuse; fusectl only tells of those."""
        return self.fstype.partition(".")[0] in ("fuse", "fuseblk")

    @property
    def is_local(self) -> bool:
        """Whether writes go to memory rather than to a server."""
        return self.fstype in LOCAL_TYPES

    @property
    def goes_by_paths(self) -> bool:
        """Whether a descriptor leads to whatever is at the path by now, as with QEMU's 9p server.

        Its fids hold paths (hw/9pfs/9p.c: V9fsPath), which it rewrites for its own renames only.
        """
        return self.fstype == "9p"


def parse(text: bytes) -> list[MountInfo]:
    """Return the mounts in the order in which they were made, as mountinfo lists them."""
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
                root=_unescape(fields[3]),
                mount_point=_unescape(fields[4]),
                options=os.fsdecode(fields[5]),
                fstype=os.fsdecode(_unescape(rest[0])),
                source=os.fsdecode(_unescape(rest[1])),
                super_options=os.fsdecode(_unescape(rest[2])) if len(rest) > 2 else "",
            )
        )
    return found


def _unescape(field: bytes) -> bytes:
    if b"\\" not in field:
        return field
    return re.sub(rb"\\([0-7]{3})", lambda m: bytes([int(m[1], 8)]), field)


def listed(process: str = "/proc/self", proc: int | None = None) -> list[MountInfo]:
    """Return the mounts that a process sees: in its namespace, from its root.

    ``process`` is its directory in /proc; ``proc`` is a descriptor of a /proc that ``process`` is
    relative to. Raises OSError.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC
    with open(os.open(f"{process}/mountinfo", flags, dir_fd=proc), "rb") as file:
        return parse(file.read())


def uppermost(table: Iterable[MountInfo], path: bytes) -> MountInfo | None:
    """Return the mount of ``table`` that is on top of exactly ``path``, if any is.

    A mount that was put beneath another one is younger, and listed after it.
    """
    found = [m for m in table if m.mount_point == path]
    covered = {m.parent_id for m in found if m.parent_id != m.mnt_id}
    return next((m for m in reversed(found) if m.mnt_id not in covered), None)


def top_at(path: str) -> MountInfo | None:
    """Return the mount that is on top of exactly ``path`` (resolved), if any is."""
    return uppermost(listed(), os.fsencode(path))


def stack_of(fd: int) -> list[MountInfo]:
    """Return the mount that a descriptor is of, and those that it covers at its own path.

    The uppermost comes first. Empty for a descriptor of no mount of this namespace.
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
    """The same mount as it is by now, at another path if that was moved; None if it is gone."""
    return next((m for m in listed() if m.identity == mount.identity), None)


def of_device(device: int) -> MountInfo | None:
    """A mount of the file system with this st_dev; None where st_dev is a volume's (btrfs)."""
    number = f"{os.major(device)}:{os.minor(device)}"
    return next((m for m in listed() if m.device == number), None)


def number_of(fd: int) -> int:
    """Return the number of the mount that a descriptor is of (mnt_id). Raises OSError."""
    return processes.fdinfo(fd).mnt_id


def detach(mount: MountInfo) -> bool:
    """Unmount this very mount and no other, whatever its path leads to by now.

    False if its path leads elsewhere; OSError if the kernel refuses.
    """
    try:
        fd = os.open(mount.mount_point, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if number_of(fd) != mount.mnt_id or current(mount) is None:
            return False
        syscalls.umount(b"/proc/self/fd/%d" % fd, syscalls.MNT_DETACH)
    finally:
        os.close(fd)
    return True
