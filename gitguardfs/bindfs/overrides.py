"""Attributes that options override: owner, permissions, link count, ctime, type of block devices.

All of these options are bindfs's. The id map is applied before, and the guard's own override after
(``fs.attributes``), so nothing here can open a guarded object.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from stat import S_IFBLK, S_IFLNK, S_IFMT, S_IFREG, S_ISDIR

from gitguardfs.bindfs.mirror import Mirror
from gitguardfs.bindfs.permissions import ALL, Perms
from gitguardfs.protocol import Attributes

BLOCK = 512
"""Bytes in a block of st_blocks (stat(2))."""


@dataclass(frozen=True)
class Reach:
    """The rights of the daemon's user on the source's files, by mode and owner.

    Access lists (ACLs) are ignored.
    """

    uid: int
    gids: frozenset[int]
    read_only: bool
    """Whether the source's file system is mounted read-only."""

    def bits(self, mode: int, uid: int, gid: int) -> int:
        """Return the daemon's permission bits, repeated for owner, group and others."""
        if self.uid == 0:
            x = 1 if S_ISDIR(mode) or mode & 0o111 else 0
            own = 6 | x
        else:
            shift = 6 if uid == self.uid else 3 if gid in self.gids else 0
            own = mode >> shift & 7
        if self.read_only:
            own &= ~2
        return own * 0o111


@dataclass(frozen=True)
class Look:
    """The overrides of one mount. The default overrides nothing."""

    force_user: int | None = None
    force_group: int | None = None
    perms: Perms | None = None
    mirror: Mirror | None = None
    hide_hard_links: bool = False
    ctime_from_mtime: bool = False
    realistic_permissions: bool = False
    block_devices_as_files: bool = False


class Disguise:
    """Applies a Look; holds the facts of this machine that it needs."""

    def __init__(self, look: Look, reach: Reach, device_size: Callable[[int], int]) -> None:
        """``device_size`` returns the size of a block device in bytes, by its device number."""
        self._look = look
        self._reach = reach
        self._device_size = device_size

    def apply(self, shown: Attributes, mode: int, uid: int, gid: int, viewer: int) -> Attributes:
        """Return ``shown`` overridden for the guest's user ``viewer``.

        ``mode``, ``uid`` and ``gid`` are the share's.
        """
        look = self._look
        owner = shown.uid if look.force_user is None else look.force_user
        group = shown.gid if look.force_group is None else look.force_group
        links = 1 if look.hide_hard_links else shown.nlink
        ctime_ns = shown.mtime_ns if look.ctime_from_mtime else shown.ctime_ns
        made_up = shown._replace(uid=owner, gid=group, nlink=links, ctime_ns=ctime_ns)
        if look.mirror is not None:
            if look.mirror.shows(viewer):
                made_up = made_up._replace(uid=viewer)
            elif look.mirror.only and viewer != 0:
                return made_up._replace(mode=shown.mode & ~ALL)
        kind = S_IFMT(shown.mode)
        if look.block_devices_as_files and kind == S_IFBLK:
            size = self._device_size(shown.rdev)
            made_up = made_up._replace(
                mode=S_IFREG | shown.mode & ~S_IFMT(shown.mode), size=size, blocks=size // BLOCK
            )
        if kind == S_IFLNK:
            return made_up
        bits = made_up.mode
        if look.perms is not None:
            bits = look.perms.apply(bits)
        if look.realistic_permissions:
            bits &= ~ALL | self._reach.bits(mode, uid, gid)
        return made_up._replace(mode=bits)
