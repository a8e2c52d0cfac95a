"""What a killed run has left is removed by the next one; what a live one holds is not."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.desktop import root
from tests.guest import emulator
from tests.guest import image as images
from tests.support import leftovers
from tests.support.mounting import REPOSITORY

PREFIX = ".new-"
OTHER_RUN = """
import sys
from tests.support import leftovers
with leftovers.directory(".new-", sys.argv[1]) as path:
    (path / "root").mkdir()
    print(path, flush=True)
    sys.stdin.read()
"""


@contextmanager
def other_run(place: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process with a directory of its own, and the directory."""
    with subprocess.Popen(
        [sys.executable, "-c", OTHER_RUN, place],
        cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        path = Path(process.stdout.readline().strip())
        assert (path / "root").is_dir()
        yield process, path


def test_the_directory_of_a_killed_run_is_removed_by_the_next(tmp_path: Path) -> None:
    with other_run(tmp_path) as (process, left):
        process.kill()
        process.wait()
        assert left.is_dir()
        with leftovers.directory(PREFIX, tmp_path) as own:
            assert os.listdir(tmp_path) == [own.name]
    assert os.listdir(tmp_path) == []


def test_runs_side_by_side_keep_their_own(tmp_path: Path) -> None:
    with other_run(tmp_path) as (process, other):
        with leftovers.directory(PREFIX, tmp_path) as own:
            assert {other, own} == set(tmp_path.iterdir())
            with leftovers.directory(PREFIX, tmp_path):
                assert own.is_dir()
        assert (other / "root").is_dir()
        process.communicate(timeout=60)
    assert os.listdir(tmp_path) == []


def test_a_directory_that_was_removed_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[Path] = []

    def removed_once(path: Path) -> int:
        if not removed:
            removed.append(path)
            leftovers.remove_unless_held(path)
        return hold(path)

    hold = leftovers.hold
    monkeypatch.setattr(leftovers, "hold", removed_once)
    with leftovers.directory(PREFIX, tmp_path) as own:
        assert own.is_dir() and own not in removed and removed


def test_who_waits_for_the_lock_sees_that_the_directory_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.mkdir()
    lock = fcntl.flock

    def lock_too_late(descriptor: int, how: int) -> None:
        path.rmdir()
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", lock_too_late)
    with pytest.raises(FileNotFoundError, match="removed by another run"):
        leftovers.hold(path)


def test_only_directories_are_removed_and_nothing_is_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/file").touch()
    (tmp_path / f"{PREFIX}link").symlink_to("elsewhere")
    (tmp_path / f"{PREFIX}file").touch()
    os.mkfifo(tmp_path / f"{PREFIX}fifo")
    leftovers.remove_stale(PREFIX, tmp_path)
    assert len(os.listdir(tmp_path)) == 4
    assert (tmp_path / "elsewhere/file").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives directories away")
def test_another_user_s_directory_is_not_touched(tmp_path: Path) -> None:
    theirs = tmp_path / f"{PREFIX}theirs"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)
    leftovers.remove_stale(PREFIX, tmp_path)
    assert theirs.is_dir()


def _fails(*_: object, **more: object) -> None:
    raise RuntimeError("as if it were killed here")


@pytest.mark.parametrize("made", ["an image", "an emulator", "a desktop"])
def test_what_is_made_for_the_cache_is_made_in_such_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str
) -> None:
    (tmp_path / ".new-killed").mkdir()
    monkeypatch.setattr(images, "CACHE", tmp_path)
    monkeypatch.setattr(emulator, "CACHE", tmp_path)
    monkeypatch.setattr(root, "DEBS", tmp_path / "desktop-debs")
    for module in (images, emulator):
        monkeypatch.setattr(module, "run", _fails)
    archive, place = tmp_path / "archive", tmp_path / "place"
    ways = {
        "an image": lambda: images._build_disk(images.DEBIAN_12, archive, place),
        "an emulator": emulator._unpack,
        "a desktop": lambda: root._build(archive, place),
    }
    with pytest.raises(RuntimeError, match="killed here"):
        ways[made]()
    assert list(tmp_path.glob(".new-*")) == []


USES = """
import sys
from pathlib import Path
from tests.guest import image as images
images.CACHE = Path(sys.argv[1])
images.use(images.DEBIAN_12, Path(sys.argv[1], sys.argv[2]))
print("held", flush=True)
sys.stdin.read()
"""


def test_an_image_that_another_checkout_boots_stays_until_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "CACHE", tmp_path)
    monkeypatch.setattr(images, "_held", [])
    theirs, ours = tmp_path / "debian12-theirs", tmp_path / "debian12-ours"
    other_guest = tmp_path / "debian13-other"
    for path in (theirs, ours, other_guest):
        path.mkdir()
    archive = tmp_path / "debian12-old.tar"
    archive.touch()
    with subprocess.Popen(
        [sys.executable, "-c", USES, tmp_path, theirs.name],
        cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        assert not archive.exists() and not ours.exists()  # nobody held ours yet
        ours.mkdir()
        images.use(images.DEBIAN_12, ours)
        assert theirs.is_dir()
        process.communicate(timeout=60)
    images.use(images.DEBIAN_12, ours)
    assert sorted(tmp_path.iterdir()) == [ours, other_guest]
    for lock in images._held:
        os.close(lock)
