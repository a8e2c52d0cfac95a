"""Attributes that options override: owner, permissions, link count, ctime, type of block devices.

All of these options are bindfs's. The id map is applied before, and the guard's own override after
(``fs.attributes``), so nothing here can open a guarded object.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from stat import S_IFBLK, S_IFLNK, S_IFMT, S_IFREG, S_ISDIR

from gitguardfs.base.protocol import Attributes, GuestUid, ShareGid, ShareUid
from gitguardfs.options.mirror import Mirror
from gitguardfs.options.permissions import ALL, Perms

BLOCK = 512
"""Bytes in a block of st_blocks (stat(2))."""


@dataclass(frozen=True)
class DaemonRights:
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
class Overrides:
    """The overrides of one mount. The default overrides nothing."""

    force_user: int | None = None
    force_group: int | None = None
    perms: Perms | None = None
    mirror: Mirror | None = None
    hide_hard_links: bool = False
    ctime_from_mtime: bool = False
    realistic_permissions: bool = False
    block_devices_as_files: bool = False


class AttributeOverrider:
    """Applies Overrides; holds the facts of this machine that it needs."""

    def __init__(
        self, overrides: Overrides, rights: DaemonRights, device_size: Callable[[int], int]
    ) -> None:
        """Take ``device_size``: the size of a block device in bytes, by its device number."""
        self._overrides = overrides
        self._rights = rights
        self._device_size = device_size

    def apply(
        self, shown: Attributes, mode: int, owner: ShareUid, group: ShareGid, uid: GuestUid
    ) -> Attributes:
        """Return ``shown`` overridden for the guest's user ``uid``.

        ``mode``, ``owner`` and ``group`` are the share's.
        """
        overrides = self._overrides
        overridden = shown._replace(
            uid=shown.uid if overrides.force_user is None else overrides.force_user,
            gid=shown.gid if overrides.force_group is None else overrides.force_group,
            nlink=1 if overrides.hide_hard_links else shown.nlink,
            ctime_ns=shown.mtime_ns if overrides.ctime_from_mtime else shown.ctime_ns,
        )
        if overrides.mirror is not None:
            if overrides.mirror.shows(uid):
                overridden = overridden._replace(uid=uid)
            elif overrides.mirror.only and uid != 0:
                return overridden._replace(mode=shown.mode & ~ALL)
        file_type = S_IFMT(shown.mode)
        if overrides.block_devices_as_files and file_type == S_IFBLK:
            size = self._device_size(shown.rdev)
            overridden = overridden._replace(
                mode=S_IFREG | shown.mode & ~file_type, size=size, blocks=size // BLOCK
            )
        if file_type == S_IFLNK:
            return overridden
        bits = overridden.mode
        if overrides.perms is not None:
            bits = overrides.perms.apply(bits)
        if overrides.realistic_permissions:
            bits &= ~ALL | self._rights.bits(mode, owner, group)
        return overridden._replace(mode=bits)
