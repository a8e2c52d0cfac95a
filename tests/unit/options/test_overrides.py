"""Overrides of attributes beyond the id map; the guard comes last."""

from __future__ import annotations

import os
from stat import S_IFBLK, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG, S_IMODE
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitguardfs.base.protocol import Attributes, GuestUid, NodeId
from gitguardfs.fs.attributes import AttributeMapper
from gitguardfs.fs.nodes import Node
from gitguardfs.names.rules import Verdict
from gitguardfs.options import accounts
from gitguardfs.options.idmap import IdMap
from gitguardfs.options.mirror import Mirror
from gitguardfs.options.mount_options import MountOptions
from gitguardfs.options.overrides import AttributeOverrider, DaemonRights, Overrides
from gitguardfs.options.permissions import Perms

ROOT = DaemonRights(0, frozenset({0}), read_only=False)
VIEWER, OTHER = 1000, 1001


def fake_stat(kind: int, mode: int, uid: int = 501, gid: int = 20) -> os.stat_result:
    times = (1.5, 2.5, 3.5)
    exact = {
        "st_atime_ns": 1_500_000_001, "st_mtime_ns": 2_500_000_002, "st_ctime_ns": 3_500_000_003,
        "st_blksize": 4096, "st_blocks": 16, "st_rdev": 0,
    }  # fmt: skip
    return os.stat_result((kind | mode, 44, 7, 1, uid, gid, 8000, *times), exact)


def seen(
    overrides: Overrides,
    kind: int = S_IFREG,
    mode: int = 0o640,
    uid: int = VIEWER,
    verdict: Verdict = Verdict.ALLOW,
    rights: DaemonRights = ROOT,
) -> Attributes:
    overrider = AttributeOverrider(overrides, rights, lambda _number: 4096)
    options = MountOptions("", "", allow_suid=True)
    view = AttributeMapper(IdMap([(501, 1000)]), options, overrider.apply)
    st = fake_stat(kind, mode)
    reported = view.report(Node(NodeId(44), st, verdict, ""), st, GuestUid(uid)).attributes
    assert reported is not None
    return reported


def test_owners_are_forced_after_the_map() -> None:
    plain = seen(Overrides())
    assert (plain.uid, plain.gid) == (1000, 20)
    forced = seen(Overrides(force_user=7, force_group=8))
    assert forced == plain._replace(uid=7, gid=8)


def test_counts_and_times() -> None:
    plain = seen(Overrides(), S_IFDIR)
    assert seen(Overrides(hide_hard_links=True), S_IFDIR) == plain._replace(nlink=1)
    assert seen(Overrides(ctime_from_mtime=True), S_IFDIR) == plain._replace(
        ctime_ns=plain.mtime_ns
    )


def test_permissions_change_but_for_symlinks() -> None:
    overrides = Overrides(perms=Perms("0700:g+X"))
    assert S_IMODE(seen(overrides, S_IFREG, 0o644).mode) == 0o700
    assert S_IMODE(seen(overrides, S_IFDIR, 0o6755).mode) == 0o6710
    assert S_IMODE(seen(overrides, S_IFLNK, 0o777).mode) == 0o777


def test_a_block_device_looks_like_a_file() -> None:
    found = seen(Overrides(block_devices_as_files=True, perms=Perms("a-w")), S_IFBLK, 0o660)
    assert (found.mode, found.size, found.blocks) == (S_IFREG | 0o440, 4096, 8)
    assert S_IFMT(seen(Overrides(perms=Perms("a-w")), S_IFBLK).mode) == S_IFBLK


def mirror(*users: int, only: bool = False) -> Overrides:
    return Overrides(
        mirror=Mirror(frozenset(users), frozenset(), only, accounts.groups_of),
        force_user=9,
        force_group=8,
    )


def test_to_a_mirrored_user_every_file_is_his_own() -> None:
    assert seen(mirror(VIEWER)).uid == VIEWER
    assert seen(mirror(VIEWER), uid=OTHER).uid == 9
    assert seen(mirror(VIEWER)).gid == 8
    assert seen(mirror(0), uid=0).uid == 0


def test_mirror_only_closes_everything_to_others_but_root() -> None:
    overrides = mirror(VIEWER, only=True)
    assert S_IMODE(seen(overrides, mode=0o666).mode) == 0o666
    assert S_IMODE(seen(overrides, mode=0o666, uid=OTHER).mode) == 0
    assert S_IMODE(seen(overrides, mode=0o666, uid=0).mode) == 0o666


def test_members_of_groups_are_mirrored_and_looked_up_again_when_told() -> None:
    groups: dict[int, list[int]] = {VIEWER: [1000]}
    asked: list[int] = []

    def groups_of(uid: int) -> list[int]:
        asked.append(uid)
        return groups.get(uid, [])

    found = Mirror(frozenset(), frozenset({70}), False, groups_of)
    assert not found.shows(VIEWER) and not found.shows(OTHER)
    groups[VIEWER] = [1000, 70]
    assert not found.shows(VIEWER)
    assert asked == [VIEWER, OTHER]
    found.reread()
    assert found.shows(VIEWER)


def test_users_whom_nobody_knows_are_in_no_group() -> None:
    assert accounts.groups_of(0)
    assert accounts.groups_of(4_000_000_001) == []


@pytest.mark.parametrize(
    ("rights", "mode", "bits"),
    [
        (ROOT, 0o000, 0o666), (ROOT, 0o001, 0o777), (ROOT, 0o600, 0o666),
        (DaemonRights(0, frozenset(), read_only=True), 0o001, 0o555),
        (DaemonRights(501, frozenset(), False), 0o640, 0o666),
        (DaemonRights(501, frozenset({20}), False), 0o047, 0o000),
        (DaemonRights(7, frozenset({20}), False), 0o750, 0o555),
        (DaemonRights(7, frozenset({20}), False), 0o707, 0o000),
        (DaemonRights(7, frozenset({8}), False), 0o701, 0o111),
    ],
)  # fmt: skip
def test_realistic_permissions(rights: DaemonRights, mode: int, bits: int) -> None:
    overrides = Overrides(perms=Perms("0777"), realistic_permissions=True)
    assert S_IMODE(seen(overrides, S_IFREG, mode, rights=rights).mode) == bits


looks: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "force_user": st.integers(0, 70000), "force_group": st.integers(0, 70000),
        "perms": st.sampled_from(["0777", "a+rwx", "ugo=rwx"]).map(Perms),
        "mirror": st.builds(
            Mirror, st.just(frozenset({VIEWER})), st.just(frozenset()), st.booleans()
        ),
        "hide_hard_links": st.booleans(), "ctime_from_mtime": st.booleans(),
        "realistic_permissions": st.booleans(), "block_devices_as_files": st.booleans(),
    },
)  # fmt: skip


@given(looks, st.sampled_from([S_IFREG, S_IFDIR, S_IFLNK, S_IFBLK]), st.integers(0, 0o7777))
def test_nothing_made_up_opens_what_is_guarded(
    overrides: dict[str, Any], kind: int, mode: int
) -> None:
    for uid in (0, VIEWER, OTHER):
        denied = seen(Overrides(**overrides), kind, mode, uid, Verdict.DENY)
        assert (denied.mode, denied.uid, denied.gid) == (kind, 0, 0)
        readonly = seen(Overrides(**overrides), kind, mode, uid, Verdict.READONLY)
        assert readonly.mode & 0o222 == 0
