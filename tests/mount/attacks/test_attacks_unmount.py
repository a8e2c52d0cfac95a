"""Attempts of users to remove root's view or seal by FUSE mounts of their own."""

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gitguardfs.base.errors import UserError, os_error
from gitguardfs.linux import mountinfo, syscalls
from gitguardfs.mounting import seal
from tests.support.mounting import (
    LIMIT,
    Mounted,
    area,
    command,
    gitguardfs,
    run_to_end,
    unmount,
    until,
)
from tests.support.own_mounts import (
    AS_AGENT,
    exchange_mount_points,
    own_mount,
    paused_command,
    race_for,
    racing_for,
    unmount_own,
)
from tests.support.people import AGENT, as_user
from tests.support.repos import MAP

RACE_LIMIT = 300.0
"""Seconds; on an idle machine the race is won within one second."""
EXCHANGE_LIMIT = 100.0
"""Seconds; on an idle machine the race is won within some seconds."""


@pytest.fixture
def here() -> Iterator[Path]:
    """A share whose root has the agent's uid, and the agent's directory for the view."""
    with area() as path:
        for name in ("raw/share/.git", "home/view"):
            (path / name).mkdir(parents=True)
        (path / "raw/share/.git/config").write_text("secret")
        for name in ("raw/share", "raw/share/.git", "home/view"):
            os.chown(path / name, AGENT, AGENT)
        try:
            yield path
        finally:
            unmount(path / "home/view")
            unmount(path / "raw/share")


def _stack(path: Path) -> list[mountinfo.MountInfo]:
    """Return the mounts at ``path``, the uppermost first."""
    fd = os.open(path, os.O_PATH)
    try:
        return [mount for mount in mountinfo.stack_of(fd) if mount.mount_point == bytes(path)]
    finally:
        os.close(fd)


def _is_open(share: Path) -> bool:
    """Return whether the agent can read the raw share."""
    try:
        return bool(as_user((share / ".git/config").read_text) == "secret")
    except OSError:
        return False


def _unmount_twice(path: Path) -> None:
    for _ in range(2):
        unmount_own(path).wait(LIMIT)


# ------------------------------------------------------------ Unmounting root's view


@contextmanager
def _losing_its_view(here: Path, *options: str) -> Iterator[Mounted]:
    with pytest.raises(AssertionError, match=r"ended with 2"):
        with gitguardfs(
            here / "raw/share", here / "home/view", *options, expected=(r"not by root|open to",)
        ) as mounted:
            yield mounted


def _is_guarded(path: Path) -> bool:
    return any(
        mount.mount_point == bytes(path) and mount.owner == 0 for mount in mountinfo.listed()
    )


@pytest.mark.every_processor
def test_a_view_that_users_take_away_leaves_the_seal(here: Path) -> None:
    with _losing_its_view(here, "--seal") as mounted:
        race_for(mounted.path, RACE_LIMIT)
        assert not _is_guarded(mounted.path)
        assert mounted.process.wait(LIMIT) == 2
        text = mounted.log.read_text()
    assert "not by root" in text and "vm-mount" in text and f"umount {here}/raw/share" in text
    assert [seal.is_seal(mount) for mount in _stack(here / "raw/share")] == [True]
    assert not _is_open(here / "raw/share")


@pytest.mark.every_processor
def test_exchanged_mount_points_leave_the_seal(here: Path) -> None:
    """The name leads to root's view after fusermount3 has seen the agent's mount there."""
    home = here / "home"
    for name in ("", "own", "new"):
        (home / name).mkdir(exist_ok=True)
        os.chown(home / name, AGENT, AGENT)
    with _losing_its_view(here, "--seal") as mounted:
        with racing_for(mounted.path, home / "own") as end:
            as_user(
                exchange_mount_points,
                home,
                end,
                EXCHANGE_LIMIT,
                fake_root=True,
                mount_namespace=True,
            )
        assert mounted.process.wait(LIMIT) == 2
    assert [seal.is_seal(mount) for mount in _stack(here / "raw/share")] == [True]
    assert not _is_open(here / "raw/share")
    for name in ("view", "own"):
        unmount(home / name)


def test_umount_without_the_helper_leaves_the_seal(here: Path) -> None:
    with _losing_its_view(here, "--seal") as mounted:
        subprocess.run(["umount", "-i", mounted.path], check=True)
        assert mounted.process.wait(LIMIT) == 2
    assert [seal.is_seal(mount) for mount in _stack(here / "raw/share")] == [True]
    subprocess.run(["umount", here / "raw/share"], check=True)
    assert (here / "raw/share/.git/config").read_text() == "secret"


