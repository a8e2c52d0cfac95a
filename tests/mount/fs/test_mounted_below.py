"""File systems that are mounted below the source are part of the view."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mounting import area, gitguardfs, unmount, until


@pytest.fixture
def here() -> Iterator[Path]:
    with area() as path:
        path.chmod(0o700)
        below = path / "source/below"
        below.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "below", below], check=True)
        try:
            for directory in (path / "source", below):
                for name in ("file", "other"):
                    (directory / name).touch()
                (directory / "link").symlink_to("file")
                (directory / "sub").mkdir()
                (directory / ".git").mkdir()
            os.link(below / "file", below / "second")
            yield path
        finally:
            unmount(below)


LOOKS = """
import os, sys
def numbers(path):  # the first listing of a process has names only
    listed = {entry.name: entry.inode() for entry in os.scandir(path)}
    for _ in range(3):
        shown = {name: os.lstat(os.path.join(path, name)).st_ino for name in listed}
        assert listed == shown, (path, listed, shown)
        listed = {entry.name: entry.inode() for entry in os.scandir(path)}
for path in sys.argv[1:]:
    numbers(path)
"""


def test_listings_and_stat_agree_on_inode_numbers(here: Path) -> None:
    with gitguardfs(here / "source", here / "view") as mounted:
        for path in (mounted.path, mounted.path / "below", mounted.path / "below/sub"):
            subprocess.run([sys.executable, "-c", LOOKS, path], check=True)
        numbers = [(mounted.path / "below" / name).stat().st_ino for name in ("file", "second")]
        assert numbers[0] == numbers[1] != (mounted.path / "file").stat().st_ino


USES = """
set -e
cd "$0"
ls -lR . >/dev/null
find . >/dev/null
mkdir sub/made
echo text >sub/made/new
chmod 600 sub/made/new
ln -s new sub/made/link
readlink sub/made/link >/dev/null
mv sub/made/new moved
stat link sub/made . >/dev/null
"""


@pytest.mark.parametrize("kind", ["tmpfs", "bind"])
def test_the_host_can_unmount_what_nobody_uses(here: Path, kind: str) -> None:
    """A bind mount has the source's own device."""
    below = here / "source/below"
    if kind == "bind":
        unmount(below)
        (here / "elsewhere/sub").mkdir(parents=True)
        (here / "elsewhere/link").symlink_to("x")
        subprocess.run(["mount", "--bind", here / "elsewhere", below], check=True)
    with gitguardfs(here / "source", here / "view") as mounted:
        top = mounted.path / "below"
        subprocess.run(["sh", "-c", USES, top], check=True)
        (top / "moved").write_text("closed again by a request that nobody waits for")
        until(lambda: subprocess.run(["umount", below], check=False).returncode == 0, "umount")
        assert (mounted.path / "file").exists()
        subprocess.run(["mount", "-t", "tmpfs", "below", below], check=True)
        subprocess.run(["ls", "-lR", mounted.path], stdout=subprocess.DEVNULL, check=True)
        subprocess.run(["umount", below], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "below", below], check=True)
