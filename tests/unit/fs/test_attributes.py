"""The attributes of an object that the guest sees."""

from __future__ import annotations

import os
from stat import S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFMT, S_IFREG, S_IFSOCK, S_IMODE

import pytest

from gitguardfs.base.protocol import Attributes, GuestUid, NodeId
from gitguardfs.fs.attributes import AttributeMapper, change_key
from gitguardfs.fs.nodes import ROOT_ID, Node
from gitguardfs.names.rules import Verdict
from gitguardfs.options.idmap import IdMap
from gitguardfs.options.mount_options import MountOptions

KINDS = [S_IFREG, S_IFDIR, S_IFLNK, S_IFIFO, S_IFSOCK, S_IFCHR, S_IFBLK]
MAP = IdMap([(501, 1000)], [(20, 1001)])


def fake_stat(kind: int, mode: int, uid: int = 501, gid: int = 20) -> os.stat_result:
    times = (1.5, 2.5, 3.5)
    exact = {
        "st_atime_ns": 1_500_000_001, "st_mtime_ns": 2_500_000_002, "st_ctime_ns": 3_500_000_003,
        "st_blksize": 4096, "st_blocks": 16, "st_rdev": 0,
    }  # fmt: skip
    return os.stat_result((kind | mode, 44, 7, 1, uid, gid, 8000, *times), exact)


def reported_by(
    verdict: Verdict, st: os.stat_result, node_id: int = 44, *, allow_suid: bool = False
) -> Attributes:
    node = Node(NodeId(node_id), st, verdict, "" if verdict is Verdict.ALLOW else "git")
    reported = mapper(allow_suid).report(node, st, GuestUid(1000)).attributes
    assert reported is not None
    return reported


def mapper(allow_suid: bool = False) -> AttributeMapper:
    return AttributeMapper(MAP, MountOptions("", "", allow_suid=allow_suid))


@pytest.mark.parametrize("kind", KINDS)
def test_an_open_object_is_shown_with_mapped_owners(kind: int) -> None:
    st = fake_stat(kind, 0o755)
    seen = reported_by(Verdict.ALLOW, st)
    assert seen == Attributes(
        44, kind | 0o755, 1, 1000, 1001, st.st_rdev, 8000, st.st_blocks, st.st_blksize,
        st.st_atime_ns, st.st_mtime_ns, st.st_ctime_ns,
    )  # fmt: skip


@pytest.mark.parametrize("verdict", [Verdict.DENY, Verdict.HIDE])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("allow_suid", [False, True])
def test_a_denied_object_shows_its_type_and_nobody_s_permissions(
    kind: int, verdict: Verdict, allow_suid: bool
) -> None:
    seen = reported_by(verdict, fake_stat(kind, 0o7777), allow_suid=allow_suid)
    assert (S_IFMT(seen.mode), S_IMODE(seen.mode), seen.uid, seen.gid) == (kind, 0, 0, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_readonly_object_keeps_its_owner_and_loses_the_write_bits(kind: int) -> None:
    seen = reported_by(Verdict.READONLY, fake_stat(kind, 0o777))
    assert (seen.mode, seen.uid, seen.gid) == (kind | 0o555, 1000, 1001)


@pytest.mark.parametrize("bits", [0o4000, 0o2000, 0o6000, 0o7000])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verdict", [Verdict.ALLOW, Verdict.READONLY])
def test_set_id_bits_go_from_all_but_directories(kind: int, bits: int, verdict: Verdict) -> None:
    st = fake_stat(kind, bits | 0o555)
    kept = bits if kind == S_IFDIR else bits & 0o1000
    assert S_IMODE(reported_by(verdict, st).mode) == kept | 0o555
    assert S_IMODE(reported_by(verdict, st, allow_suid=True).mode) == bits | 0o555
    assert mapper().mode_for_source(kind, bits | 0o555) == kept | 0o555
    assert mapper(True).mode_for_source(kind, bits | 0o555) == bits | 0o555
    assert mapper().drops_setid(kind | bits) == (kind != S_IFDIR)
    assert not mapper(True).drops_setid(kind | bits)


def test_no_type_bits_come_in() -> None:
    assert mapper().mode_for_source(S_IFREG, S_IFREG | 0o644) == 0o644


def test_the_root_shows_its_inode_number_and_others_their_node() -> None:
    st = fake_stat(S_IFDIR, 0o755)
    assert reported_by(Verdict.ALLOW, st, ROOT_ID).ino == 44
    assert reported_by(Verdict.ALLOW, st, 1 << 62).ino == 1 << 62


def test_what_the_kernel_was_told_is_noted() -> None:
    st = fake_stat(S_IFREG, 0o644)
    node = Node(44, st, Verdict.ALLOW, "")
    mapper().report(node, st, 1000)
    assert (node.reported, node.size) == (change_key(st), 8000)


@pytest.mark.parametrize("field", ["st_size", "st_mtime_ns", "st_ctime_ns"])
def test_the_change_key_tells_size_and_times(field: str) -> None:
    class Other:
        st_size, st_mtime_ns, st_ctime_ns = 8000, 2_500_000_002, 3_500_000_003

    other = Other()
    setattr(other, field, getattr(other, field) + 1)
    assert change_key(other) != change_key(Other())  # type: ignore[arg-type]
