"""An error that a server reports at close(2) reaches each process that closes, every time."""

import errno
import mmap
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.errorfs import Fault, Share, errorfs
from tests.support.mounting import area, gitguardfs, unmount

PAGE = mmap.PAGESIZE


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Share, Path]]:
    with area() as here:
        here.chmod(0o700)
        with errorfs(here / "host", here / "share", here / "control") as share:
            with gitguardfs(share.path, here / "view") as mounted:
                yield share, mounted.path


def _write(path: Path, flags: int) -> None:
    fd = os.open(path, flags, 0o644)
    try:
        assert os.write(fd, b"data") == 4
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)


def _map(path: Path) -> None:
    fd = os.open(path, os.O_RDWR)
    with mmap.mmap(fd, PAGE) as pages:
        pages[:4] = b"data"
    os.close(fd)


def _append_and_map(path: Path) -> None:
    fd = os.open(path, os.O_RDWR | os.O_APPEND)
    with mmap.mmap(fd, PAGE) as pages:
        pages[:4] = b"data"
    os.write(fd, b"more")
    os.close(fd)


def _close_a_duplicate(path: Path) -> None:
    fd = os.open(path, os.O_WRONLY)
    os.write(fd, b"data")
    other = os.dup(fd)
    try:
        os.close(other)
    finally:
        with pytest.raises(OSError):  # and again
            os.close(fd)


WAYS: dict[str, Callable[[Path], None]] = {
    "a new file": lambda path: _write(path.with_name("new"), os.O_WRONLY | os.O_CREAT | os.O_EXCL),
    "overwritten": lambda path: _write(path, os.O_WRONLY),
    "truncated": lambda path: _write(path, os.O_WRONLY | os.O_TRUNC),
    "appended": lambda path: _write(path, os.O_WRONLY | os.O_APPEND),
    "mapped": _map,
    "appended and mapped": _append_and_map,
    "a duplicate": _close_a_duplicate,
    "shutil": lambda path: shutil.copyfile(__file__, path) and None,
}  # fmt: skip

PROGRAMS = {
    "cp": ["cp", __file__], "dd": ["dd", f"if={__file__}", "of={}"],
    "install": ["install", __file__],
}  # fmt: skip


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.ENOSPC, errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("way", WAYS)
def test_close_reports_what_the_server_says(
    served: tuple[Share, Path], way: str, number: int
) -> None:
    share, view = served
    (share.host / "new").unlink(missing_ok=True)
    (share.host / "file").write_bytes(b"x" * 2 * PAGE)
    WAYS[way](view / "file") if way != "a duplicate" else None
    (share.host / "new").unlink(missing_ok=True)
    with share.failing(Fault(("FLUSH",), error=number)):
        with pytest.raises(OSError) as caught:
            WAYS[way](view / "file")
    assert caught.value.errno == number


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_say_what_the_server_says(served: tuple[Share, Path], program: str) -> None:
    share, view = served
    words = [word.format(view / "file") for word in PROGRAMS[program]]
    words += [] if program == "dd" else [str(view / "file")]
    subprocess.run(words, check=True, capture_output=True)
    with share.failing(Fault(("FLUSH",), "file", errno.EDQUOT)):
        done = subprocess.run(words, check=False, capture_output=True, env={"LC_ALL": "C"})
    assert done.returncode != 0
    assert os.strerror(errno.EDQUOT).encode() in done.stderr


def test_a_file_that_was_only_read_is_closed_without_the_server(
    served: tuple[Share, Path],
) -> None:
    share, view = served
    (share.host / "file").write_bytes(b"x")
    with share.failing(Fault(("FLUSH",), error=errno.EIO)):
        assert (view / "file").read_bytes() == b"x"


def test_a_local_source_is_not_asked_at_close() -> None:
    """The kernel stops sending FLUSH after the first one, a third of the cost of open and close."""
    with area() as here:
        here.chmod(0o700)
        (here / "source").mkdir()
        with gitguardfs(here / "source", here / "view", "-d", expected=("error: -",)) as mounted:
            for _ in range(3):
                (mounted.path / "file").write_text("text")
            log = mounted.log.read_text(errors="replace")
    assert log.count("opcode: FLUSH") == 1


def test_a_share_below_a_local_source_is_asked() -> None:
    with area() as here:
        here.chmod(0o700)
        (here / "source/share").mkdir(parents=True)
        with errorfs(here / "host", here / "source/share", here / "control") as share:
            with gitguardfs(here / "source", here / "view") as mounted:
                (mounted.path / "local").write_text("text")
                with share.failing(Fault(("FLUSH",), error=errno.EDQUOT)):
                    (mounted.path / "local").write_text("text")
                    with pytest.raises(OSError) as caught:
                        (mounted.path / "share/file").write_text("text")
                assert caught.value.errno == errno.EDQUOT
            unmount(here / "view")
