"""Reading about a process in /proc."""

import os
from pathlib import Path

import pytest

from gitguardfs.linux import mountinfo, processes


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
        mountinfo.number_of(fd)


def test_the_arguments_of_a_process_are_read(tmp_path: Path) -> None:
    for text, words in (
        (b"a\0b c\0\xff\0", ("a", "b c", "\udcff")),
        (b"a\0\0b", ("a", "", "b")),
        (b"", ()),
    ):
        (tmp_path / "cmdline").write_bytes(text)
        assert processes.arguments_of(str(tmp_path)) == words
