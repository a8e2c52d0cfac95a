"""Reading about a process in /proc."""

from __future__ import annotations

import errno
import os

import pytest

from gitguardfs.linux import mountinfo, processes
from gitguardfs.linux.processes import FdInfo


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"pos:\t0\nflags:\t012400000\nmnt_id:\t29\nino:\t90\n", FdInfo(29, 0o12400000)),
        (b"mnt_id:\t29\nfuse_connection:\t39\n", FdInfo(29, fuse_connection=39)),
        (b"mnt_id:\t29\nfuse_connection:\n", FdInfo(29)),
        (b"mnt_id:\t10\nscm_fds: 3\n", FdInfo(10, scm_fds=3)),
        (b"flags:\t02\nmnt_id:\t0\n", FdInfo(0, 2)),
    ],
)
def test_an_fdinfo_is_read(text: bytes, expected: FdInfo) -> None:
    assert processes.parse_fdinfo(text) == expected


def test_an_fdinfo_without_a_mount_is_an_error() -> None:
    with pytest.raises(OSError) as caught:
        processes.parse_fdinfo(b"pos:\t0\n")
    assert caught.value.errno == errno.EBADF


def test_shared_memory_has_a_mount_of_which_the_number_may_be_0() -> None:
    """0 must not be taken for an answer that is missing: every guard would refuse to start."""
    fd = os.memfd_create("shared")
    try:
        with open(f"/proc/self/fdinfo/{fd}") as file:
            (told,) = [int(line.split()[1]) for line in file if line.startswith("mnt_id:")]
        assert mountinfo.number_of(fd) == told
    finally:
        os.close(fd)


def test_a_descriptor_that_is_closed_is_an_error() -> None:
    fd = os.open("/", os.O_RDONLY)
    os.close(fd)
    with pytest.raises(FileNotFoundError):
        processes.fdinfo(fd)
