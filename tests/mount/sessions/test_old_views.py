"""Files of a view that has ended, which the kernel goes on reading and writing for users."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gitguardfs.mounting import guards, old_views
from tests.support.mounting import area, daemons, gitguardfs, run_to_end, unmount, until
from tests.support.own_mounts import AS_AGENT

LARGE = 65 * 1024
"""Bytes of a file that is lent also to who only reads it."""
FORMER = ("--seal", "--cache-timeout=2")
STRICTER = (*FORMER, "--protect=file")
_HOLD = """
import ctypes, mmap, os, socket, sys, threading
path, what = sys.argv[1:]
kept = []
if what == "a working directory":
    os.chdir(path)
else:
    flags = os.O_PATH if what == "a path" else os.O_RDWR
    kept.append(os.open(path + "/file", flags))
if "map" in what:
    kept.append(mmap.mmap(kept[0], 0))
    os.closerange(kept[0], kept[0] + 10)  # mmap has made a copy of it
elif what == "in a socket":
    kept += socket.socketpair()
    socket.send_fds(kept[1], [b"x"], kept[:1])
    os.close(kept[0])
elif what == "in an io_uring":
    ring = ctypes.CDLL(None).syscall(425, 8, (ctypes.c_char * 120)())  # io_uring_setup
    assert ring >= 0
    files = (ctypes.c_int * 1)(kept[0])
    assert ctypes.CDLL(None).syscall(427, ring, 2, files, 1) == 0  # IORING_REGISTER_FILES
    os.close(kept[0])
def serve():
    print("holds", flush=True)
    for line in sys.stdin:
        if "map" in what:
            kept[-1][:3] = b"new"
            print(kept[-1][3:6].decode(), flush=True)
        else:
            os.pwrite(kept[0], b"new", 0)
            print(os.pread(kept[0], 3, 3).decode(), flush=True)
    os._exit(0)
if what == "a map of a thread":
    threading.Thread(target=serve).start()
    ctypes.CDLL(None).syscall(60, 0)  # exit: of this thread alone
