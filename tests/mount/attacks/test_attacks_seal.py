"""Ways to the raw share beside the mount, and the seal over it."""

import errno
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.mounting import Mounted, area, gitguardfs, unmount, until
from tests.support.people import AGENT, as_user
from tests.support.raw_calls import (
    MNT_DETACH,
    MS_PRIVATE,
    MS_REC,
    become_fake_root,
    mount,
    pivot_root,
    umount,
)
from tests.support.raw_share import BINDING, BY_DAEMON, READING, WAYS, Share, Way, by_writing, opens
from tests.support.repos import MAP, check_git_works, make_project, metadata
from tests.support.siege import act

SEAL = "gitguardfs-seal"
OPEN_SHARE = (r"seal|reach|raw",)
"""The warning of a mount that leaves a share open which others can reach."""


@pytest.fixture
def share() -> Iterator[Share]:
    with area() as place:
        raw = place / "raw"
        raw.mkdir()
        make_project(raw / "share")
        try:
            yield Share(raw / "share", place / "view")
        finally:
            unmount(raw / "share")


@contextmanager
def killed_later(share: Share) -> Iterator[Mounted]:
    """A sealed mount whose daemon the body kills, so that it does not exit with 0."""
    with pytest.raises(AssertionError, match=r"ended with -9"):
        with gitguardfs(share.raw, share.view, "--map", MAP, "--seal") as mounted:
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


def _open_ways(ways: Sequence[Way], share: Share, actor: str) -> list[Way]:
    return [way for way in ways if act(actor, opens, way, share)]


def test_the_ways_to_the_raw_share_are_real(share: Share) -> None:
    """Without the seal every path to the share is open."""
    with gitguardfs(
        share.raw, share.view, "--map", MAP, "--no-seal", expected=OPEN_SHARE
    ) as mounted:
        share.daemons = (mounted.process.pid,)
        assert _open_ways((*READING, by_writing), share, "agent") == [*READING]
        assert _open_ways(BINDING, share, "fake root") == [*BINDING]
        # Root can use the ways through the daemon's /proc.
        assert _open_ways((*BY_DAEMON, by_writing), share, "root") == [*BY_DAEMON, by_writing]


@pytest.mark.parametrize("actor", ["agent", "fake root"])
def test_the_seal_closes_the_raw_share(share: Share, actor: str) -> None:
    before = metadata(share.raw)
    with gitguardfs(share.raw, share.view, "--map", MAP, "--seal") as mounted:
        options = seals(share.raw)
        assert len(options) == 1
        assert "ro" in options[0].split(",")
        assert os.lstat(share.raw).st_mode & 0o7777 == 0
        assert as_user((share.view / "README.md").read_bytes)
        share.daemons = (mounted.process.pid,)
        assert _open_ways(WAYS, share, actor) == []
    assert seals(share.raw) == []
    assert metadata(share.raw) == before
    check_git_works(share.raw)


def test_the_seal_outlives_a_crash_and_a_restart_takes_it_over(share: Share) -> None:
    with killed_later(share) as mounted:
        mounted.process.send_signal(signal.SIGKILL)
        mounted.process.wait()
        assert len(seals(share.raw)) == 1
        for actor in ("agent", "root"):
            with pytest.raises(OSError) as dead:
                act(actor, os.listdir, share.view)
            assert dead.value.errno == errno.ENOTCONN
        for actor in ("agent", "fake root"):
            assert _open_ways(WAYS, share, actor) == []
    assert len(seals(share.raw)) == 1
    assert os.listdir(share.raw) == []
    with gitguardfs(share.raw, share.view, "--map", MAP, "--seal"):
        assert as_user((share.view / "README.md").read_bytes)
        assert len(seals(share.raw)) == 1
        assert _open_ways(READING, share, "agent") == []
    assert seals(share.raw) == []
    check_git_works(share.raw)


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
    home = share.view.parent / "home"
    (home / "view").mkdir(parents=True)
    os.chown(home, AGENT, AGENT)
    os.chown(home / "view", AGENT, AGENT)
    return Share(share.raw, home / "view")


@pytest.mark.parametrize("take_away", [_remove, _replace])
def test_taking_the_mount_point_away_is_real(
    at_home: Share, take_away: Callable[[Path, str], None]
) -> None:
    with pytest.raises(AssertionError, match=r"ended with 2"):
        with gitguardfs(
            at_home.raw, at_home.view, "--map", MAP, "--no-seal", expected=OPEN_SHARE
        ) as mounted:
            as_user(take_away, at_home.view.parent, at_home.view.name)
            until(lambda: not mounted.alive(), "the view is unmounted, and its daemon ends")


@pytest.mark.parametrize("take_away", [_remove, _replace])
def test_the_seal_stays_when_the_mount_point_is_taken_away(
    at_home: Share, take_away: Callable[[Path, str], None]
) -> None:
    with pytest.raises(AssertionError, match=r"ended with 2"):
        with gitguardfs(at_home.raw, at_home.view, "--map", MAP, "--seal") as mounted:
            as_user(take_away, at_home.view.parent, at_home.view.name)
            until(lambda: not mounted.alive(), "the view is unmounted, and its daemon ends")
            text = mounted.log.read_text()
    assert "removed or replaced" in text
    assert len(seals(at_home.raw)) == 1
    assert _open_ways(READING, at_home, "agent") == []


def test_a_private_parent_keeps_the_share_closed_without_a_seal() -> None:
    with area() as place:
        (place / "private").mkdir(mode=0o700)
        os.chown(place / "private", 501, 20)
        make_project(place / "private/share")
        share = Share(place / "private/share", place / "view")
        with gitguardfs(share.raw, share.view, "--map", MAP) as mounted:
            share.daemons = (mounted.process.pid,)
            assert _open_ways((*READING, *BY_DAEMON), share, "agent") == []


def test_an_open_share_is_warned_about(share: Share) -> None:
    with gitguardfs(share.raw, share.view, "--map", MAP, expected=OPEN_SHARE) as mounted:
        text = mounted.log.read_text()
    assert "warning" in text.lower(), "no warning that others can reach the share"