# ------------------------------------------------------ Users' mounts from before the start


@pytest.mark.parametrize("served", [True, False], ids=["served", "dead"])
@pytest.mark.parametrize("place", ["raw/share", "home/view"])
def test_a_mount_of_a_user_s_is_refused_and_left(here: Path, place: str, served: bool) -> None:
    with own_mount(here / place, "subtype=gitguardfs", served):
        done = run_to_end(here / "raw/share", here / "home/view", "--seal", "--map", MAP)
        assert done.returncode == 32, done.stderr
        assert f"user {AGENT}" in done.stderr and f"umount -i -l {here / place}" in done.stderr
        assert "Traceback" not in done.stderr
        assert [mount.owner for mount in _stack(here / place)][:1] == [AGENT]
        _unmount_twice(here / place)
        assert [seal.is_seal(mount) for mount in _stack(here / "raw/share")] == [True]
        assert not _is_open(here / "raw/share")


@pytest.mark.parametrize("place", ["raw/share", "home/view"])
def test_so_is_one_below_a_mount_of_root_s(here: Path, place: str) -> None:
    """It entitles its user to fusermount3, which unmounts what is on top."""
    (here / "elsewhere").mkdir()
    with own_mount(here / place):
        subprocess.run(["mount", "--bind", here / "elsewhere", here / place], check=True)
        try:
            done = run_to_end(here / "raw/share", here / "home/view", "--no-seal", "--map", MAP)
        finally:
            subprocess.run(["umount", here / place], check=True)
        assert done.returncode == 32, done.stderr
        assert f"user {AGENT}" in done.stderr


def test_no_seal_is_claimed_that_would_not_hold(here: Path) -> None:
    """A seal above two mounts of the agent's would be unmounted together with them."""
    (here / "elsewhere").mkdir()
    os.chown(here / "elsewhere", AGENT, AGENT)
    with own_mount(here / "elsewhere"), own_mount(here / "raw/share"):
        subprocess.run(
            ["mount", "--bind", here / "elsewhere", here / "raw/share"], check=True
        )  # stands in for a mount that the agent's own server lets it make
        done = run_to_end(here / "raw/share", here / "home/view", "--seal", "--map", MAP)
        assert done.returncode == 32, done.stderr
        assert "is sealed" not in done.stderr
        assert f"{here / 'raw/share'} is NOT sealed" in done.stderr
        assert not any(map(seal.is_seal, _stack(here / "raw/share")))
        subprocess.run(["umount", "-l", here / "elsewhere"], check=True)


