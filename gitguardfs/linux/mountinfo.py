"""The kernel's list of mounts (proc(5), /proc/pid/mountinfo)."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass

from gitguardfs import constants
from gitguardfs.linux import syscalls

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


@dataclass(frozen=True)
class Mount:
    """One line of mountinfo."""

    device: str
    path: bytes
    fstype: str
    source: str
    number: int = 0
    """What tells this mount from all others (mnt_id)."""
    parent: int = 0
    """The number of the mount that it lies on."""
    owner: int | None = None
    """The user who mounted it, if it is a FUSE file system (user_id)."""
    options: str = ""
    """Of the file system, not of the mount."""
    root: bytes = b"/"
    """What of its file system is mounted, by its path there: a bind mount may be of a part."""

    @property
    def identity(self) -> tuple[int, str, str, str]:
        """What stays as long as it is mounted, wherever it is moved to.

        The number alone is given to another mount afterwards, the lowest free one first.
        """
        return self.number, self.device, self.fstype, self.source

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


def parse(text: bytes) -> list[Mount]:
    """The mounts in the order in which they were made, as mountinfo lists them."""
    found = []
    for line in text.split(b"\n"):
        if not line:
            continue
        left, _, right = line.partition(b" - ")
        fields, kind = left.split(b" "), right.split(b" ")
        found.append(
            Mount(
                device=fields[2].decode(),
                path=_unescape(fields[4]),
                fstype=os.fsdecode(_unescape(kind[0])),
                source=os.fsdecode(_unescape(kind[1])),
                number=int(fields[0]),
                parent=int(fields[1]),
                owner=_owner(os.fsdecode(kind[0]), os.fsdecode(kind[-1])),
                options=os.fsdecode(_unescape(kind[2])) if len(kind) > 2 else "",
                root=_unescape(fields[3]),
            )
        )
    return found


def _unescape(field: bytes) -> bytes:
    if b"\\" not in field:
        return field
    return re.sub(rb"\\([0-7]{3})", lambda m: bytes([int(m[1], 8)]), field)


def _owner(fstype: str, options: str) -> int | None:
    found = _USER_ID.search(options) if fstype.startswith("fuse") else None
    return int(found[1]) if found else None


def listed(process: str = "/proc/self") -> list[Mount]:
    """The mounts that a process sees, by its directory in /proc: in its namespace, from its root.

    Raises OSError.
    """
    with open(f"{process}/mountinfo", "rb") as file:
        return parse(file.read())


def top_at(path: str) -> Mount | None:
    """The mount that is on top of exactly ``path`` (resolved), if any is."""
    target = os.fsencode(path)
    found = [m for m in listed() if m.path == target]
    covered = {m.parent for m in found if m.parent != m.number}
    return next((m for m in reversed(found) if m.number not in covered), None)


def stack_of(fd: int) -> list[Mount]:
    """Return the mount that a descriptor is of, and those that it covers at its own path.

    The uppermost comes first. Empty for a descriptor of no mount of this namespace.
    """
    by_number = {m.number: m for m in listed()}
    found: list[Mount] = []
    here = by_number.get(number_of(fd))
    while here is not None and here not in found and here.path == (found or [here])[0].path:
        found.append(here)
        here = by_number.get(here.parent)
    return found


def on_top_of(number: int, path: str) -> Mount | None:
    """Return the mount that lies directly on ``path`` in the mount with this number."""
    target = os.fsencode(path)
    return next((m for m in listed() if m.parent == number and m.path == target), None)


def current(mount: Mount) -> Mount | None:
    """The same mount as it is by now, at another path if that was moved; None if it is gone."""
    return next((m for m in listed() if m.identity == mount.identity), None)


def of_device(device: int) -> Mount | None:
    """A mount of the file system with this st_dev; None where st_dev is a volume's (btrfs)."""
    number = f"{os.major(device)}:{os.minor(device)}"
    return next((m for m in listed() if m.device == number), None)


def number_of(fd: int) -> int:
    """The number of the mount that a descriptor is of (proc(5), fdinfo)."""
    with open(f"/proc/self/fdinfo/{fd}", "rb") as file:
        for line in file:
            if line.startswith(b"mnt_id:"):
                return int(line.split()[1])
    raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def detach(mount: Mount) -> bool:
    """Unmount this very mount and no other, whatever its path leads to by now.

    False if its path leads elsewhere; OSError if the kernel refuses.
    """
    try:
        fd = os.open(mount.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if number_of(fd) != mount.number or current(mount) is None:
            return False
        syscalls.umount(b"/proc/self/fd/%d" % fd, syscalls.MNT_DETACH)
    finally:
        os.close(fd)
    return True
