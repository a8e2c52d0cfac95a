"""vm-mount as root on paths that the agent changes meanwhile: it is never redirected."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from gitguardfs.base.errors import UserError
from gitguardfs.guest import mountpoint
from gitguardfs.guest.changes import Changes
from gitguardfs.linux import mountinfo as mounts
from gitguardfs.linux import safe_open
from gitguardfs.linux.mountinfo import MountInfo
from gitguardfs.mounting import guards, seal
from gitguardfs.mounting import unmount as unmounting
from tests.support.bending import exchanged_in_a_loop
from tests.support.mounting import area, gitguardfs, unmount, until
from tests.support.people import AGENT
from tests.support.vm_world import World, is_guarded, mountinfo


@contextmanager
def bent(world: World, place: Path) -> Iterator[Path]:
    """``place`` alternates: the agent's directory, or a symlink to a directory of the system."""
    victim = world.area / "sbin"
    victim.mkdir(exist_ok=True)
    if not place.exists():
        place.mkdir()
        os.chown(place, AGENT, AGENT)
    link = place.with_name("link")
    link.symlink_to(victim)
    os.chown(link, AGENT, AGENT, follow_symlinks=False)
    with exchanged_in_a_loop(place, link):
        yield victim


@pytest.fixture
def two_mounts() -> Iterator[tuple[Path, Path]]:
    """Two file systems in memory, in a directory of their own."""
    with area() as here:
        places = here / "view", here / "victim"
        for place in places:
            place.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", place.name, place], check=True)
        yield places
        for place in here.iterdir():
            unmount(place)


def mount_at(path: Path) -> MountInfo:
    (found,) = [mount for mount in mounts.listed() if mount.mount_point == os.fsencode(path)]
    return found


def test_a_symlink_in_the_place_of_a_mount_point_leads_no_unmount_elsewhere(
    two_mounts: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mount disappears at the last moment, and the agent puts a symlink there."""
    view, victim = two_mounts
    number_of = mounts.number_of

    def and_then_bend(fd: int) -> int:
        number = number_of(fd)
        if safe_open.path_of(fd) != str(view):
            return number  # a directory on the way there
        subprocess.run(["umount", "-l", view], check=True)
        view.rmdir()
        view.symlink_to(victim)
        return number

    gone = mount_at(view)
    monkeypatch.setattr(mounts, "number_of", and_then_bend)
    with pytest.raises(UserError, match="umount"):
        unmounting.unmount(gone)
    assert os.path.ismount(victim)


def test_a_share_that_is_used_is_sealed_again(two_mounts: tuple[Path, Path]) -> None:
    share, _ = two_mounts
    mount = mount_at(share)
    with subprocess.Popen(["sleep", "60"], cwd=share) as busy:
        try:
            fd = os.open(share, os.O_PATH)
            seal.Seal(str(share), fd).keep()
            os.close(fd)
            with pytest.raises(UserError, match="busy"):
                unmounting.unmount_share(mount)
            assert seal.is_sealed(str(share))
        finally:
            busy.kill()
    unmounting.unmount_share(mount)
    assert not os.path.ismount(share)


def test_who_uses_a_copy_of_the_view_in_another_namespace_is_named(world: World) -> None:
    world.install(persist=False)
    command = ["unshare", "-Urm", "sh", "-c", 'cd "$0" && echo ready && exec sleep 120', world.view]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, user=AGENT, group=AGENT, extra_groups=[]
    ) as user:
        try:
            assert user.stdout is not None and user.stdout.readline() == b"ready\n"
            with pytest.raises(UserError, match=rf"busy \(end these first: sleep \({user.pid}\)"):
                world.remove()
            is_guarded(world)
        finally:
            user.kill()


ATTEMPTS = 6
"""Before paths were walked by descriptors, one attempt in eight was redirected."""


@pytest.mark.parametrize("bent_part", ["home/me/projects", "home/me/src"])
@pytest.mark.every_processor
def test_no_exchanged_symlink_leads_the_view_to_a_directory_of_the_system(
    world: World, bent_part: str
) -> None:
    view = str(world.view if bent_part.endswith("projects") else world.area / bent_part / "view")
    with bent(world, world.area / bent_part) as victim:
        for _ in range(ATTEMPTS):
            with suppress(UserError):
                world.install(map_mount=view)
            assert os.listdir(victim) == []
            assert [line for line in mountinfo() if line.startswith(str(victim))] == []
            assert os.fsencode(victim) not in world.fstab()
            with suppress(UserError):
                world.remove()
            subprocess.run(["umount", "-l", view], check=False, capture_output=True)


@pytest.mark.every_processor
def test_the_walk_of_a_path_never_comes_to_where_an_exchanged_symlink_leads(world: World) -> None:
    (world.area / "sbin/sub").mkdir(parents=True)
    found = set()
    with bent(world, world.view) as victim:
        for _ in range(3000):
            with suppress(UserError), closing(mountpoint.resolve(f"{world.view}/sub")) as way:
                found.add(way.path)
                assert way.missing == (way.path,)
        assert os.listdir(victim) == ["sub"]
    assert found == {f"{world.view}/sub"}


def test_what_is_made_is_made_where_the_walk_was_whatever_the_path_leads_to_by_now(
    world: World,
) -> None:
    place = world.area / "home/me/src"
    place.mkdir()
    os.chown(place, AGENT, AGENT)
    with closing(mountpoint.resolve(f"{place}/a/b")) as way:
        place.rename(world.area / "home/me/old")
        place.symlink_to(world.area / "sbin")
        (world.area / "sbin").mkdir(mode=0o777)
        with suppress(ZeroDivisionError), Changes(print) as changes:
            mountpoint.make_missing(changes, way, (AGENT, AGENT))
            assert os.listdir(world.area / "sbin") == []
            assert os.stat(world.area / "home/me/old/a/b").st_uid == AGENT
            raise ZeroDivisionError
    assert os.listdir(world.area / "home/me/old") == []


def test_a_guard_that_hangs_is_told_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "ANSWER_LIMIT", 0.5)
    with area() as place:
        (place / "source").mkdir()
        with gitguardfs(place / "source", place / "view", "--no-seal", expected=(".",)) as mounted:
            status = Path(f"/proc/{mounted.process.pid}/status")
            mounted.process.send_signal(signal.SIGSTOP)
            try:
                until(lambda: "State:\tT" in status.read_text(), "the daemon is stopped")
                with pytest.raises(UserError, match="does not answer"):
                    guards.is_dead(bytes(mounted.path))
            finally:
                mounted.process.send_signal(signal.SIGCONT)
            monkeypatch.undo()
            assert not guards.is_dead(bytes(mounted.path))
