"""The requests that the kernel's session alone carries, by programs on real mounts."""

import mmap
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gitguardfs.linux.syscalls import linkat_by_proc
from tests.conformance.tools import ALICE, call, calls, descriptor, equal, fallocate, outcome, run
from tests.support.mounting import Mounted, area, empty_view, gitguardfs, run_to_end

KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE, COLLAPSE_RANGE = 1, 2, 16, 8
MIB = 1 << 20


@pytest.fixture(scope="module")
def view() -> Iterator[Mounted]:
    with ExitStack() as stack:
        here = stack.enter_context(area())
        (here / "source").mkdir()
        (here / "source").chmod(0o777)
        options = (
            "--enable-ioctl", "--map", "501/1000:@20/@1000", "--local", "own",
            f"--local-store={here}/store",
        )  # fmt: skip
        mounted = stack.enter_context(gitguardfs(here / "source", here / "view", *options))
        (mounted.path / "own").mkdir()
        (mounted.path / "own").chmod(0o777)
        yield mounted


@pytest.fixture(params=["share", "own"])
def place(view: Mounted, request: pytest.FixtureRequest) -> Path:
    path = view.path if request.param == "share" else view.path / "own"
    path /= f"test{len(os.listdir(path))}"
    path.mkdir()
    path.chmod(0o777)
    return path


def test_space_is_allocated_and_freed(place: Path) -> None:
    with descriptor(str(place / "file"), os.O_RDWR | os.O_CREAT) as fd:
        fallocate(fd, KEEP_SIZE, 0, 2 * MIB)
        equal("size", os.fstat(fd).st_size, 0)
        fallocate(fd, 0, 0, 2 * MIB)
        assert os.fstat(fd).st_blocks * 512 >= 2 * MIB
        os.pwrite(fd, b"x" * 2 * MIB, 0)
        fallocate(fd, PUNCH_HOLE | KEEP_SIZE, 0, MIB)
        assert os.fstat(fd).st_blocks * 512 < 2 * MIB
        assert os.pread(fd, 3, MIB - 1) == b"\0xx"
        fallocate(fd, ZERO_RANGE, MIB, 1)
        assert os.pread(fd, 2, MIB) == b"\0x"
        calls(call("ENOTSUP", fallocate, fd, COLLAPSE_RANGE, 0, 4096))


def test_a_sparse_file_is_copied_without_its_holes(place: Path) -> None:
    with descriptor(str(place / "file"), os.O_WRONLY | os.O_CREAT) as fd:
        os.pwrite(fd, b"x", 100 * MIB)
    with descriptor(str(place / "file"), os.O_RDONLY) as fd:
        assert os.lseek(fd, 0, os.SEEK_DATA) == 100 * MIB
        assert os.lseek(fd, 0, os.SEEK_HOLE) == 0
    begin = time.monotonic()
    subprocess.run(["cp", "--sparse=auto", place / "file", place / "copy"], check=True)
    assert time.monotonic() - begin < 5
    copy = (place / "copy").stat()
    assert copy.st_size == 100 * MIB + 1
    assert copy.st_blocks < 1000


def test_what_is_stored_in_a_hole_by_a_mapping_is_data(place: Path) -> None:
    with (
        descriptor(str(place / "file"), os.O_RDWR | os.O_CREAT) as fd,
        descriptor(str(place / "file"), os.O_RDONLY) as reading,
    ):
        os.ftruncate(fd, 10 * MIB)
        with mmap.mmap(fd, 10 * MIB) as mapped:
            mapped[5 * MIB] = 1
            assert os.lseek(reading, 0, os.SEEK_DATA) <= 5 * MIB


def test_a_range_is_copied_within_a_tree_and_from_one_to_another(
    view: Mounted, place: Path
) -> None:
    (place / "from").write_bytes(b"0123456789" * 100_000)
    (view.path / "there").unlink(missing_ok=True)
    for target in (place / "to", view.path / "there"):
        with (
            descriptor(str(place / "from"), os.O_RDONLY) as fd,
            descriptor(str(target), os.O_RDWR | os.O_CREAT) as to,
        ):
            assert os.pread(to, 10, 0) == b""
            assert os.copy_file_range(fd, to, 500_000, 5, 10) == 500_000
            assert os.fstat(to).st_size == 500_010
            assert os.pread(to, 12, 9) == b"\0" + b"56789012345"
        assert target.read_bytes()[10:] == (place / "from").read_bytes()[5:500_005]


