"""Users and groups as they are written: numbers or names, maps, and files that number them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from gitguardfs import accounts
from gitguardfs.accounts import group_id, user_id
from gitguardfs.bindfs.idmap import IdMap, MapError
from gitguardfs.bindfs.mirror import Mirror
from gitguardfs.errors import UserError, warn

AUTO = "auto"
_NUMBER = r"[0-9]{1,20}"

Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class MapSpec:
    """The id map as it was asked for: pairs of (share, guest) ids, or to be found out."""

    uids: Pairs = ()
    gids: Pairs = ()
    auto: bool = False
    uid_offset: int = 0
    gid_offset: int = 0

    def __post_init__(self) -> None:
        """UserError for pairs that contradict one another, and for maps that do not mix."""
        if self.auto and (self.uids or self.gids or self.uid_offset or self.gid_offset):
            raise UserError("--map auto cannot be combined with other maps or offsets")
        try:
            IdMap(self.uids, self.gids)
        except MapError as error:
            raise UserError(f"contradictory --map: {error}") from None

    def resolve(self, source: tuple[int, int], mountpoint: tuple[int, int]) -> IdMap:
        """The map; (uid, gid) of the two directories are what ``auto`` goes by."""
        uids, gids = self._pairs(source, mountpoint)
        return IdMap(uids, gids, uid_offset=self.uid_offset, gid_offset=self.gid_offset)

    def missing(self, source: tuple[int, int], mountpoint: tuple[int, int]) -> tuple[str, ...]:
        """Return what would keep ids of the share apart that the map shows as one.

        An id without a rule is shown as it is, also where another one is mapped to it.
        """
        users, groups = map(_swapped, self._pairs(source, mountpoint))
        return (
            *(f"{share}/{guest}" for share, guest in users),
            *(f"@{share}/@{guest}" for share, guest in groups),
        )

    def _pairs(self, source: tuple[int, int], mountpoint: tuple[int, int]) -> tuple[Pairs, Pairs]:
        if self.auto:
            return ((source[0], mountpoint[0]),), ((source[1], mountpoint[1]),)
        return self.uids, self.gids


def _swapped(pairs: Pairs) -> Pairs:
    """Return rules for the ids that are mapped to and not from, to those that are left free."""
    shares, guests = [share for share, _ in pairs], [guest for _, guest in pairs]
    doubled = [guest for guest in guests if guest not in shares]
    free = [share for share in shares if share not in guests]
    return tuple(zip(doubled, free, strict=True))


def parse_maps(specs: Sequence[str]) -> MapSpec:
    """Parse the values of ``--map``; raises UserError for what is malformed or contradictory.

    ``HOST:GUEST`` maps user and group, ``@HOST:@GUEST`` groups only, with commas between
    several; ``u1/u2:@g1/@g2`` is bindfs's spelling; ``auto`` stands alone.
    """
    items = [item.strip() for spec in specs for item in spec.split(",")]
    if AUTO in items:
        if len(items) > 1:
            raise UserError("--map auto cannot be combined with other maps")
        return MapSpec(auto=True)
    uids: list[tuple[int, int]] = []
    gids: list[tuple[int, int]] = []
    for item in items:
        _parse_item(item, uids, gids)
    return MapSpec(tuple(uids), tuple(gids))


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


def with_files(
    spec: MapSpec, passwd: Iterable[tuple[str, bool]], group: Iterable[tuple[str, bool]]
) -> MapSpec:
    """``spec`` and what files like /etc/passwd and /etc/group say.

    Each comes with whether it is about the guest (``--map-passwd-rev``) and not the share. Where
    they speak of the same id, ``spec`` counts.
    """
    uids = [pair for path, rev in passwd for pair in _read_ids(path, user_id, rev)]
    gids = [pair for path, rev in group for pair in _read_ids(path, group_id, rev)]
    return replace(spec, uids=_joined(spec.uids, uids), gids=_joined(spec.gids, gids))


def _joined(stronger: Pairs, weaker: Iterable[tuple[int, int]]) -> Pairs:
    shares, guests = ({pair[side] for pair in stronger} for side in (0, 1))
    return *stronger, *(p for p in weaker if p[0] not in shares and p[1] not in guests)


def _read_ids(path: str, find: Callable[[str], int], is_of_guest: bool) -> list[tuple[int, int]]:
    """Pairs of (share, guest) ids from lines of ``name:password:id``."""
    from gitguardfs.linux import safe_open  # of Linux; nothing is mounted elsewhere

    try:
        fd = safe_open.open_file(path, os.geteuid() == 0, os.O_RDONLY)
        with open(fd, errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    pairs = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = line.split(":")
        if len(fields) < 3 or not re.fullmatch(_NUMBER, fields[2]):
            raise UserError(f"{path}, line {number} is not name:password:id")
        try:
            here = find(fields[0])
        except UserError as error:
            warn(f"{path}, line {number} is left out: {error.message}")
            continue
        there = int(fields[2])
        pairs.append((here, there) if is_of_guest else (there, here))
    return pairs


def parse_mirror(text: str, only: bool) -> Mirror:
    """The users and @groups of ``--mirror``, with colons or commas between. UserError."""
    items = [item for item in re.split("[,:]", text) if item]
    if not items:
        raise UserError("--mirror names nobody", "write user1:user2:@group")
    return Mirror(
        frozenset(user_id(item) for item in items if not item.startswith("@")),
        frozenset(group_id(item[1:]) for item in items if item.startswith("@")),
        only,
        accounts.groups_of,
    )