serve()
"""


class Holder:
    """A process of the agent's that has a file of a view open."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.pid = process.pid
        self._process = process

    def writes_and_reads(self) -> str:
        """Have it write "new" at the file's begin; return the three bytes that follow."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().decode().strip()


@pytest.fixture
def here() -> Iterator[Path]:
    with area() as path:
        (path / "source").mkdir()
        file = path / "source/file"
        file.write_bytes(b"olddata" + bytes(LARGE))
        file.chmod(0o666)
        (path / "view").mkdir()
        try:
            yield path
        finally:
            unmount(path / "view")
            unmount(path / "source")


@contextmanager
def held(view: Path, what: str = "a file") -> Iterator[Holder]:
    with subprocess.Popen(
        ["/usr/bin/python3", "-c", _HOLD, view, what],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, **AS_AGENT,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"holds\n"
            yield Holder(process)
        finally:
            process.kill()


def start(here: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return run_to_end(here / "source", here / "view", *options)


def starts(here: Path, *options: str) -> None:
    done = start(here, *options)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def note_of(view: Path) -> Path:
    return Path(old_views.NOTES) / str(os.minor(view.stat().st_dev))


def end(here: Path, number: int = signal.SIGTERM) -> None:
    """End the daemon. By SIGTERM its seal goes, by SIGUSR2 it stays."""
    there = daemons(here)
    os.kill(there[0], number)  # to the keeper, which passes it on
    if number == signal.SIGKILL:
        os.kill(there[1], number)
    until(lambda: not daemons(here), "the daemon has ended")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2, signal.SIGKILL])
@pytest.mark.parametrize("what", ["a file", "a map", "a map of a thread"])
def test_who_has_a_file_of_an_ended_view_open_keeps_a_stricter_one_from_starting(
    here: Path, what: str, number: int
) -> None:
    starts(here, *FORMER)
    with held(here / "view", what) as holder:
        end(here, number)
        for _ in range(2):  # the second one takes the first one's seal over
            done = start(here, *STRICTER)
            assert done.returncode == 32, done.stderr
            kind = "descriptor 3" if what == "a file" else "a mapped file"
            assert f"earlier view: {holder.pid} (python3): {kind} (end them" in done.stderr
            assert not (here / "view/file").exists()
        assert holder.writes_and_reads() == "dat"
        assert (here / "source").is_mount()
    starts(here, *STRICTER)


@pytest.mark.parametrize("what", ["in a socket", "in an io_uring"])
def test_descriptors_that_may_keep_a_file_open_count(here: Path, what: str) -> None:
    starts(here, *FORMER)
    with held(here / "view", what) as holder:
        end(here)
        done = start(here, *STRICTER)
        assert done.returncode == 32
        assert f"{holder.pid} (python3): descriptor" in done.stderr, done.stderr
        assert ", which may keep others (end them" in done.stderr, done.stderr
        starts(here, *FORMER)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2, signal.SIGKILL])
@pytest.mark.parametrize("what", ["a file", "a map"])
def test_by_the_same_rules_a_view_starts_again_and_files_stay_open(
    here: Path, what: str, number: int
) -> None:
    starts(here, *FORMER)
    with held(here / "view", what) as holder:
        for timeout in "3", "4":
            end(here, number)
            starts(here, f"--cache-timeout={timeout}", "--seal")
        assert holder.writes_and_reads() == "dat"
        assert (here / "view/file").read_bytes()[:7] == b"newdata"


@pytest.mark.parametrize("what", ["a working directory", "a path"])
def test_what_is_useless_without_its_view_does_not_count(here: Path, what: str) -> None:
    starts(here, *FORMER)
    with held(here / "view", what):
        end(here)
        starts(here, *STRICTER)


@pytest.mark.parametrize("option", ["--session=pyfuse3", "--direct-io", "--read-rate=1G"])
def test_files_of_a_view_that_lent_nothing_do_not_count(here: Path, option: str) -> None:
    done = run_to_end(here / "source", here / "view", *FORMER, option)
    assert done.returncode == 0, done.stderr
    with held(here / "view"):
        end(here)
        starts(here, *STRICTER)


def test_files_of_another_source_do_not_count(here: Path) -> None:
    (here / "other").mkdir()
    starts(here, *FORMER)
    with held(here / "view"):
        end(here)
        done = run_to_end(here / "other", here / "view", *STRICTER)
        end(here)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


@pytest.mark.parametrize("is_known", [True, False])
def test_files_of_a_view_that_is_served_do_not_count(here: Path, is_known: bool) -> None:
    with (
        gitguardfs(here / "source", here / "beside", expected=("stays open",)) as beside,
        held(beside.path),
        held(beside.path, "in a socket"),
    ):
        if not is_known:
            note_of(beside.path).unlink()
            (Path(guards.RECORDS) / str(beside.process.pid)).unlink()
        starts(here, *STRICTER)


def test_files_of_another_fuse_file_system_do_not_count(here: Path) -> None:
    (here / "beside").mkdir()
    with subprocess.Popen(["bindfs", "-f", here / "source", here / "beside"]) as server:
        until((here / "beside").is_mount, "it is mounted")
        with held(here / "beside"):
            server.kill()
            server.wait()
            starts(here, *STRICTER)
            unmount(here / "beside")


def test_files_of_a_view_that_was_not_noted_count(here: Path) -> None:
    starts(here, *FORMER)
    note_of(here / "view").unlink()
    with held(here / "view") as holder:
        end(here)
        done = start(here, *FORMER)
        assert done.returncode == 32 and f" {holder.pid} (python3): " in done.stderr, done.stderr


def test_a_daemon_that_has_lost_its_view_hides_none_with_the_same_number(here: Path) -> None:
    starts(here, *FORMER)
    [view] = [mount for mount in guards.guards() if mount.path == str(here / "view")]
    with held(here / "view") as holder:
        end(here)
        record = guards.Record(replace(view, mnt_id=view.mnt_id + 1), "/other", [])
        try:
            done = start(here, *STRICTER)
        finally:
            record.remove()
        assert done.returncode == 32 and f" {holder.pid} (python3): " in done.stderr, done.stderr


def test_who_has_files_open_can_be_allowed(here: Path) -> None:
    starts(here, *FORMER)
    with held(here / "view") as holder:
        end(here)
        done = start(here, *STRICTER, "--allow-holders")
        assert done.returncode == 0 and f" {holder.pid} (python3): " in done.stderr, done.stderr


def test_a_source_that_only_root_reaches_is_searched_without_a_seal(here: Path) -> None:
    closed = here / "closed"
    closed.mkdir(mode=0o700)
    (here / "source").rename(closed / "source")
    assert run_to_end(closed / "source", here / "view").returncode == 0
    with held(here / "view") as holder:
        end(here)
        done = run_to_end(closed / "source", here / "view", "--protect=file")
        assert done.returncode == 32 and f" {holder.pid} (python3): " in done.stderr, done.stderr


def test_notes_of_views_that_are_gone_are_removed(here: Path) -> None:
    starts(here, *FORMER)
    left = Path(old_views.NOTES) / "1048575"
    left.write_text("lends")
    end(here)
    starts(here, *FORMER)
    assert not left.exists()
    assert left.parent.stat().st_mode & 0o777 == 0o700
