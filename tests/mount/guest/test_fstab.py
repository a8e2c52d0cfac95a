"""A guard that mount(8) starts by a line of fstab, and its share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mounting import LIMIT, REPOSITORY, area, command, unmount
from tests.support.people import AGENT


@pytest.fixture
def here() -> Iterator[Path]:
    """gitguardfs is in /usr/local/bin, and fstab is ``here/fstab``, for this process alone."""
    with area() as path:
        for name in ("source", "home", "home/view", "victim", "bin"):
            (path / name).mkdir()
        (path / "source/file").write_text("text")
        (path / "victim/passwd").write_text("of the system")
        for name in ("home", "home/view"):
            os.chown(path / name, AGENT, AGENT)
        launcher = path / "bin/gitguardfs"
        launcher.write_text(
            f'#!/bin/sh\nPYTHONPATH={REPOSITORY} exec {sys.executable} -m gitguardfs "$@"\n'
        )
        launcher.chmod(0o755)
        (path / "fstab").touch()
        places = {path / "fstab": Path("/etc/fstab"), path / "bin": Path("/usr/local/bin")}
        for ours, place in places.items():
            subprocess.run(["mount", "-n", "--bind", ours, place], check=True)
        try:
            yield path
        finally:
            for place in places.values():
                subprocess.run(["umount", "-n", "-i", "-l", place], check=True)
            for name in ("home/view", "victim", "source", "link"):
                unmount(path / name)


def _mount(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["env", "-i", "/bin/mount", *arguments],
        capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip


def _line(here: Path, options: str = "map=501:1000", target: str = "home/view") -> None:
    (here / "fstab").write_text(f"{here}/source {here}/{target} fuse.gitguardfs {options} 0 0\n")


def _bend(here: Path) -> None:
    """The agent puts a symlink at the place of the mount point."""
    (here / "home/view").rmdir()
    (here / "home/view").symlink_to(here / "victim")
    os.chown(here / "home/view", AGENT, AGENT, follow_symlinks=False)


@pytest.mark.parametrize("options", ["nonempty", "nonempty,mountpoint={}/home/view"])
def test_v10_mount_8_is_not_led_elsewhere(here: Path, options: str) -> None:
    _line(here, options.format(here))
    _bend(here)
    for arguments in (("-a", "-t", "fuse.gitguardfs"), (here / "home/view",)):
        done = _mount(*arguments)
        assert done.returncode != 0
        assert "gitguardfs: " in done.stderr, done.stderr
        assert os.listdir(here / "victim") == ["passwd"]
        assert f" {here}/victim " not in Path("/proc/self/mountinfo").read_text()


def test_v10_a_directory_of_a_user_s_is_fine(here: Path) -> None:
    _line(here)
    done = _mount(here / "home/view")
    assert done.returncode == 0, done.stderr
    assert (here / "home/view/file").read_text() == "text"
    subprocess.run(["umount", here / "home/view"], check=True)


def test_by_hand_fstab_does_not_say_where(here: Path) -> None:
    _line(here)
    done = subprocess.run(
        command(here / "source", here / "victim", "-o", "nonempty"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    subprocess.run(["umount", here / "victim"], check=True)


def test_what_fstab_mounts_at_the_source_must_be_mounted(here: Path) -> None:
    """Otherwise the share would be mounted above a seal, and be open."""
    (here / "fstab").write_text(f"projects {here}/source 9p trans=virtio,noauto 0 0\n")
    arguments = command(here / "source", here / "home/view", "--seal")
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        32,
        f"gitguardfs: fstab mounts projects at {here}/source, and it is not mounted"
        f" (mount {here}/source)\n",
    )
    assert f" {here}/source " not in Path("/proc/self/mountinfo").read_text()
    subprocess.run(["mount", "-i", "-t", "tmpfs", "share", here / "source"], check=True)
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    subprocess.run(["umount", here / "home/view"], check=True)
