"""The kernel's session on a real mount: signals and slow sources cost no request."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gitguardfs.base.signals import REREAD
from tests.support.errorfs import errorfs
from tests.support.mounting import LIMIT, area, gitguardfs, until

SIZE = 300_000


@pytest.fixture
def here() -> Iterator[Path]:
    with area() as path:
        (path / "source").mkdir()
        (path / "source/file").write_bytes(b"x" * SIZE)
        yield path


def reader(path: Path) -> subprocess.Popen[bytes]:
    """Read a file past the page cache, in a process of its own: it may have to wait."""
    code = (
        "import mmap, os, sys\n"
        "fd = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)\n"
        "into = mmap.mmap(-1, 4096)\n"
        "print(os.readv(fd, [into]))"
    )
    return subprocess.Popen([sys.executable, "-S", "-c", code, path], stdout=subprocess.PIPE)


def test_signals_lose_no_request(here: Path) -> None:
    with gitguardfs(here / "source", here / "view") as view:
        ended = threading.Event()
        failures: list[BaseException] = []

        def work(number: int) -> None:
            mine = view.path / f"new{number}"
            try:
                for turn in range(100):
                    data = bytes([turn]) * 5000
                    mine.write_bytes(data)
                    fd = os.open(mine, os.O_RDWR)
                    os.fsync(fd)
                    os.close(fd)
                    assert mine.read_bytes() == data
                    assert mine.name in os.listdir(view.path)
                    mine.unlink()
            except BaseException as error:
                failures.append(error)

        def disturb() -> None:
            while not ended.wait(0.0005):
                view.process.send_signal(REREAD)

        workers = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        disturbing = threading.Thread(target=disturb)
        for thread in (*workers, disturbing):
            thread.start()
        for thread in workers:
            thread.join(LIMIT * 4)
        ended.set()
        disturbing.join()
        assert not failures, failures
        assert (view.path / "file").stat().st_size == SIZE


@pytest.mark.parametrize("size", [1, SIZE])
def test_nothing_is_asked_when_a_file_that_was_only_read_is_closed(here: Path, size: int) -> None:
    """Over a share, and with one that the kernel passes through."""
    with (
        errorfs(here / "host", here / "share", here / "control") as share,
        gitguardfs(share.path, here / "view", "-d") as view,
    ):
        (share.host / "file").write_bytes(b"x" * size)
        for flags, count in ((os.O_RDONLY, 0), (os.O_RDWR, 1)):
            os.close(os.open(view.path / "file", flags))
            assert view.requests().count("FLUSH") == count


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_an_answer_that_a_rate_holds_back_comes_when_the_daemon_is_told_to_end(
    here: Path, number: signal.Signals
) -> None:
    options = ("--read-rate", "1")
    with gitguardfs(here / "source", here / "view", *options) as view:
        reading = reader(view.path / "file")
        time.sleep(1)
        assert reading.poll() is None
        assert (view.path / "file").stat().st_size == SIZE, "others are served"
        view.process.send_signal(number)
        output, _ = reading.communicate(timeout=LIMIT)
        assert output == b"4096\n"
        until(lambda: not view.alive(), "the daemon ends")
