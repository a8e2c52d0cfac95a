"""Mapping ids to the guest and back."""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitguardfs.base.constants import MAX_ID
from gitguardfs.base.protocol import GuestGid, GuestUid, ShareGid, ShareUid
from gitguardfs.options.idmap import IdMap, MapError

SMALL = st.integers(0, 9)
"""A small range makes rules collide with the ids that are asked for."""


@st.composite
def pairs(draw: st.DrawFn) -> list[tuple[int, int]]:
    shares = draw(st.lists(SMALL, unique=True, max_size=6))
    guests = draw(st.permutations(range(10)))
    return list(zip(shares, guests, strict=False))


def uid_of(idmap: IdMap, share: int) -> GuestUid:
    return idmap.guest_ids(ShareUid(share), ShareGid(0))[0]


def gid_of(idmap: IdMap, share: int) -> GuestGid:
    return idmap.guest_ids(ShareUid(0), ShareGid(share))[1]


@given(pairs(), pairs())
def test_a_mapped_id_comes_back_as_itself(
    uids: list[tuple[int, int]], gids: list[tuple[int, int]]
) -> None:
    idmap = IdMap(uids, gids)
    for share, guest in uids:
        assert uid_of(idmap, share) == guest
        assert idmap.share_uid(GuestUid(guest)) == share
    for share, guest in gids:
        assert gid_of(idmap, share) == guest
        assert idmap.share_gid(GuestGid(guest)) == share


@given(pairs(), SMALL)
def test_what_the_guest_stores_is_shown_as_what_it_stored(
    uids: list[tuple[int, int]], guest: int
) -> None:
    idmap = IdMap(uids, uids)
    try:
        share = idmap.share_uid(GuestUid(guest))
    except OSError as error:
        assert error.errno == errno.EOVERFLOW
        assert guest in dict(uids) and guest not in dict(uids).values()
        with pytest.raises(OSError):
            idmap.share_gid(GuestGid(guest))
    else:
        assert idmap.guest_ids(share, idmap.share_gid(GuestGid(guest))) == (guest, guest)


@given(st.integers(0, MAX_ID))
def test_without_rules_ids_pass(number: int) -> None:
    idmap = IdMap()
    assert uid_of(idmap, number) == number == idmap.share_uid(GuestUid(number))
    assert gid_of(idmap, number) == number == idmap.share_gid(GuestGid(number))


def test_an_id_that_nobody_is_shown_as_cannot_be_stored() -> None:
    idmap = IdMap([(1000, 2000)], [(1000, 3000)])
    with pytest.raises(OSError) as user:
        idmap.share_uid(GuestUid(1000))
    with pytest.raises(OSError) as group:
        idmap.share_gid(GuestGid(1000))
    assert user.value.errno == group.value.errno == errno.EOVERFLOW


@pytest.mark.parametrize(("offset", "share"), [(-2, 0), (-2, 1), (5, MAX_ID), (-1000, 501)])
def test_what_an_offset_leaves_nothing_of_cannot_be_shown(offset: int, share: int) -> None:
    idmap = IdMap([(501, 999)], [(501, 999)], uid_offset=offset, gid_offset=offset)
    users, groups = (
        IdMap([(501, 999)], uid_offset=offset),
        IdMap([], [(501, 999)], gid_offset=offset),
    )
    unstorable = offset - 1 if offset > 0 else MAX_ID + offset + 1
    with pytest.raises(OSError) as user:
        uid_of(users, share)
    with pytest.raises(OSError) as group:
        gid_of(groups, share)
    assert user.value.errno == group.value.errno == errno.EIO
    with pytest.raises(OSError) as stored:
        idmap.share_uid(GuestUid(unstorable))
    assert stored.value.errno == errno.EOVERFLOW


def test_a_rule_s_id_is_found_by_what_the_guest_sees() -> None:
    idmap = IdMap([(501, 1000)], [(20, 1000)], uid_offset=10, gid_offset=20)
    assert (idmap.mapped_uid(GuestUid(1010)), idmap.mapped_gid(GuestGid(1020))) == (501, 20)
    assert (idmap.mapped_uid(GuestUid(1000)), idmap.mapped_gid(GuestGid(1000))) == (None, None)


@pytest.mark.parametrize(
    "rules",
    [
        [(1, 2), (1, 3)],
        [(1, 2), (3, 2)],
        [(1, 2), (1, 2)],
        [(-1, 0)],
        [(0, -1)],
        [(MAX_ID + 1, 0)],
        [(0, MAX_ID + 1)],
        [(2**64, 0)],
    ],
)
def test_contradictions_and_numbers_out_of_range_are_refused(rules: list[tuple[int, int]]) -> None:
    with pytest.raises(MapError):
        IdMap(rules)
    with pytest.raises(MapError):
        IdMap((), rules)
