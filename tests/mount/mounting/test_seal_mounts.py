"""The seal's mounts, one by one, without a daemon."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gitguardfs.base.errors import Exit, UserError, os_error
from gitguardfs.linux import mountinfo
from gitguardfs.mounting import fstab_check, run, seal, utab
from gitguardfs.options.mount_options import MountOptions
from gitguardfs.sessions.base import SessionKind
from gitguardfs.sessions.pyfuse3_session.session import Pyfuse3Session
from tests.support.mounting import LIMIT, area, unmount


@pytest.fixture
def here() -> Iterator[Path]:
    with area() as path:
        for name in ("a/share", "b/share", "view", "victim"):
            (path / name).mkdir(parents=True)
        try:
            yield path
        finally:
            for name in ("a/share", "b/share", "c/share", "view", "victim"):
                unmount(path / name)


def _sealed(path: Path) -> seal.Seal:
    fd = os.open(path, os.O_PATH)
    try:
        return seal.Seal(str(path), fd)
    finally:
        os.close(fd)


def _is_sealed(path: Path) -> bool:
    return seal.is_sealed(str(path))


def test_the_very_seal_is_removed_wherever_its_path_leads(here: Path) -> None:
    first, second = _sealed(here / "a/share"), _sealed(here / "b/share")
    (here / "a").rename(here / "c")
    (here / "b").rename(here / "a")
    first.remove()
    assert not _is_sealed(here / "c/share")
    assert _is_sealed(here / "a/share")
    second.remove()


def test_a_seal_above_another_mount_is_undone(here: Path) -> None:
    share = here / "a/share"
    fd = os.open(share, os.O_PATH)
    subprocess.run(["mount", "-i", "-t", "tmpfs", "own", share], check=True)
    with pytest.raises(OSError) as error:
        seal.Seal(str(share), fd)
    os.close(fd)
    assert error.value.errno == errno.ESTALE
    assert [m.source for m in mountinfo.listed() if m.mount_point == bytes(share)] == ["own"]


def test_what_is_mounted_over_a_seal_is_noticed_and_left(here: Path) -> None:
    sealed = _sealed(here / "a/share")
    subprocess.run(["mount", "-i", "-t", "tmpfs", "own", here / "a/share"], check=True)
    with pytest.raises(OSError) as error:
        sealed.check_position()
    assert error.value.errno == errno.ESTALE
    with pytest.raises(OSError):
        sealed.remove()
    found = [m.source for m in mountinfo.listed() if m.mount_point == bytes(here / "a/share")]
    assert sorted(found) == sorted([seal.NAME, "own"])


def _types(path: Path) -> list[tuple[str, bool]]:
    """Types and _netdev of what is mounted there, as libmount tells systemd."""
    command = ["findmnt", "-m", "-J", "-o", "FSTYPE,OPTIONS", "--mountpoint", path]
    found = json.loads(subprocess.check_output(command))["filesystems"]
    return sorted((m["fstype"], "_netdev" in m["options"].split(",")) for m in found)


@pytest.fixture(params=[True, False], ids=["remote", "local"])
def share(here: Path, umount_helper: None, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A share that is mounted with _netdev, or without."""
    path = here / ("b/a remote one" if request.param else "b/a local one")
    path.mkdir()
    options = "_netdev,nofail" if request.param else "nofail"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "share", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", "-R", path], check=True)


def test_systemd_takes_a_seal_for_a_remote_mount_if_the_share_is_one(share: Path) -> None:
    """Else the mount's order changes when the seal goes, and the machine does not shut down."""
    is_remote = "remote" in share.name
    escaped = str(share).replace(" ", r"\040")
    entry = f"SRC={seal.NAME} TARGET={escaped} "
    for _ in range(3):
        sealed = _sealed(share)
        assert _types(share) == [("ramfs", is_remote), ("tmpfs", is_remote)]
        assert Path(utab.PATH).read_text().count(entry) == is_remote
        sealed.remove()
        assert _types(share) == [("tmpfs", is_remote)]


def test_a_seal_on_a_directory_of_a_share_has_no_entry(share: Path) -> None:
    (share / "project").mkdir()
    sealed = _sealed(share / "project")
    assert _types(share / "project") == [("ramfs", False)]
    assert _types(share) == [("tmpfs", "remote" in share.name)]
    sealed.remove()


def test_a_seal_that_a_daemon_holds_is_nobody_else_s(here: Path) -> None:
    sealed = _sealed(here / "a/share")
    with pytest.raises(OSError) as error:
        _sealed(here / "a/share")
    assert error.value.errno == errno.EWOULDBLOCK
    assert _is_sealed(here / "a/share")
    sealed.keep()
    _sealed(here / "a/share").remove()
    assert not _is_sealed(here / "a/share")


@pytest.mark.parametrize(("wanted", "is_closed"), [(False, False), (None, True), (True, True)])
def test_a_share_is_closed_where_no_guard_comes_about_unless_root_said_no(
    here: Path, monkeypatch: pytest.MonkeyPatch, wanted: bool | None, is_closed: bool
) -> None:
    monkeypatch.setattr(seal, "is_share", lambda _fd: True)
    error = seal.fail_closed(str(here / "a/share"), wanted, UserError("no such user"))
    assert _is_sealed(here / "a/share") == is_closed
    assert ("is sealed" in str(error)) == is_closed


@pytest.mark.parametrize("wanted", [True, False])
def test_any_error_before_a_guard_comes_about_closes_the_share(
    here: Path, monkeypatch: pytest.MonkeyPatch, wanted: bool
) -> None:
    """For example an fstab that cannot be read."""

    def fail(*_: object) -> None:
        raise os_error(errno.EIO, "/etc/fstab")

    monkeypatch.setattr(fstab_check, "check_mounted", fail)
    options = MountOptions(str(here / "a/share"), str(here / "view"), seal=wanted)
    with pytest.raises(UserError, match="/etc/fstab: Input/output error") as error:
        run.run(options, None, False, SessionKind(Pyfuse3Session))
    assert error.value.code == Exit.SYSTEM
    assert _is_sealed(here / "a/share") == ("is sealed" in str(error.value)) == wanted


_BENDING = """
import os, sys
from gitguardfs.mounting import preflight
from gitguardfs.commands.gitguardfs import main
victim = sys.argv.pop(1)
mountpoint = sys.argv[2]
def bending(_):
    os.rmdir(mountpoint)
    os.symlink(victim, mountpoint)
preflight._check_system = bending  # after the first check
main()
"""


def test_the_mount_point_is_compared_again_with_what_was_written_down(here: Path) -> None:
    """At the first check it was another directory."""
    places = (here / "a/share", here / "view", "-o", f"mountpoint={here}/view")
    done = subprocess.run(
        [sys.executable, "-c", _BENDING, here / "victim", *places],
        capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    assert done.returncode == 32, done.stderr
    assert f"must be {here}/view, but {here}/victim was given" in done.stderr
    assert not os.path.ismount(here / "victim")
