"""Ways to the raw share beside the mount, and the seal over it."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.mounting import Mounted, area, gitguardfs, unmount, until
from tests.support.people import AGENT, as_user
from tests.support.raw_calls import (
    MNT_DETACH,
    MS_BIND,
    MS_PRIVATE,
    MS_REC,
    become_fake_root,
    mount,
    pivot_root,
    umount,
)
from tests.support.repos import MAP, SECRET, check_git_works, make_project, metadata
from tests.support.siege import act

SEAL = "gitguardfs-seal"
OPEN_SHARE = (r"seal|reach|raw",)
"""The warning of a mount that leaves a share open which others can reach."""


@dataclass
class Share:
    """A project in a directory that everybody can reach, as a share in a guest is."""

    place: Path
    """The parent of ``source``, which holds no other mount."""
    source: Path
    view: Path


@pytest.fixture
def share() -> Iterator[Share]:
    with area() as place:
        raw = place / "raw"
        raw.mkdir()
        make_project(raw / "share")
        try:
            yield Share(raw, raw / "share", place / "view")
        finally:
            unmount(raw / "share")


@contextmanager
def killed_later(share: Share) -> Iterator[Mounted]:
    """A sealed mount whose daemon the body kills, so that it does not exit with 0."""
    with pytest.raises(AssertionError, match=r"ended with -9"):
        with gitguardfs(share.source, share.view, "--map", MAP, "--seal") as mounted:
            yield mounted


def seals(path: Path) -> list[str]:
    """The mount options of every seal over ``path``."""
    with open("/proc/self/mountinfo") as lines:
        rows = [line.split() for line in lines]
    return [
        row[5]
        for row in rows
        if row[4] == str(path) and row[row.index("-") + 1 :][:2] == ["ramfs", SEAL]
    ]


# ---------------------------------------------------------------------- ways to the raw share


def by_path(share: Share, pid: int) -> bytes:
    return (share.source / ".git/config").read_bytes()


def by_listing(share: Share, pid: int) -> bytes:
    assert ".git" in os.listdir(share.source)
    return SECRET.encode()


def by_symlink_in_the_mount(share: Share, pid: int) -> bytes:
    (share.view / "way").symlink_to(share.source)  # the guard refuses one that names .git
    return (share.view / "way/.git/config").read_bytes()


def by_root_of_daemon(share: Share, pid: int) -> bytes:
    return Path(f"/proc/{pid}/root{share.source}/.git/config").read_bytes()


def by_directory_of_daemon(share: Share, pid: int) -> bytes:
    relative = os.path.relpath(share.source / ".git/config", "/")
    return Path(f"/proc/{pid}/cwd", *[".."] * 8, relative).read_bytes()


def by_descriptors_of_daemon(share: Share, pid: int) -> bytes:
    for name in os.listdir(f"/proc/{pid}/fd"):
        config = Path(f"/proc/{pid}/fd/{name}/.git/config")
        if config.exists():
            return config.read_bytes()
    raise OSError(errno.ENOENT, "no descriptor leads to the share")


def by_unmounting(share: Share, pid: int) -> bytes:
    umount(share.source)
    return (share.source / ".git/config").read_bytes()


def by_detaching(share: Share, pid: int) -> bytes:
    umount(share.source, MNT_DETACH)
    return (share.source / ".git/config").read_bytes()


def by_binding_below(share: Share, pid: int) -> bytes:
    """A bind mount that leaves out what is mounted on top."""
    spot = Path("/mnt")
    mount(str(share.place), spot, flags=MS_BIND)
    return (spot / "share/.git/config").read_bytes()


def by_binding_with_all(share: Share, pid: int) -> bytes:
    spot = Path("/mnt")
    mount(str(share.place), spot, flags=MS_BIND | MS_REC)
    return (spot / "share/.git/config").read_bytes()


def by_binding_and_unmounting(share: Share, pid: int) -> bytes:
    spot = Path("/mnt")
    mount(str(share.place), spot, flags=MS_BIND | MS_REC)
    umount(spot / "share", MNT_DETACH)
    return (spot / "share/.git/config").read_bytes()


def by_moving_the_seal(share: Share, pid: int) -> bytes:
    mount(str(share.source), Path("/mnt"), flags=0x2000)  # MS_MOVE
    return (share.source / ".git/config").read_bytes()


def by_overlay(share: Share, pid: int) -> bytes:
    spot = Path("/mnt")
    mount("overlay", spot, "overlay", data=f"lowerdir={share.place}:/usr/share,userxattr")
    return (spot / "share/.git/config").read_bytes()


def by_writing(share: Share, pid: int) -> bytes:
    (share.source / "planted").write_text("planted")
    return SECRET.encode()


Way = Callable[[Share, int], bytes]
READING: tuple[Way, ...] = (by_path, by_listing, by_symlink_in_the_mount)
BY_DAEMON: tuple[Way, ...] = (by_root_of_daemon, by_directory_of_daemon, by_descriptors_of_daemon)
# Another namespace may not unmount, move or bind without the upper mount: EPERM, EINVAL.
BY_MOUNTS: tuple[Way, ...] = (
    by_unmounting,
    by_detaching,
    by_binding_below,
    by_binding_with_all,
    by_binding_and_unmounting,
    by_moving_the_seal,
    by_overlay,
)
REFUSED = {errno.EACCES, errno.EPERM, errno.EINVAL}


def _reads(way: Way, share: Share, pid: int) -> bool:
    try:
        return SECRET.encode() in way(share, pid)
    except OSError as error:
        if error.errno in REFUSED:
            return False
        raise


def test_the_ways_to_the_raw_share_are_real(share: Share) -> None:
    """Without the seal every path to the share is open."""
    with gitguardfs(
        share.source, share.view, "--map", MAP, "--no-seal", expected=OPEN_SHARE
    ) as mounted:
        for way in (by_path, by_listing, by_symlink_in_the_mount):
            assert as_user(_reads, way, share, mounted.process.pid), way.__name__
        for way in (by_binding_below, by_binding_with_all, by_overlay):
            assert act("fake root", _reads, way, share, mounted.process.pid), way.__name__
        # Root can use the ways through the daemon's /proc.
        for way in (by_root_of_daemon, by_directory_of_daemon, by_descriptors_of_daemon):
            assert act("root", _reads, way, share, mounted.process.pid), way.__name__


@pytest.mark.parametrize("actor", ["agent", "fake root"])
def test_the_seal_closes_the_raw_share(share: Share, actor: str) -> None:
    before = metadata(share.source)
    with gitguardfs(share.source, share.view, "--map", MAP, "--seal") as mounted:
        options = seals(share.source)
        assert len(options) == 1
        assert "ro" in options[0].split(",")
        assert os.lstat(share.source).st_mode & 0o7777 == 0
        assert as_user((share.view / "README.md").read_bytes)
        open_ways = [
            way.__name__
            for way in (*READING, *BY_DAEMON, *BY_MOUNTS, by_writing)
            if act(actor, _reads, way, share, mounted.process.pid)
        ]
        assert open_ways == []
    assert seals(share.source) == []
    (share.source / "way").unlink(missing_ok=True)
    assert metadata(share.source) == before
    check_git_works(share.source)


def test_the_seal_outlives_a_crash_and_a_restart_takes_it_over(share: Share) -> None:
    with killed_later(share) as mounted:
        mounted.process.send_signal(signal.SIGKILL)
        mounted.process.wait()
        assert len(seals(share.source)) == 1
        for actor in ("agent", "root"):
            with pytest.raises(OSError) as dead:
                act(actor, os.listdir, share.view)
            assert dead.value.errno == errno.ENOTCONN
        for way in (*READING[:2], by_unmounting, by_binding_below):
            for actor in ("agent", "fake root"):
                assert not act(actor, _reads, way, share, 1), way.__name__
    assert len(seals(share.source)) == 1
    assert os.listdir(share.source) == []
    with gitguardfs(share.source, share.view, "--map", MAP, "--seal"):
        assert as_user((share.view / "README.md").read_bytes)
        assert len(seals(share.source)) == 1
        assert not as_user(_reads, by_path, share, 1)
    assert seals(share.source) == []
    check_git_works(share.source)


# ------------------------------------------------------- removing the mount point below a view


def _in_an_empty_root(home: Path, act_there: Callable[[int], None]) -> None:
    """Call ``act_there`` with a descriptor of ``home``, where nothing is a mount point."""
    fd = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    become_fake_root()
    mount("none", Path("/"), flags=MS_REC | MS_PRIVATE)
    mount("none", Path("/tmp"), "tmpfs")
    os.mkdir("/tmp/old")
    pivot_root(Path("/tmp"), Path("/tmp/old"))
    umount(Path("/old"), MNT_DETACH)
    act_there(fd)


def _remove(home: Path, name: str) -> None:
    _in_an_empty_root(home, lambda fd: os.rmdir(name, dir_fd=fd))


def _replace(home: Path, name: str) -> None:
    def replace(fd: int) -> None:
        os.mkdir("other", dir_fd=fd)
        os.rename("other", name, src_dir_fd=fd, dst_dir_fd=fd)

    _in_an_empty_root(home, replace)


@pytest.fixture
def at_home(share: Share) -> Share:
    """A view in a directory of the agent's, as in a home."""
    home = share.place.parent / "home"
    (home / "view").mkdir(parents=True)
    os.chown(home, AGENT, AGENT)
    os.chown(home / "view", AGENT, AGENT)
    return Share(share.place, share.source, home / "view")


