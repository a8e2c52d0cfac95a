"""Locks that reach the source (--enable-lock-forwarding): host and guest see each other's."""

import errno
import fcntl
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.mounting import LIMIT, Mounted, empty_view, until

PAUSE = 0.3
"""Seconds in which a lock that is free is surely taken."""
SHARED, EXCLUSIVE = fcntl.F_RDLCK, fcntl.F_WRLCK

HOLDER = """
import fcntl, os, sys
kind, how, path, start, length = sys.argv[1:6]
fd = os.open(path, os.O_RDWR)
shared = how == "shared"
if kind == "posix":
    fcntl.lockf(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, int(length), int(start))
else:
    fcntl.flock(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
print("has it", flush=True)
sys.stdin.readline()
if sys.argv[6:] == ["by closing"]:
    os.close(os.open(path, os.O_RDONLY)) if kind == "posix" else os.close(fd)
print("dropped", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def view() -> Iterator[Mounted]:
    with empty_view("--enable-lock-forwarding") as mounted:
        (mounted.source / "file").write_bytes(b"x" * 100)
        yield mounted


@contextmanager
def holder(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process that takes a lock, and prints when it has it."""
    words = [sys.executable, "-S", "-c", HOLDER, *map(str, arguments)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


@contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR)
    try:
        yield fd
    finally:
        os.close(fd)


def posix(fd: int, start: int = 0, length: int = 0) -> None:
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, length, start)


def whole(fd: int, start: int = 0, length: int = 0) -> None:
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def of_description(fd: int, start: int = 0, length: int = 0) -> None:
    asked = struct.pack("hhqqi4x", EXCLUSIVE, os.SEEK_SET, start, length, 0)
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, asked)


def is_free(take: Callable[..., None], path: Path, start: int = 0, length: int = 0) -> bool:
    with opened(path) as fd:
        try:
            take(fd, start, length)
        except BlockingIOError:
            return False
        return True


@pytest.mark.parametrize(("kind", "take"), [("posix", posix), ("flock", whole),
                                            ("posix", of_description)])  # fmt: skip
@pytest.mark.parametrize("is_on_host", [True, False])
@pytest.mark.parametrize("way", ["by closing", "killed"])
def test_host_and_guest_see_each_others_locks(
    view: Mounted, kind: str, take: Callable[..., None], is_on_host: bool, way: str
) -> None:
    here, there = view.source / "file", view.path / "file"
    mine = here if is_on_host else there
    with holder(kind, "exclusive", mine, 10, 20, way) as process:
        assert line_of(process) == "has it"
        for path in (here, there):
            assert not is_free(take, path, 15, 1)
            if kind == "posix":
                assert is_free(take, path, 30, 10), "it has a part of the file"
        if way == "killed":
            process.kill()
            process.wait()
        else:
            tell(process)
            assert line_of(process) == "dropped"
        for path in (here, there):  # the kernel does not wait for RELEASE
            until(lambda path=path: is_free(take, path, 15, 1), "it is free")


def test_readers_share_and_a_holder_is_named_by_its_range(view: Mounted) -> None:
    with holder("posix", "shared", view.path / "file", 10, 20) as process:
        assert line_of(process) == "has it"
        for path in (view.source / "file", view.path / "file"):
            with opened(path) as fd:
                fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 15)
                asked = struct.pack("hhqqi4x", EXCLUSIVE, os.SEEK_SET, 0, 0, 0)
                found = struct.unpack("hhqqi4x", fcntl.fcntl(fd, fcntl.F_GETLK, asked))
                assert (found[0], found[2], found[3]) == (SHARED, 10, 20)
                free = struct.pack("hhqqi4x", EXCLUSIVE, os.SEEK_SET, 40, 0, 0)
                assert struct.unpack("hhqqi4x", fcntl.fcntl(fd, fcntl.F_GETLK, free))[0] == 2


def test_a_reader_s_lock_needs_no_right_to_write(view: Mounted) -> None:
    fd = os.open(view.path / "file", os.O_RDONLY)
    fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    with pytest.raises(OSError) as caught:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert caught.value.errno == errno.EBADF
    assert not is_free(posix, view.source / "file")
    os.close(fd)
    assert is_free(posix, view.source / "file")


