"""Maps ids of the share to ids of the guest, and back.

An id without a rule is not changed. An offset is then added to every id that the guest sees.
A guest id that stands for no share id cannot be stored: mapping it in raises OSError(EOVERFLOW), as
idmapped mounts of the kernel do. A share id that the offset moves out of range cannot be shown:
mapping it out raises OSError(EIO), as in bindfs.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from dataclasses import dataclass, field

from gitguardfs.base.constants import MAX_ID
from gitguardfs.base.errors import os_error
from gitguardfs.base.protocol import GuestGid, GuestUid, ShareGid, ShareUid


class MapError(ValueError):
    """Two rules of a map contradict each other, or an id is out of range."""


@dataclass(frozen=True)
class _NumberMap:
    """The rules for user ids or for group ids."""

    out: dict[int, int] = field(default_factory=dict)
    back: dict[int, int] = field(default_factory=dict)
    offset: int = 0

    @staticmethod
    def build(pairs: Iterable[tuple[int, int]], offset: int, kind: str) -> _NumberMap:
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
        return _NumberMap(out, back, offset)

    def shifted(self, share: int) -> int:
        """Return the guest's id with the offset added. Raises OSError(EIO) if out of range."""
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
            # The share has another user or group of this number, which is shown as out[guest].
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
    """The maps of user ids and of group ids; immutable."""

    __slots__ = ("_gids", "_uids")

    def __init__(
        self,
        uids: Iterable[tuple[int, int]] = (),
        gids: Iterable[tuple[int, int]] = (),
        *,
        uid_offset: int = 0,
        gid_offset: int = 0,
    ) -> None:
        """Build from (share, guest) pairs. Raises MapError if one id is mapped twice."""
        self._uids = _NumberMap.build(uids, uid_offset, "user")
        self._gids = _NumberMap.build(gids, gid_offset, "group")

    def guest_ids(self, uid: ShareUid, gid: ShareGid) -> tuple[GuestUid, GuestGid]:
        """Return the guest's ids of a share's user and group. Raises OSError(EIO) if out of range.

        One call for both, and none of a NewType: every request comes here.
        """
        uids, gids = self._uids, self._gids
        return (
            uids.shifted(uid) if uids.offset else uids.out.get(uid, uid),
            gids.shifted(gid) if gids.offset else gids.out.get(gid, gid),
        )  # type: ignore[return-value]

    def share_uid(self, uid: GuestUid) -> ShareUid:
        """Return the share's user that is shown as ``uid``. Raises OSError(EOVERFLOW) if none."""
        return ShareUid(self._uids.to_share(uid))

    def share_gid(self, gid: GuestGid) -> ShareGid:
        """Return the share's group that is shown as ``gid``. Raises OSError(EOVERFLOW) if none."""
        return ShareGid(self._gids.to_share(gid))

    @property
    def shows_all(self) -> bool:
        """Whether every id of the share can be shown: an offset can move one out of range."""
        return not (self._uids.offset or self._gids.offset)

    def can_store_uid(self, uid: GuestUid) -> bool:
        """Return whether the guest's user is in range once the offset is subtracted."""
        return uid >= self._uids.offset

    def can_store_gid(self, gid: GuestGid) -> bool:
        """Return whether the guest's group is in range once the offset is subtracted."""
        return gid >= self._gids.offset

    def mapped_uid(self, uid: GuestUid) -> ShareUid | None:
        """Return the share's user that a rule shows as ``uid``; None without such a rule."""
        share = self._uids.mapped(uid)
        return None if share is None else ShareUid(share)

    def mapped_gid(self, gid: GuestGid) -> ShareGid | None:
        """Return the share's group that a rule shows as ``gid``; None without such a rule."""
        share = self._gids.mapped(gid)
        return None if share is None else ShareGid(share)