def test_before_linux_6_5_it_is_said_that_no_seal_is_there(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without MOVE_MOUNT_BENEATH no seal can be put between a user's mount and the share."""
    attach = syscalls.attach_tree

    def attach_above(tree: int, target: int, beneath: bool = False) -> None:
        if beneath:
            raise os_error(errno.EINVAL)
        attach(tree, target)

    monkeypatch.setattr(syscalls, "attach_tree", attach_above)
    share = here / "raw/share"
    with own_mount(share):
        said = str(seal.fail_closed(str(share), True, UserError("wrong")))
        assert f"{share} is NOT sealed" in said and "6.5" in said
        assert f"umount -i -l {share}" in said
        unmount_own(share).wait(LIMIT)
        assert _is_open(share)
    assert "is sealed until" in str(seal.fail_closed(str(share), True, UserError("wrong")))
    assert not _is_open(share)


@contextmanager
def _allow_other(here: Path) -> Iterator[None]:
    """Users may let all others use their FUSE file systems."""
    conf = here / "fuse.conf"
    conf.write_text("user_allow_other\n")
    subprocess.run(["mount", "-n", "--bind", conf, "/etc/fuse.conf"], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-n", "-i", "/etc/fuse.conf"], check=True)


@contextmanager
def _shared_by_its_owner(here: Path, place: Path) -> Iterator[None]:
    """A file system of the agent's that all users may use, as sshfs or gocryptfs can be."""
    (here / "plain").mkdir()
    (here / "plain/file").write_text("text")
    os.chown(here / "plain", AGENT, AGENT)
    with _allow_other(here):
        subprocess.run(
            ["bindfs", "-o", "allow_other,nonempty", here / "plain", place], check=True, **AS_AGENT
        )
        yield
        subprocess.run(["umount", "-i", "-l", place], check=True)


@pytest.mark.parametrize("place", ["raw/share", "home/view", "home"])
def test_one_that_answers_nothing_stops_nobody(here: Path, place: str) -> None:
    """Not even SIGKILL ends a process that waits for it: the start would hang, unsealed."""
    os.chown(here / place, AGENT, AGENT)
    arguments = (here / "raw/share", here / "home/view", "--seal", "--map", MAP)
    with _allow_other(here), own_mount(here / place, "subtype=own,allow_other"):
        with subprocess.Popen(command(*arguments), stderr=subprocess.PIPE, text=True) as process:
            try:
                code = process.wait(LIMIT)
            except subprocess.TimeoutExpired:
                subprocess.run(["umount", "-i", "-f", here / place], check=False)
                raise
            assert process.stderr is not None
            said = process.stderr.read()
        assert code == 32, said
        assert f"user {AGENT}" in said and f"umount -i -l {here / place}" in said
        assert "NOT sealed" not in said
        _unmount_twice(here / place)
        assert not _is_open(here / "raw/share")


def test_a_mount_that_root_can_use_is_refused_unless_its_owner_is_named(here: Path) -> None:
    share, view = here / "raw/share", here / "home/view"
    with _shared_by_its_owner(here, share):
        for options in ((), ("--source-owner", "2000")):
            done = run_to_end(share, view, *options)
            assert done.returncode == 32, done.stderr
            assert f"user {AGENT}" in done.stderr
        done = run_to_end(share, view, "--source-owner", str(AGENT))
        assert done.returncode == 0, done.stderr
        assert (view / "file").read_text() == "text"
        subprocess.run(["umount", view], check=True)


def test_a_named_owner_s_is_guarded_again_below_the_seal_of_a_crash(here: Path) -> None:
    share, view = here / "raw/share", here / "home/view"
    options = ("--seal", "--source-owner", str(AGENT))
    with _shared_by_its_owner(here, share):
        with pytest.raises(AssertionError, match=r"ended with -9"):
            with gitguardfs(share, view, *options) as mounted:
                mounted.process.kill()
                mounted.process.wait()
        done = run_to_end(share, view, *options)
        assert done.returncode == 0, done.stderr
        assert (view / "file").read_text() == "text"
        assert seal.is_sealed(str(share))
        unmount(view)
        subprocess.run(["umount", "-i", "-l", share], check=True)


def test_at_the_mount_point_it_is_refused_whoever_is_named(here: Path) -> None:
    with _shared_by_its_owner(here, here / "home/view"):
        done = run_to_end(here / "raw/share", here / "home/view", "--source-owner", str(AGENT))
        assert done.returncode == 32, done.stderr
        assert f"user {AGENT}" in done.stderr


# -------------------------------------------------- Mounts between the checks and the mount


@contextmanager
def _paused(here: Path, after: str) -> Iterator[subprocess.Popen[str]]:
    """Start gitguardfs, which waits for the file ``gate`` after a call of one of its functions."""
    arguments = (here / "raw/share", here / "home/view", "--seal", "--map", MAP)
    process = subprocess.Popen(
        paused_command(here / "gate", *arguments, after=f"gitguardfs.{after}"),
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        until((here / "gate.reached").exists, f"{after} has returned")
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("place", ["raw/share", "home/view"])
def test_a_mount_that_came_between_undoes_all(here: Path, place: str) -> None:
    with _paused(here, "mounting.preflight.check_paths") as process, own_mount(here / place):
        (here / "gate").touch()
        _, said = process.communicate(timeout=LIMIT)
        assert process.returncode == 32, said
        assert "Traceback" not in said
        assert not _is_guarded(here / "home/view")
        assert [mount.owner for mount in _stack(here / place)][:1] == [AGENT]
        _unmount_twice(here / place)
        assert [seal.is_seal(mount) for mount in _stack(here / "raw/share")] == [True]
        assert not _is_open(here / "raw/share")


def test_a_mount_over_the_seal_undoes_all(here: Path) -> None:
    """A fusermount3 that was started below, before the seal was on, can mount over it."""
    share = here / "raw/share"
    with _paused(here, "mounting.closed_places.close") as process:
        subprocess.run(["mount", "-t", "tmpfs", "own", share], check=True)  # stands in for it
        (here / "gate").touch()
        _, said = process.communicate(timeout=LIMIT)
    assert process.returncode == 32, said
    assert not _is_guarded(here / "home/view")
    assert not _is_open(share)