@pytest.mark.parametrize("take_away", [_remove, _replace])
def test_taking_the_mount_point_away_is_real(
    at_home: Share, take_away: Callable[[Path, str], None]
) -> None:
    with pytest.raises(AssertionError, match=r"ended with 2"):
        with gitguardfs(
            at_home.source, at_home.view, "--map", MAP, "--no-seal", expected=OPEN_SHARE
        ) as mounted:
            as_user(take_away, at_home.view.parent, at_home.view.name)
            until(lambda: not mounted.alive(), "the view is unmounted, and its daemon ends")


@pytest.mark.parametrize("take_away", [_remove, _replace])
def test_the_seal_stays_when_the_mount_point_is_taken_away(
    at_home: Share, take_away: Callable[[Path, str], None]
) -> None:
    with pytest.raises(AssertionError, match=r"ended with 2"):
        with gitguardfs(at_home.source, at_home.view, "--map", MAP, "--seal") as mounted:
            as_user(take_away, at_home.view.parent, at_home.view.name)
            until(lambda: not mounted.alive(), "the view is unmounted, and its daemon ends")
            text = mounted.log.read_text()
    assert "removed or replaced" in text
    assert len(seals(at_home.source)) == 1
    for way in READING[:2]:
        assert not as_user(_reads, way, at_home, 1), way.__name__


def test_a_private_parent_keeps_the_share_closed_without_a_seal() -> None:
    with area() as place:
        (place / "private").mkdir(mode=0o700)
        os.chown(place / "private", 501, 20)
        make_project(place / "private/share")
        share = Share(place / "private", place / "private/share", place / "view")
        with gitguardfs(share.source, share.view, "--map", MAP) as mounted:
            pid = mounted.process.pid
            ways = (*READING, *BY_DAEMON)
            assert [way.__name__ for way in ways if as_user(_reads, way, share, pid)] == []


def test_an_open_share_is_warned_about(share: Share) -> None:
    with gitguardfs(share.source, share.view, "--map", MAP, expected=OPEN_SHARE) as mounted:
        text = mounted.log.read_text()
    assert "warning" in text.lower(), "no warning that others can reach the share"
