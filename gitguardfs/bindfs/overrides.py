"""How objects look, beyond the id map: owners, permissions and counts made up on request.

All of it is bindfs's. It comes before the guard's own disguise (``attributes``), so that nothing
here can open what is guarded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from stat import S_IFBLK, S_IFLNK, S_IFMT, S_IFREG, S_ISDIR

from gitguardfs.bindfs.mirror import Mirror
from gitguardfs.bindfs.permissions import ALL, Perms
from gitguardfs.protocol import Attributes

BLOCK = 512
"""The unit of st_blocks."""


@dataclass(frozen=True)
class Reach:
    """What the daemon's own user may do with the source's files, by their mode and owner.

    Access lists are not looked at.
    """

    uid: int
    gids: frozenset[int]
    read_only: bool
    """The source's file system is mounted so."""

    def bits(self, mode: int, uid: int, gid: int) -> int:
        """The permission bits, in all three classes, that somebody could make use of."""
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
    """What is made up. The default is nothing."""

    force_user: int | None = None
    force_group: int | None = None
    perms: Perms | None = None
    mirror: Mirror | None = None
    hide_hard_links: bool = False
    ctime_from_mtime: bool = False
    realistic_permissions: bool = False
    block_devices_as_files: bool = False


class Disguise:
    """A Look with what it needs to know of this machine."""

    def __init__(self, look: Look, reach: Reach, device_size: Callable[[int], int]) -> None:
        """``device_size`` gives the bytes of a block device, by its number."""
        self._look = look
        self._reach = reach
        self._device_size = device_size

    def apply(self, shown: Attributes, mode: int, uid: int, gid: int, viewer: int) -> Attributes:
        """``shown`` made up for the user ``viewer``; mode, uid and gid are the share's."""
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
