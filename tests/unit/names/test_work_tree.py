"""Names in a work tree that git opens without a check of their type."""

from stat import S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFREG, S_IFSOCK

import pytest

from gitguardfs.names.work_tree import OPENED, stops_git

SPECIAL = (S_IFIFO, S_IFSOCK, S_IFCHR, S_IFBLK)
FOLDED = (
    b"head",
    b"HEAD.",
    b"HE\xe2\x80\x8cAD",
    b".GitIgnore",
    b".gitmodules::$DATA",
    b".mailmap ",
)


@pytest.mark.parametrize("name", [*OPENED, *FOLDED])
def test_special_files_stop_git(name: bytes) -> None:
    assert all(stops_git(name, kind) for kind in SPECIAL)


@pytest.mark.parametrize("name", [*OPENED, *FOLDED])
def test_files_and_directories_do_not(name: bytes) -> None:
    assert not any(stops_git(name, kind) for kind in (S_IFREG, S_IFDIR))


@pytest.mark.parametrize("name", [*OPENED, *FOLDED])
def test_git_follows_only_one_symlink(name: bytes) -> None:
    assert stops_git(name, S_IFLNK) is name.lower().startswith(b".gitmodules")


@pytest.mark.parametrize("name", [b"pipe", b"HEADS", b".gitignore.bak", b"gitignore", b"refs"])
def test_other_names_are_free(name: bytes) -> None:
    assert not any(stops_git(name, kind) for kind in (*SPECIAL, S_IFLNK))
