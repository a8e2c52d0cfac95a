"""mountinfo: its escapes, and which mount is where."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitguardfs import mounts
from gitguardfs.mounts import Mount

ESCAPED = b" \t\n\\#"
"""What the kernel writes as an octal number (mangle in fs/proc_namespace.c)."""


def escape(raw: bytes) -> bytes:
    return b"".join(b"\\%03o" % c if c in ESCAPED else bytes([c]) for c in raw)


def line(
    path: bytes, fstype: bytes = b"ext4", source: bytes = b"/dev/vda", optional: bytes = b""
) -> bytes:
    return b"36 35 98:0 / %s rw,noatime %s- %s %s rw,errors=continue\n" % (
        escape(path), optional, escape(fstype), escape(source),
    )  # fmt: skip


FIELD = st.binary(min_size=1, max_size=12).filter(lambda raw: b"\0" not in raw)


@given(FIELD, FIELD)
def test_any_path_and_source_come_back(path: bytes, source: bytes) -> None:
    (found,) = mounts.parse(line(b"/" + path, source=source))
    assert found.path == b"/" + path
    assert os.fsencode(found.source) == source


def test_a_carriage_return_in_a_path_is_no_line_end() -> None:
    (found,) = mounts.parse(line(b"/a\rb"))
    assert found.path == b"/a\rb"


def test_a_file_system_type_that_is_no_utf8_is_read() -> None:
    # A user may choose it: fusermount3 -o subtype=...
    (found,) = mounts.parse(line(b"/a", fstype=b"fuse.\xff"))
    assert found.fstype.startswith("fuse.")


@pytest.mark.parametrize("optional", [b"", b"shared:1 ", b"master:2 propagate_from:1 unbindable "])
def test_optional_fields_are_passed_over(optional: bytes) -> None:
    (found,) = mounts.parse(line(b"/x", b"fuse.gitguardfs", b"/src dir", optional))
    assert found == Mount("98:0", b"/x", "fuse.gitguardfs", "/src dir", number=36)


def test_an_empty_source_is_read() -> None:
    (found,) = mounts.parse(b"1 1 0:5 / /x rw - tmpfs  rw\n")
    assert (found.fstype, found.source) == ("tmpfs", "")


@pytest.mark.parametrize(
    ("fstype", "local"),
    [
        ("ext4", True), ("xfs", True), ("btrfs", True), ("tmpfs", True), ("overlay", True),
        ("9p", False), ("virtiofs", False), ("nfs", False), ("nfs4", False), ("cifs", False),
        ("smb3", False), ("ceph", False), ("fuse.sshfs", False), ("fuseblk", False),
    ],
)  # fmt: skip
def test_local(fstype: str, local: bool) -> None:
    assert Mount("0:1", b"/", fstype, "").is_local == local


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
    monkeypatch.setattr(mounts, "listed", lambda: mounts.parse(text))


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
    found = mounts.top_at(path)
    assert (found and found.fstype) == top


def test_a_mount_is_found_by_its_device() -> None:
    proc = mounts.of_device(os.stat("/proc").st_dev)
    assert proc is not None and proc.fstype == "proc"
    assert mounts.of_device(os.makedev(4095, 1)) is None
