"""The host edits the same files at the same time, and the mount shows it."""

import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.support.errorfs import errorfs
from tests.support.mounting import Mounted, area, gitguardfs, until
from tests.support.people import AGENT, as_user

MARGIN = 5.0
"""Seconds granted on top of the cache timeout; the machine may be busy."""

LONG = 5.0
"""A cache timeout so long that no test reaches its end by accident."""

ROUNDS = 300


@dataclass(frozen=True)
class Pair:
    """One directory as the host has it and as the guest sees it."""

    host: Path
    guest: Path
    timeout: float
    mounted: Mounted

    def soon(self, condition: Callable[[], object], what: str) -> None:
        """Within the cache timeout; at once if there is no cache."""
        if self.timeout:
            until(condition, what, self.timeout + MARGIN)
        else:
            assert condition(), f"not at once: {what}"


def _pair(timeout: float) -> Iterator[Pair]:
    with area() as here:
        (here / "source").mkdir()
        options = ("--cache-timeout", str(timeout))
        with gitguardfs(here / "source", here / "view", *options) as mounted:
            yield Pair(here / "source", mounted.path, timeout, mounted)


@pytest.fixture(params=[0, 0.3], ids=["uncached", "cached"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    yield from _pair(request.param)


@pytest.fixture
def long_cached() -> Iterator[Pair]:
    yield from _pair(LONG)


def _names(path: Path) -> list[str]:
    return sorted(os.listdir(path))


# ------------------------------------------------------------------- Names and attributes


def test_a_name_that_the_host_adds_appears(pair: Pair) -> None:
    # Asked for before: the guest remembers that there is none.
    assert not (pair.guest / "new").exists()
    assert _names(pair.guest) == []
    (pair.host / "new").write_text("text")
    (pair.host / "directory").mkdir()
    pair.soon((pair.guest / "new").exists, "the new name is found")
    pair.soon(lambda: _names(pair.guest) == ["directory", "new"], "the new names are listed")
    assert (pair.guest / "new").read_text() == "text"


def test_a_name_that_the_host_removes_disappears(pair: Pair) -> None:
    (pair.host / "file").write_text("text")
    (pair.host / "directory/sub").mkdir(parents=True)
    assert (pair.guest / "file").read_text() == "text"
    assert _names(pair.guest / "directory") == ["sub"]
    (pair.host / "file").unlink()
    (pair.host / "directory/sub").rmdir()
    (pair.host / "directory").rmdir()
    pair.soon(lambda: not (pair.guest / "file").exists(), "the removed file is gone")
    pair.soon(lambda: not (pair.guest / "directory/sub").exists(), "and the directory below")
    pair.soon(lambda: _names(pair.guest) == [], "nothing is listed")
    with pytest.raises(FileNotFoundError):
        (pair.guest / "file").read_text()


def test_a_name_that_the_host_changes_moves(pair: Pair) -> None:
    (pair.host / "a/deep").mkdir(parents=True)
    (pair.host / "a/deep/file").write_text("text")
    assert (pair.guest / "a/deep/file").read_text() == "text"
    assert not (pair.guest / "b").exists()
    (pair.host / "a").rename(pair.host / "b")
    pair.soon((pair.guest / "b").is_dir, "the new name of the directory")
    pair.soon(lambda: not (pair.guest / "a").exists(), "the old name is gone")
    assert (pair.guest / "b/deep/file").read_text() == "text"
    (pair.guest / "b/deep/file").write_text("from the guest")
    assert (pair.host / "b/deep/file").read_text() == "from the guest"


def test_names_that_the_host_swaps_are_not_confused(pair: Pair) -> None:
    for name in ("one", "two"):
        (pair.host / name).write_text(name)
        assert (pair.guest / name).read_text() == name
    (pair.host / "one").rename(pair.host / "x")
    (pair.host / "two").rename(pair.host / "one")
    (pair.host / "x").rename(pair.host / "two")
    pair.soon(lambda: (pair.guest / "one").read_text() == "two", "one has become two")
    pair.soon(lambda: (pair.guest / "two").read_text() == "one", "two has become one")


def test_a_name_that_becomes_another_type_is_seen_as_that(pair: Pair) -> None:
    thing, seen = pair.host / "thing", pair.guest / "thing"
    thing.write_text("file")
    assert seen.read_text() == "file"
    thing.unlink()
    thing.mkdir()
    (thing / "inside").write_text("text")
    pair.soon(seen.is_dir, "it is a directory now")
    assert _names(seen) == ["inside"]
    (thing / "inside").unlink()
    thing.rmdir()
    thing.symlink_to("elsewhere")
    pair.soon(seen.is_symlink, "it is a symlink now")
    assert os.readlink(seen) == "elsewhere"
    thing.unlink()
    thing.write_text("file again")
    pair.soon(lambda: seen.is_file() and not seen.is_symlink(), "it is a file again")
    assert seen.read_text() == "file again"


def test_attributes_that_the_host_changes_are_seen(pair: Pair) -> None:
    file, seen = pair.host / "file", pair.guest / "file"
    file.write_text("text")
    os.stat(seen)
    file.chmod(0o640)
    pair.soon(lambda: seen.stat().st_mode & 0o777 == 0o640, "the mode")
    os.utime(file, (1_000_000_000, 1_111_111_111))
    pair.soon(lambda: seen.stat().st_mtime == 1_111_111_111, "the time")
    os.chown(file, 4321, 8765)
    pair.soon(lambda: seen.stat()[4:6] == (4321, 8765), "the owners")
    file.write_text("a longer text")
    pair.soon(lambda: seen.stat().st_size == 13, "the size")
    os.truncate(file, 1)
    pair.soon(lambda: seen.stat().st_size == 1, "the smaller size")
    os.link(file, pair.host / "second")
    pair.soon(lambda: seen.stat().st_nlink == 2, "the number of links")


def test_a_symlink_that_the_host_points_elsewhere_leads_there(pair: Pair) -> None:
    link, seen = pair.host / "link", pair.guest / "link"
    for target in ("first", "the second, longer one", "3"):
        (pair.host / "temporary").symlink_to(target)
        (pair.host / "temporary").rename(link)
        pair.soon(partial(_leads_to, seen, target), target)


def _leads_to(link: Path, target: str) -> bool:
    return os.path.lexists(link) and os.readlink(link) == target


def test_permissions_that_the_host_takes_away_hold(pair: Pair) -> None:
    (pair.host / "file").write_text("text")
    (pair.host / "file").chmod(0o640)
    os.chown(pair.host / "file", 0, AGENT)
    agent = str(pair.guest / "file")
    assert as_user(_readable, agent)
    (pair.host / "file").chmod(0o000)
    pair.soon(lambda: not as_user(_readable, agent), "no longer readable")


def _readable(path: str) -> bool:
    try:
        with open(path):
            return True
    except PermissionError:
        return False


# ----------------------------------------------------------------------------- Content


@pytest.mark.parametrize("keeps_its_size", [True, False])
def test_a_file_opened_after_a_host_edit_shows_the_edit(
    long_cached: Pair, keeps_its_size: bool
) -> None:
    """The kernel's attributes are far from timing out."""
    file, seen = long_cached.host / "file", long_cached.guest / "file"
    file.write_text("----")
    stale = []
    for turn in range(ROUNDS):
        text = f"{turn:04}" if keeps_its_size else f"{turn} " * (1 + turn * 7919 % 3000)
        with open(file, "r+" if keeps_its_size else "w") as edited:
            edited.write(text)
        with open(seen) as opened:
            size = os.fstat(opened.fileno()).st_size
            if opened.read() != text or size != len(text):
                stale.append(turn)
    assert not stale


@pytest.mark.every_processor
def test_a_replaced_file_is_shown_within_the_timeout_and_never_mixed(pair: Pair) -> None:
    """Editors write a new file and rename it over the old one."""
    file, seen = pair.host / "file", pair.guest / "file"
    file.write_text("version 0\n" * 1000)
    assert seen.read_text() == "version 0\n" * 1000
    for version in range(1, 6):
        text = f"version {version}\n" * (1000 - 100 * version)
        (pair.host / "temporary").write_text(text)
        (pair.host / "temporary").rename(file)

        def is_new(text: str = text) -> bool:
            read = seen.read_text()
            assert len(set(read.splitlines())) == 1, "old and new content mixed"
            return read == text

        pair.soon(is_new, f"version {version}")


def _reuse_number(old: Path, text: str) -> Path | None:
    """Remove a file, and return a new one beside it that has its inode number; None if none has.

    ext4 and xfs reuse the lowest number that is free; on a file system that reuses none, nothing
    can be confused.
    """
    number = old.stat().st_ino
    old.unlink()
    for attempt in range(50):
        new = old.with_name(f"{old.name}-{attempt}")
        new.write_text(text)
        if new.stat().st_ino == number:
            return new
    return None


def test_a_name_never_shows_another_file_with_its_former_inode_number(long_cached: Pair) -> None:
    """The guest remembers the old name while it looks at the new one."""
    for attempt in range(10):
        name = f"name{attempt}"
        (long_cached.host / name).write_text("before\n")
        assert (long_cached.guest / name).read_text() == "before\n"
        other = _reuse_number(long_cached.host / name, "another file\n")
        (long_cached.host / name).write_text("replaced\n")
        if other is not None:
            seen = (long_cached.guest / other.name).stat()
            assert (long_cached.guest / name).read_text() == "replaced\n"
            assert (long_cached.guest / other.name).read_text() == "another file\n"
            assert (long_cached.guest / name).stat().st_ino != seen.st_ino


def test_a_symlink_never_shows_another_one_with_its_former_inode_number(long_cached: Pair) -> None:
    for attempt in range(10):
        name = f"name{attempt}"
        (long_cached.host / name).symlink_to("before")
        assert os.readlink(long_cached.guest / name) == "before"
        number = (long_cached.host / name).lstat().st_ino
        (long_cached.host / name).unlink()
        (long_cached.host / f"other{attempt}").symlink_to("another")
        (long_cached.host / name).symlink_to("replaced")
        if (long_cached.host / f"other{attempt}").lstat().st_ino == number:
            assert os.readlink(long_cached.guest / f"other{attempt}") == "another"
            assert os.readlink(long_cached.guest / name) == "replaced"


def test_of_two_names_none_shows_a_new_file_with_the_former_inode_number(long_cached: Pair) -> None:
    """The guest remembers both, and saw the file last where the new one is."""
    for attempt in range(10):
        one, two = f"one{attempt}", f"two{attempt}"
        (long_cached.host / one).write_text("before\n")
        os.link(long_cached.host / one, long_cached.host / two)
        for name in (one, two):
            assert (long_cached.guest / name).read_text() == "before\n"
        (long_cached.host / two).unlink()
        other = _reuse_number(long_cached.host / one, "another file\n")
        (long_cached.host / one).write_text("replaced\n")
        if other is not None:
            other.rename(long_cached.host / two)
            assert (long_cached.guest / one).read_text() == "replaced\n"
            assert (long_cached.guest / two).read_text() == "another file\n"


def test_a_removed_file_is_never_shown_at_another_name(long_cached: Pair) -> None:
    """The guest removes a name that it remembers, and so looks at no file that is there by now."""
    for attempt in range(10):
        name, other = f"name{attempt}", f"other{attempt}"
        (long_cached.host / name).write_text("before\n")
        (long_cached.host / other).write_text("other\n")
        for known in (name, other):
            assert (long_cached.guest / known).read_text() in ("before\n", "other\n")
        (long_cached.host / other).unlink()
        new = _reuse_number(long_cached.host / name, "another file\n")
        (long_cached.host / name).write_text("replaced\n")
        if new is not None:
            new.rename(long_cached.host / other)
            (long_cached.guest / other).unlink()
            assert (long_cached.guest / name).read_text() == "replaced\n"


def test_a_file_that_the_host_moves_away_shows_the_one_in_its_place(long_cached: Pair) -> None:
    """As logs are rotated and editors keep a backup."""
    (long_cached.host / "log").write_text("before\n")
    with open(long_cached.guest / "log") as held:
        assert held.read() == "before\n"
        (long_cached.host / "log").rename(long_cached.host / "log.1")
        (long_cached.host / "log").write_text("after\n")
        assert (long_cached.guest / "log.1").read_text() == "before\n"
        number = os.fstat(held.fileno()).st_ino
        assert (long_cached.guest / "log.1").stat().st_ino == number, "open, it keeps its number"
    (long_cached.host / "note").write_text("before\n")
    assert (long_cached.guest / "note").read_text() == "before\n"
    (long_cached.host / "note").rename(long_cached.host / "note~")
    (long_cached.host / "note").write_text("after\n")
    assert (long_cached.guest / "note~").read_text() == "before\n"
    assert (long_cached.guest / "note").read_text() == "after\n"


@pytest.mark.parametrize("directory", [".", "empty"])
def test_a_name_made_in_other_letters_is_there_at_once(directory: str) -> None:
    with (
        area() as here,
        errorfs(here / "host", here / "share", here / "control", fold=True) as share,
        gitguardfs(share.path, here / "view", "--cache-timeout", str(LONG)) as mounted,
    ):
        (share.host / "empty").mkdir()
        place = mounted.path / directory
        assert not (place / "missing").exists()
        (place / "Missing").write_text("new\n")
        assert (place / "missing").read_text() == "new\n"


def test_both_names_of_a_file_show_one_inode_number(long_cached: Pair) -> None:
    (long_cached.host / "one").write_text("text\n")
    (long_cached.host / "directory").mkdir()
    os.link(long_cached.host / "one", long_cached.host / "directory/two")
    number = (long_cached.host / "one").stat().st_ino
    for _ in range(3):
        os.utime(long_cached.guest, None)
        for name in ("one", "directory/two"):
            assert (long_cached.guest / name).stat().st_ino == number
        listed = {entry.name: entry.inode() for entry in os.scandir(long_cached.guest)}
        assert listed["one"] == number


def test_an_open_file_reads_on_as_the_host_appends(pair: Pair) -> None:
    """As ``tail -f`` does."""
    (pair.host / "log").write_text("line 0\n")
    with open(pair.guest / "log") as follower:
        assert follower.read() == "line 0\n"
        for turn in range(1, 6):
            with open(pair.host / "log", "a") as writer:
                writer.write(f"line {turn}\n")
            read = ""

            def caught_up(turn: int = turn) -> bool:
                nonlocal read
                os.stat(pair.guest / "log")
                read += follower.read()
                return read == f"line {turn}\n"

            pair.soon(caught_up, f"line {turn}")


def test_what_the_guest_writes_is_on_the_host_when_write_returns(pair: Pair) -> None:
    with open(pair.guest / "file", "wb", buffering=0) as file:
        for turn in range(100):
            file.write(b"%03d\n" % turn)
            with open(pair.host / "file", "rb") as host:
                content = host.read()
            assert content.endswith(b"%03d\n" % turn)
            assert len(content) == 4 * (turn + 1)
        file.truncate(10)
        assert (pair.host / "file").stat().st_size == 10


APPEND = """
import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
for turn in range(500):
    os.write(fd, f"{sys.argv[2]} {turn}\\n".encode())
"""


@pytest.mark.every_processor
def test_lines_that_host_and_guest_append_at_once_are_all_there(pair: Pair) -> None:
    (pair.host / "log").touch()
    (pair.host / "log").chmod(0o666)
    writers = [
        subprocess.Popen([sys.executable, "-c", APPEND, path / "log", name])
        for path, name in ((pair.host, "host"), (pair.guest, "guest"), (pair.guest, "second"))
    ]
    while any(writer.poll() is None for writer in writers):
        os.stat(pair.guest / "log")  # the kernel gets sizes while it writes
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    lines = (pair.host / "log").read_text().splitlines()
    assert len(lines) == 1500
    for name in ("host", "guest", "second"):
        assert [line for line in lines if line.startswith(name)] == [
            f"{name} {turn}" for turn in range(500)
        ]


def test_who_appends_also_reads_what_the_host_added(pair: Pair) -> None:
    """Nobody may see the own line where the host's is."""
    (pair.host / "log").write_text("old\n")
    appended = os.open(pair.guest / "log", os.O_RDWR | os.O_APPEND)
    try:
        for turn in range(10):
            assert os.pread(appended, 1000, 0).startswith(b"old\n")
            with open(pair.host / "log", "a") as log:
                log.write(f"from the host {turn}\n")
            os.write(appended, f"guest {turn}\n".encode())
        written = (pair.host / "log").read_bytes()
        assert len(written.splitlines()) == 21
        pair.soon(lambda: os.pread(appended, 1000, 0) == written, "through the open file")
        with open(pair.guest / "log", "rb") as again:
            assert again.read() == written
    finally:
        os.close(appended)


def test_appending_and_storing_through_a_mapping_do_not_mix(pair: Pair) -> None:
    """Pages are written back through any open file, also through one that appends."""
    path = pair.guest / "file"
    path.write_bytes(b"0" * 10_000)
    appended = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
            for turn in range(50):
                letter = bytes([65 + turn % 26])
                os.write(appended, b"a")
                mapped[4096:4100] = letter * 4
                mapped[9999:10_000] = letter
                mapped.flush()
                content = (pair.host / "file").read_bytes()
                assert len(content) == 10_000 + turn + 1
                assert content[4096:4100] == letter * 4
                assert content[9999:] == letter + b"a" * (turn + 1)
    finally:
        os.close(appended)


# -------------------------------------------------------------------------------- Listings


def test_a_listing_under_way_survives_what_the_host_does(pair: Pair) -> None:
    """Names that exist all the time are listed exactly once."""
    for number in range(2000):
        (pair.host / f"stays{number}").touch()
        if number % 2:
            (pair.host / f"goes{number}").touch()
    seen = []
    with os.scandir(pair.guest) as entries:
        for count, entry in enumerate(entries):
            seen.append(entry.name)
            if count == 10:
                for number in range(1, 2000, 2):
                    (pair.host / f"goes{number}").unlink()
                    (pair.host / f"comes{number}").touch()
    stays = [name for name in seen if name.startswith("stays")]
    assert sorted(stays) == sorted(f"stays{number}" for number in range(2000))
    assert len(seen) == len(set(seen))
