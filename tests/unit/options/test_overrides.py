"""Overrides of attributes beyond the id map; the guard comes last."""

import os
from stat import S_IFBLK, S_IFDIR, S_IFLNK, S_IFREG
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gitguardfs.base.protocol import Attributes, GuestUid, NodeId
from gitguardfs.fs.attributes import AttributeMapper
from gitguardfs.fs.nodes import Node
from gitguardfs.names.rules import Verdict
from gitguardfs.options.idmap import IdMap
from gitguardfs.options.mirror import Mirror
from gitguardfs.options.mount_options import MountOptions
from gitguardfs.options.overrides import AttributeOverrider, DaemonRights, Overrides
from gitguardfs.options.permissions import Perms

ROOT = DaemonRights(0, frozenset({0}), read_only=False)
VIEWER, OTHER = 1000, 1001


def fake_stat(kind: int, mode: int) -> os.stat_result:
    return os.stat_result((kind | mode, 44, 7, 1, 501, 20, 8000, 1.5, 2.5, 3.5))


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
