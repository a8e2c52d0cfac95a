"""Share ids to guest ids and back.

Ids without a rule pass unchanged; an offset is added to all that the guest sees. An id that the
guest uses but that no share id is shown as cannot be stored: mapping it in raises EOVERFLOW, as
the kernel's idmapped mounts do. An id of the share that an offset leaves nothing of cannot be
shown: mapping it out raises EIO, as in bindfs.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NewType

from gitguardfs.constants import MAX_ID
from gitguardfs.errors import os_error

ShareUid = NewType("ShareUid", int)
GuestUid = NewType("GuestUid", int)
ShareGid = NewType("ShareGid", int)
GuestGid = NewType("GuestGid", int)


class MapError(ValueError):
    """Two rules of a map contradict each other, or an id is out of range."""


@dataclass(frozen=True)
class _Rules:
    """One direction of ids of one kind."""

    out: dict[int, int] = field(default_factory=dict)
    back: dict[int, int] = field(default_factory=dict)
    offset: int = 0

    @staticmethod
    def build(pairs: Iterable[tuple[int, int]], offset: int, kind: str) -> _Rules:
        out: dict[int, int] = {}
        back: dict[int, int] = {}
        for share, guest in pairs:
            for number in (share, guest):
                if not 0 <= number <= MAX_ID:
                    raise MapError(f"{kind} id {number} is out of range (0 to {MAX_ID})")
            if share in out:
                raise MapError(f"{kind} id {share} of the share is mapped twice")
            if guest in back:
                raise MapError(f"two {kind} ids of the share are mapped to {guest}")
            out[share] = guest
            back[guest] = share
        return _Rules(out, back, offset)

    def shifted(self, share: int) -> int:
        """Return the guest's id where there is an offset; raises OSError(EIO) if it is none."""
        guest = self.out.get(share, share) + self.offset
        if not 0 <= guest <= MAX_ID:
            raise os_error(errno.EIO)
        return guest

    def to_share(self, guest: int) -> int:
        guest = _in_range(guest - self.offset)
        share = self.back.get(guest)
        if share is not None:
            return share
        if guest in self.out:
            # On the share this number is somebody else's: it would be shown as out[guest].
            raise _overflow()
        return guest

    def mapped(self, guest: int) -> int | None:
        return self.back.get(guest - self.offset)


def _in_range(number: int) -> int:
    if not 0 <= number <= MAX_ID:
        raise _overflow()
    return number


def _overflow() -> OSError:
    return os_error(errno.EOVERFLOW)


class IdMap:
    """An immutable pair of maps, users and groups."""

    __slots__ = ("_gids", "_uids")

    def __init__(
        self,
        uids: Iterable[tuple[int, int]] = (),
        gids: Iterable[tuple[int, int]] = (),
        *,
        uid_offset: int = 0,
        gid_offset: int = 0,
    ) -> None:
        """Build from (share, guest) pairs; raises MapError for an id twice on one side."""
        self._uids = _Rules.build(uids, uid_offset, "user")
        self._gids = _Rules.build(gids, gid_offset, "group")

    def guest_uid(self, uid: ShareUid) -> GuestUid:
        """The user that the guest sees for a share's user; OSError(EIO) by an offset."""
        rules = self._uids  # on the path of every request, where a call of NewType shows
        return rules.shifted(uid) if rules.offset else rules.out.get(uid, uid)  # type: ignore[return-value]

    def guest_gid(self, gid: ShareGid) -> GuestGid:
        """The group that the guest sees for a share's group; OSError(EIO) by an offset."""
        rules = self._gids
        return rules.shifted(gid) if rules.offset else rules.out.get(gid, gid)  # type: ignore[return-value]

    def share_uid(self, uid: GuestUid) -> ShareUid:
        """The share's user that is shown as ``uid``; OSError(EOVERFLOW) if there is none."""
        return ShareUid(self._uids.to_share(uid))

    def share_gid(self, gid: GuestGid) -> ShareGid:
        """The share's group that is shown as ``gid``; OSError(EOVERFLOW) if there is none."""
        return ShareGid(self._gids.to_share(gid))

    @property
    def shows_all(self) -> bool:
        """Whether every id of the share is shown as one: an offset can leave the range."""
        return not (self._uids.offset or self._gids.offset)

    def can_store_uid(self, uid: GuestUid) -> bool:
        """Whether the offset leaves anything of the guest's user."""
        return uid >= self._uids.offset

    def can_store_gid(self, gid: GuestGid) -> bool:
        """Whether the offset leaves anything of the guest's group."""
        return gid >= self._gids.offset

    def mapped_uid(self, uid: GuestUid) -> ShareUid | None:
        """The share's user that a rule shows as ``uid``; None without such a rule."""
        share = self._uids.mapped(uid)
        return None if share is None else ShareUid(share)

    def mapped_gid(self, gid: GuestGid) -> ShareGid | None:
        """The share's group that a rule shows as ``gid``; None without such a rule."""
        share = self._gids.mapped(gid)
        return None if share is None else ShareGid(share)