@pytest.mark.parametrize("take", [fcntl.lockf, fcntl.flock])
def test_the_host_executes_a_file_that_a_reader_has_locked(
    view: Mounted, take: Callable[[int, int], None]
) -> None:
    program = view.source / "program"
    shutil.copy("/bin/true", program)
    fd = os.open(view.path / "program", os.O_RDONLY)
    take(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    subprocess.run([program], check=True)
    os.close(fd)


def test_a_reader_s_locks_stay_when_it_locks_for_writing(view: Mounted) -> None:
    reading = os.open(view.path / "file", os.O_RDONLY)
    fcntl.lockf(reading, fcntl.LOCK_SH | fcntl.LOCK_NB, 10, 0)
    fcntl.lockf(reading, fcntl.LOCK_SH | fcntl.LOCK_NB, 0, 90)  # to the end
    writing = os.open(view.path / "file", os.O_RDWR)
    posix(writing, 5, 10)
    here = view.source / "file"
    taken = [
        start for start in (0, 5, 14, 15, 90, 1000) if not is_free(of_description, here, start, 1)
    ]
    with opened(here) as fd:
        fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB, 5, 0)  # for reading, as there
    os.close(writing)  # as POSIX has it, all are dropped
    is_dropped = is_free(posix, here)
    os.close(reading)
    assert taken == [0, 5, 14, 90, 1000]
    assert is_dropped


@pytest.mark.parametrize("kind", ["posix", "flock"])
@pytest.mark.parametrize("is_on_host", [True, False])
def test_who_waits_gets_the_lock_and_holds_nobody_up(
    view: Mounted, kind: str, is_on_host: bool
) -> None:
    take = posix if kind == "posix" else whole
    first = (view.source if is_on_host else view.path) / "file"
    with holder(kind, "exclusive", first, 0, 0, "by closing") as process:
        assert line_of(process) == "has it"
        with contextmanager(_many)(40, kind, view.path / "file") as waiting:
            time.sleep(PAUSE)
            since = time.monotonic()
            (view.path / "other").write_text("text")
            assert (view.path / "other").read_text() == "text"
            assert time.monotonic() - since < LIMIT / 3
            assert not is_free(take, view.source / "file")
            tell(process)
            for each in waiting:
                each.kill() if line_of(each) == "has it" else pytest.fail("it does not have it")


def _many(count: int, kind: str, path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that wait for the lock and drop it as soon as they have it."""
    code = HOLDER.replace("sys.stdin.readline()", "sys.exit()")
    words = [sys.executable, "-S", "-c", code, kind, "exclusive", str(path), "0", "0"]
    waiting = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    try:
        yield waiting
    finally:
        for each in waiting:
            each.kill()
            each.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_the_wait(view: Mounted, number: signal.Signals) -> None:
    with holder("posix", "exclusive", view.source / "file", 0, 0) as first:
        assert line_of(first) == "has it"
        with holder("posix", "exclusive", view.path / "file", 0, 0) as second:
            until(lambda: _is_waiting(second.pid), "it waits")
            second.send_signal(number)
            assert second.wait(LIMIT) == -number


def _is_waiting(pid: int) -> bool:
    with suppress(OSError), open(f"/proc/{pid}/wchan") as file:
        return "request_wait_answer" in file.read()
    return False


def test_a_wait_ends_with_the_daemon() -> None:
    with empty_view("--enable-lock-forwarding") as mounted:
        (mounted.source / "file").touch()
        with holder("flock", "exclusive", mounted.source / "file", 0, 0) as first:
            assert line_of(first) == "has it"
            with holder("flock", "exclusive", mounted.path / "file", 0, 0) as second:
                until(lambda: _is_waiting(second.pid), "it waits")
                mounted.process.terminate()
                assert second.wait(LIMIT) == 1


def test_nothing_is_left_open(view: Mounted) -> None:
    before = view.descriptors()
    threads = []
    for number in range(5):
        path = view.path / f"locked{number}"
        path.touch()

        def work(path: Path = path) -> None:
            with opened(path) as fd, opened(path) as other:
                posix(fd, 0, 5)
                whole(other)
                of_description(other, 5, 5)

        threads.append(threading.Thread(target=work))
        threads[-1].start()
    for thread in threads:
        thread.join()
    for number in range(5):
        (view.path / f"locked{number}").unlink()
    until(lambda: view.descriptors() <= before, "all is closed")


def test_without_the_option_locks_stay_in_the_guest() -> None:
    with empty_view("-d") as mounted:
        (mounted.source / "file").write_bytes(b"x" * 100)
        with holder("posix", "exclusive", mounted.path / "file", 0, 0) as process:
            assert line_of(process) == "has it"
            assert not is_free(posix, mounted.path / "file")
            assert is_free(posix, mounted.source / "file")
        assert not {"SETLK", "SETLKW"} & set(mounted.requests())