def test_stat_shows_the_birth_time(view: Mounted) -> None:
    (view.source / "born").touch()
    (view.source / ".git").mkdir(exist_ok=True)
    os.utime(view.source / "born", (1, 1))

    def birth(path: Path) -> str:
        found = subprocess.run(
            ["stat", "-c", "%w %y %s", path], check=True, capture_output=True, text=True
        )
        return found.stdout

    for name in ("born", ".git", "."):
        assert birth(view.path / name) == birth(view.source / name)


def test_a_nameless_file_gets_a_name_of_its_users(view: Mounted, place: Path) -> None:
    (place / "refs").mkdir()

    def make() -> None:
        fd = os.open(place, os.O_TMPFILE | os.O_RDWR, 0o644)
        os.write(fd, b"text")
        for name in (".git", "HEAD"):
            if "own" not in place.parts:
                assert outcome(linkat_by_proc, fd, str(place / name)) == "EACCES"
        linkat_by_proc(fd, str(place / "name"))
        os.write(fd, b" and more")
        os.close(fd)
        other = os.open(view.path, os.O_TMPFILE | os.O_WRONLY, 0o644)
        if "own" in place.parts:
            assert outcome(linkat_by_proc, other, str(place / "other")) == "EXDEV"
        once = os.open(place, os.O_TMPFILE | os.O_EXCL | os.O_RDWR)
        assert outcome(linkat_by_proc, once, str(place / "other")) == "ENOENT"

    run(ALICE, make)
    assert sorted(os.listdir(place)) == ["name", "refs"]
    assert (place / "name").read_text() == "text and more"
    st = (place / "name").stat()
    assert (st.st_uid, st.st_gid, st.st_nlink) == (1000, 1000, 1)
    if "own" not in place.parts:
        assert (view.source / place.name / "name").stat().st_uid == 501


def test_a_held_nameless_file_is_opened_again(place: Path) -> None:
    fd = os.open(place, os.O_TMPFILE | os.O_RDWR, 0o600)
    os.write(fd, b"text")
    held = os.open(f"/proc/self/fd/{fd}", os.O_PATH)
    os.close(fd)
    with descriptor(f"/proc/self/fd/{held}", os.O_RDONLY) as again:
        assert os.read(again, 10) == b"text"
    os.close(held)


def test_more_nameless_files_than_descriptors_get_names(view: Mounted) -> None:
    limits = Path(f"/proc/{view.process.pid}/fd")
    before = len(os.listdir(limits))
    for number in range(300):
        fd = os.open(view.path, os.O_TMPFILE | os.O_WRONLY)
        linkat_by_proc(fd, str(view.path / f"many{number}"))
        os.close(fd)
    pinned = len(os.listdir(limits)) - before
    for number in range(300):
        (view.path / f"many{number}").unlink()
    assert pinned <= 310


def test_chattr_and_lsattr(view: Mounted) -> None:
    path = view.path / "flags"
    path.touch()
    os.chown(path, 1000, 1000)

    def program(*words: str | Path, user: int = 0) -> subprocess.CompletedProcess[str]:
        who = ("setpriv", "--reuid", str(user), "--clear-groups")
        return subprocess.run([*who, *words], check=False, capture_output=True, text=True)

    assert program("chattr", "+d", path, user=1000).returncode == 0
    seen = program("lsattr", "-v", path).stdout.split()[:2]
    assert seen == program("lsattr", "-v", view.source / "flags").stdout.split()[:2]
    assert "d" in seen[1]
    assert "not permitted" in program("chattr", "+i", path, user=1000).stderr
    assert "not permitted" in program("chattr", "-d", path, user=1001).stderr
    assert program("chattr", "+a", path).returncode == 0
    try:
        calls(call("EPERM", path.write_bytes, b"x"))
        with path.open("ab") as file:
            file.write(b"x")
    finally:
        assert program("chattr", "-a", path).returncode == 0
    (view.source / ".git").mkdir(exist_ok=True)
    for words in (("lsattr", "-d"), ("chattr", "+d")):
        assert "denied" in program(*words, view.path / ".git").stderr


def test_without_the_option_there_is_no_ioctl_and_with_pyfuse3_it_is_refused() -> None:
    with empty_view() as mounted:
        (mounted.source / "file").touch()
        done = subprocess.run(
            ["lsattr", mounted.path / "file"], check=False, capture_output=True, text=True
        )
        assert "not supported" in done.stderr or "Inappropriate" in done.stderr
        assert not os.isatty(os.open(mounted.path / "file", os.O_RDONLY))
        words = ("--enable-ioctl", "--session=pyfuse3", mounted.source, mounted.path)
        refused = run_to_end(*words)
        assert refused.returncode == 1
        assert refused.stderr.count("\n") == 1
        assert "pyfuse3 does not carry" in refused.stderr
