"""Parses id maps: the values of ``--map``, ``--mirror`` and of the options that name files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from gitguardfs.base.errors import UserError, warn
from gitguardfs.options import accounts
from gitguardfs.options.accounts import group_id, user_id
from gitguardfs.options.idmap import IdMap, MapError
from gitguardfs.options.mirror import Mirror

AUTO = "auto"

Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class IdMapSpec:
    """The id map that the options ask for: pairs of (share, guest) ids, or ``auto``."""

    uids: Pairs = ()
    gids: Pairs = ()
    auto: bool = False
    uid_offset: int = 0
    gid_offset: int = 0

    def __post_init__(self) -> None:
        """Raise UserError for contradictory pairs, and for maps that cannot be combined."""
        if self.auto and (self.uids or self.gids or self.uid_offset or self.gid_offset):
            raise UserError("--map auto cannot be combined with other maps or offsets")
        try:
            IdMap(self.uids, self.gids)
        except MapError as error:
            raise UserError(f"contradictory --map: {error}") from None

    def resolve(self, source: tuple[int, int], mountpoint: tuple[int, int]) -> IdMap:
        """Return the id map. ``auto`` uses (uid, gid) of source and mount point."""
        uids, gids = self._pairs(source, mountpoint)
        return IdMap(uids, gids, uid_offset=self.uid_offset, gid_offset=self.gid_offset)

    @property
    def missing(self) -> str:
        """Further ``--map`` that keeps all ids of the share apart; "" if they are.

        An id without a rule is shown unchanged, even if another id is mapped to it: then the
        guest sees both as one. It is spelled without commas, which would divide ``-o``. With an
        offset there is no such map.
        """
        if self.uid_offset or self.gid_offset:
            return ""
        return spelled(swapped(self.uids), swapped(self.gids))

    def _pairs(self, source: tuple[int, int], mountpoint: tuple[int, int]) -> tuple[Pairs, Pairs]:
        if self.auto:
            return both_ways(source[0], mountpoint[0]), both_ways(source[1], mountpoint[1])
        return self.uids, self.gids


def swapped(pairs: Pairs) -> Pairs:
    """Return pairs that map each id which is only a target to an id which is only a source."""
    shares, guests = [share for share, _ in pairs], [guest for _, guest in pairs]
    doubled = [guest for guest in guests if guest not in shares]
    free = [share for share in shares if share not in guests]
    return tuple(zip(doubled, free, strict=True))


def both_ways(share: int, guest: int) -> Pairs:
    """Return the pairs that show ``share`` as ``guest``, and no other id of the share so."""
    pairs = ((share, guest),)
    return *pairs, *swapped(pairs)


def spelled(uids: Pairs, gids: Pairs) -> str:
    """Return the pairs as a value of ``--map``, in bindfs's spelling."""
    return ":".join(
        (
            *(f"{share}/{guest}" for share, guest in uids),
            *(f"@{share}/@{guest}" for share, guest in gids),
        )
    )


def parse_maps(specs: Sequence[str]) -> IdMapSpec:
    """Parse the values of ``--map``. Raises UserError if one is malformed or contradictory.

    ``HOST:GUEST`` maps user and group, ``@HOST:@GUEST`` groups only, with commas between
    several; ``u1/u2:@g1/@g2`` is bindfs's spelling; ``auto`` stands alone.
    """
    items = [item.strip() for spec in specs for item in spec.split(",")]
    if AUTO in items:
        if len(items) > 1:
            raise UserError("--map auto cannot be combined with other maps")
        return IdMapSpec(auto=True)
    uids: list[tuple[int, int]] = []
    gids: list[tuple[int, int]] = []
    for item in items:
        _parse_item(item, uids, gids)
    return IdMapSpec(tuple(uids), tuple(gids))


def _parse_item(item: str, uids: list[tuple[int, int]], gids: list[tuple[int, int]]) -> None:
    if "/" in item:
        for pair in item.removesuffix(":").split(":"):
            share, guest = _two(pair, "/", item)
            if _is_group(share, guest, item):
                gids.append((group_id(share[1:]), group_id(guest[1:])))
            else:
                uids.append((user_id(share), user_id(guest)))
        return
    share, guest = _two(item, ":", item)
    if _is_group(share, guest, item):
        gids.append((group_id(share[1:]), group_id(guest[1:])))
    else:
        uids.append((user_id(share), user_id(guest)))
        gids.append((_own_group(share), _own_group(guest)))


def _two(text: str, separator: str, item: str) -> tuple[str, str]:
    parts = text.split(separator)
    if len(parts) != 2 or not all(parts):
        raise UserError(
            f"malformed --map {item!r}", "write HOST:GUEST, @HOST:@GUEST, u1/u2:@g1/@g2 or auto"
        )
    return parts[0], parts[1]


def _is_group(share: str, guest: str, item: str) -> bool:
    if share.startswith("@") != guest.startswith("@"):
        raise UserError(f"malformed --map {item!r}", "@ marks a group and goes on both sides")
    return share.startswith("@")


def _own_group(user: str) -> int:
    # A number stands for the group of the same number, a name for the user's own group.
    return accounts.number(user) if accounts.is_number(user) else accounts.find(user).gid


def add_passwd_files(
    spec: IdMapSpec, passwd: Iterable[tuple[str, bool]], group: Iterable[tuple[str, bool]]
) -> IdMapSpec:
    """Return ``spec`` with the pairs that files like /etc/passwd and /etc/group add.

    Each file comes with True if it has the guest's ids (``--map-passwd-rev``), False if the
    share's. ``spec`` takes precedence over the files. Raises UserError.
    """
    uids = [pair for path, rev in passwd for pair in _read_ids(path, user_id, rev)]
    gids = [pair for path, rev in group for pair in _read_ids(path, group_id, rev)]
    return replace(spec, uids=_joined(spec.uids, uids), gids=_joined(spec.gids, gids))


def _joined(stronger: Pairs, weaker: Iterable[tuple[int, int]]) -> Pairs:
    shares, guests = ({pair[side] for pair in stronger} for side in (0, 1))
    return *stronger, *(p for p in weaker if p[0] not in shares and p[1] not in guests)


def _read_ids(path: str, find: Callable[[str], int], is_of_guest: bool) -> list[tuple[int, int]]:
    """Return pairs of (share, guest) ids. Raises UserError."""
    pairs = []
    for line_number, name, there in accounts.ids_in(path):
        try:
            here = find(name)
        except UserError as error:
            warn(f"{path}, line {line_number} is left out: {error.message}")
            continue
        pairs.append((here, there) if is_of_guest else (there, here))
    return pairs


def parse_mirror(text: str, only: bool) -> Mirror:
    """Parse ``--mirror``: users and @groups, separated by colons or commas. Raises UserError."""
    items = [item for item in re.split("[,:]", text) if item]
    if not items:
        raise UserError("--mirror names no user and no group", "write user1:user2:@group")
    return Mirror(
        frozenset(user_id(item) for item in items if not item.startswith("@")),
        frozenset(group_id(item[1:]) for item in items if item.startswith("@")),
        only,
        accounts.groups_of,
    )
