"""mountinfo: its escapes, and which mount is where."""

import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitguardfs.linux import mountinfo
from gitguardfs.linux.mountinfo import MountInfo

ESCAPED = b" \t\n\\#"
"""The bytes that the kernel writes as octal numbers (mangle in fs/proc_namespace.c)."""


def escape(raw: bytes) -> bytes:
    return b"".join(b"\\%03o" % c if c in ESCAPED else bytes([c]) for c in raw)


def line(
    path: bytes, fstype: bytes = b"ext4", source: bytes = b"/dev/vda", optional: bytes = b""
) -> bytes:
    return b"36 35 98:0 / %s rw,noatime %s- %s %s rw,errors=continue\n" % (
        escape(path), optional, escape(fstype), escape(source),
    )  # fmt: skip


def _mount(path: str, fstype: str, **more: Any) -> MountInfo:
    point = os.fsencode(path)
    return MountInfo(device="0:1", mount_point=point, fstype=fstype, source="", **more)


FIELD = st.binary(min_size=1, max_size=12).filter(lambda raw: b"\0" not in raw)


@given(FIELD, FIELD)
def test_any_path_and_source_come_back(path: bytes, source: bytes) -> None:
    (found,) = mountinfo.parse(line(b"/" + path, source=source))
    assert found.mount_point == b"/" + path
    assert os.fsencode(found.source) == source


def test_a_file_system_type_that_is_no_utf8_is_read() -> None:
    # A user may choose it: fusermount3 -o subtype=...
    (found,) = mountinfo.parse(line(b"/a", fstype=b"fuse.\xff"))
    assert found.fstype.startswith("fuse.")


@pytest.mark.parametrize("optional", [b"", b"shared:1 ", b"master:2 propagate_from:1 unbindable "])
def test_optional_fields_are_passed_over(optional: bytes) -> None:
    (found,) = mountinfo.parse(line(b"/x", b"fuse.gitguardfs", b"/src dir", optional))
    assert found == MountInfo(
        mnt_id=36, parent_id=35, device="98:0", root=b"/", mount_point=b"/x", options="rw,noatime",
        fstype="fuse.gitguardfs", source="/src dir", super_options="rw,errors=continue",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fstype", "options", "owner"),
    [
        (b"fuse.own", b"rw,user_id=1000,group_id=1000", 1000), (b"fuse", b"rw,user_id=0", 0),
        (b"fuseblk", b"user_id=0,blksize=4096", 0), (b"ext4", b"rw,user_id=7", None),
        (b"virtiofs", b"rw", None), (b"fuse.x", b"rw,xuser_id=3", None),
    ],
)  # fmt: skip
def test_who_mounted_a_fuse_file_system(fstype: bytes, options: bytes, owner: int | None) -> None:
    (found,) = mountinfo.parse(b"36 35 0:5 / /x rw - %s own %s\n" % (fstype, options))
    assert found.owner == owner


def test_what_is_on_top_is_what_no_other_one_covers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mount that was put beneath another one is younger, and listed after it."""
    rows = [_mount("/x", kind, mnt_id=number, parent_id=parent) for number, parent, kind in
            ((20, 1, "9p"), (21, 22, "fuse.own"), (22, 20, "tmpfs"))]  # fmt: skip
    monkeypatch.setattr(mountinfo, "listed", lambda: rows)
    monkeypatch.setattr(mountinfo, "number_of", lambda _fd: 21)
    assert mountinfo.top_at("/x") == rows[1]
    assert mountinfo.stack_of(3) == [rows[1], rows[2], rows[0]]
    assert mountinfo.on_top_of(20, "/x") == rows[2]


@pytest.mark.parametrize(
    ("fstype", "local"),
    [
        ("ext4", True), ("xfs", True), ("btrfs", True), ("tmpfs", True), ("zfs", True),
        ("9p", False), ("virtiofs", False), ("nfs", False), ("nfs4", False), ("cifs", False),
        ("smb3", False), ("ceph", False), ("fuse.sshfs", False), ("fuseblk", False),
        ("vboxsf", False), ("prl_fs", False), ("vmhgfs", False), ("fuse.vmhgfs-fuse", False),
        ("glusterfs", False), ("fuse.glusterfs", False), ("orangefs", False), ("overlay", False),
        ("a type of next year", False),
    ],
)  # fmt: skip
def test_local(fstype: str, local: bool) -> None:
    assert _mount("/", fstype).is_local == local


TABLE = [
    (b"/", "rootfs"),
    (b"/", "ext4"),
    (b"/mnt", "9p"),
    (b"/mnt/a", "tmpfs"),
    (b"/mnt/a", "virtiofs"),
    (b"/mnt/a b", "nfs"),
]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"".join(line(path, fstype.encode()) for path, fstype in TABLE)
    monkeypatch.setattr(mountinfo, "listed", lambda: mountinfo.parse(text))


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    ("path", "top"),
    [
        ("/", "ext4"),
        ("/home", None),
        ("/mnt", "9p"),
        ("/mnt/ab", None),
        ("/mnt/a", "virtiofs"),
        ("/mnt/a/c/d", None),
        ("/mnt/a b/c", None),
        ("/mntx", None),
    ],
)
def test_the_last_mount_is_on_top(path: str, top: str | None) -> None:
    found = mountinfo.top_at(path)
    assert (found and found.fstype) == top


def test_a_mount_is_found_by_its_device() -> None:
    proc = mountinfo.of_device(os.stat("/proc").st_dev)
    assert proc is not None and proc.fstype == "proc"
    assert mountinfo.of_device(os.makedev(4095, 1)) is None
