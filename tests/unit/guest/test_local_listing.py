"""Names and paths of the guest's own directories in their store, without a mount."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitguardfs.base.findings import Severity, Status
from gitguardfs.doctor import local_checks
from gitguardfs.guest import local_listing as listing
from gitguardfs.guest.local_listing import Own, Share, State
from gitguardfs.linux.mountinfo import MountInfo
from gitguardfs.local import store

SHARE = Share("projects", "/home/agent/src", "/var/lib/gitguardfs/local/projects", -1, -1, -1)
NAMES = st.binary(min_size=1, max_size=30).filter(lambda name: b"\0" not in name).map(os.fsdecode)


@given(NAMES)
def test_the_name_of_a_share_comes_back_from_that_of_its_directory(share: str) -> None:
    name = store.directory_name(share)
    assert store.share_of(name) == share
    assert "/" not in name and name not in (".", "..") and not name.startswith(".")


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("app/node_modules", (b"app", b"node_modules")),
        ("/home/agent/src/app/", (b"app",)),
        ("app/../b//./c", (b"b", b"c")),
        (".", ()),
        ("/home/agent/src", ()),
        ("../other", None),
        ("/home/agent/src2/app", None),
        ("/", None),
        ("\udcff\n", (b"\xff\n",)),
    ],
)
def test_a_path_of_the_view_is_one_in_the_share(path: str, names: tuple[bytes] | None) -> None:
    assert listing.path_in(SHARE, path) == names


def test_names_that_begin_alike_are_not_below_one_another() -> None:
    own = Own(SHARE, (b"app",), b"node_modules", 0.0, State.UNKNOWN)
    for path in ((), (b"app",), (b"app", b"node_modules")):
        assert own.is_at_or_below(path)
    for path in ((b"ap",), (b"app", b"node"), (b"app", b"node_modules", b"x"), (b"node_modules",)):
        assert not own.is_at_or_below(path)


def test_options_say_which_store_a_daemon_uses() -> None:
    assert listing.store_of(["git=deny"]) is None
    assert listing.store_of(["local-store=/x"]) is None
    assert listing.store_of(["local=deps"]) == "/var/lib/gitguardfs/local"
    assert listing.store_of(["local=a,b", "local-store=/x y"]) == "/x y"


@pytest.mark.parametrize(
    ("fstype", "is_local", "severity", "status"),
    [
        ("ext4", True, None, Status.OK),
        ("overlay", True, None, Status.OK),
        ("9p", False, Severity.HIGH, Status.FINDING),
        ("virtiofs", False, Severity.HIGH, Status.FINDING),
        ("nfs4", False, Severity.MEDIUM, Status.FINDING),
        ("tmpfs", True, None, Status.NOTE),
    ],
)
def test_the_doctor_judges_the_disk(
    fstype: str, is_local: bool, severity: Severity | None, status: Status
) -> None:
    mount = MountInfo(device="0:9", mount_point=b"/", fstype=fstype, source="x")
    row = local_checks.judge_disk("/var/lib/gitguardfs/local", mount, is_local)
    assert (row.severity, row.status) == (severity, status)
