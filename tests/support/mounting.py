"""Start and stop real mounts for the tests: gitguardfs as a subprocess, and bindfs."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tests.support.preloaded import Process, starter

AREA = "GITGUARDFS_TEST_AREA"
"""Environment variable with the directory that a run of all tiers removes at its end."""
PLACE = os.environ.get(AREA, "/var/tmp")
"""The directory, on a disk, for files that ordinary users have to reach."""

SESSION = ""
"""The value of ``--session`` for root's mounts; "" for the default."""
AREAS: list[str] = []
"""The areas that were made in this run; nothing may stay mounted in them."""

START_LIMIT = 60.0
STOP_LIMIT = 30.0
LIMIT = 30.0
"""Seconds after which something that does not happen is taken to hang."""

T = TypeVar("T")

MOUNTINFO = Path("/proc/self/mountinfo")
REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass
class Mounted:
    """A live mount: ``path`` is the view, ``source`` lies below it."""

    source: Path
    path: Path
    process: Process
    log: Path
    expected: list[str] = field(default_factory=list)
    """Regular expressions of warnings that this test provokes on purpose."""

    def descriptors(self) -> int:
        """Return how many descriptors the daemon has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def alive(self) -> bool:
        return self.process.poll() is None

    def requests(self) -> list[str]:
        """Return the kinds of requests so far, of a mount with -d and the kernel's session."""

        def read() -> list[str]:
            return re.findall(r"opcode: (\w+)", self.log.read_text())

        before = read().count("STATFS")
        os.statvfs(self.path)  # the log is written by a thread, in order
        until(lambda: read().count("STATFS") > before, "the log is written")
        return read()

    def warnings(self) -> list[str]:
        """Lines of the daemon's log at WARNING or above that were not expected."""
        lines = self.log.read_text(errors="replace").splitlines()
        alarming = [
            line for line in lines if re.search(r"WARNING|ERROR|CRITICAL|Traceback|\berror:", line)
        ]
        return [line for line in alarming if not any(re.search(e, line) for e in self.expected)]


def command(*arguments: str | Path) -> list[str]:
    """The command line that runs this checkout's gitguardfs."""
    return [sys.executable, "-m", "gitguardfs", *map(str, arguments)]


def run_to_end(*arguments: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run this checkout's gitguardfs to its end."""
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(
        command(*arguments), env=env, capture_output=True, text=True, timeout=START_LIMIT, **more
    )


@contextmanager
def area() -> Iterator[Path]:
    """A directory that every user can reach (pytest's tmp_path is private to root)."""
    path = Path(tempfile.mkdtemp(prefix="ggfs-", dir=PLACE))
    path.chmod(0o755)
    AREAS.append(str(path))
    try:
        yield path
    finally:
        subprocess.run(["chattr", "-R", "-i", "-a", path], capture_output=True)
        shutil.rmtree(path, ignore_errors=True)
        if path.exists():
            subprocess.run(["rm", "-rf", "--one-file-system", path], check=False)


@contextmanager
def gitguardfs(
    source: Path,
    path: Path,
    *options: str,
    uid: int = 0,
    limit_nofile: int | None = None,
    cwd: Path = REPOSITORY,
    expected: tuple[str, ...] = (),
) -> Iterator[Mounted]:
    """Mount ``source`` at ``path`` with ``gitguardfs -f`` and wait for READY=1.

    On the way out: unmounts, waits for the daemon, checks that it exited 0 and that its log
    holds no warning that the test did not expect.
    """
    path.mkdir(exist_ok=True)
    if SESSION and uid == 0:
        options = (*options, "--session", SESSION)
    work = Path(tempfile.mkdtemp(prefix="ggfs-run-", dir=PLACE))
    work.chmod(0o777)
    ready = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    ready.bind(str(work / "ready"))
    (work / "ready").chmod(0o777)
    ready.settimeout(START_LIMIT)
    environment = {
        **os.environ,
        "NOTIFY_SOCKET": str(work / "ready"),
        "PYTHONPATH": str(REPOSITORY),
    }
    with open(work / "log", "wb") as log:
        process = starter().start(
            [source, path, "-f", *options], log=log.fileno(), env=environment, cwd=cwd, uid=uid,
            limit_nofile=limit_nofile,
        )  # fmt: skip
    mounted = Mounted(source, path, process, work / "log", list(expected))
    try:
        _await_ready(ready, mounted)
        yield mounted
    finally:
        ready.close()
        if mounted.alive():
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_LIMIT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        unmount(path)
        text = mounted.log.read_text(errors="replace")
        failed = process.returncode
        alarming = mounted.warnings()
        shutil.rmtree(work, ignore_errors=True)
    assert failed == 0, f"gitguardfs ended with {failed}:\n{text}"
    assert not alarming, f"unexpected warnings:\n{text}"


@contextmanager
def empty_view(*options: str, **how: Any) -> Iterator[Mounted]:
    """Mount an empty directory, in an area of its own, as ``gitguardfs``."""
    with area() as here:
        (here / "source").mkdir()
        with gitguardfs(here / "source", here / "view", *options, **how) as mounted:
            yield mounted


def _await_ready(ready: socket.socket, mounted: Mounted) -> None:
    deadline = time.monotonic() + START_LIMIT
    ready.settimeout(0.1)
    while time.monotonic() < deadline:
        try:
            if b"READY=1" in ready.recv(4096):
                return
        except TimeoutError:
            if not mounted.alive():
                break
    raise AssertionError(f"no READY=1 from gitguardfs:\n{mounted.log.read_text(errors='replace')}")


@contextmanager
def bound(directory: Path, path: Path) -> Iterator[Path]:
    """Mount a directory at ``path``, as a share is: what is sealed there stays open beside it."""
    path.mkdir()
    subprocess.run(["mount", "-n", "--bind", directory, path], check=True)
    try:
        yield path
    finally:
        unmount(path)


@contextmanager
def bindfs(source: Path, path: Path, *options: str) -> Iterator[Path]:
    """Mount ``source`` at ``path`` with the distribution's bindfs."""
    path.mkdir(exist_ok=True)
    subprocess.run(["bindfs", *options, source, path], check=True, capture_output=True)
    try:
        yield path
    finally:
        unmount(path)


def unmount(path: Path) -> None:
    """Take every mount off ``path``, also a dead one; no daemon is told."""
    while before := _listed(path):
        done = subprocess.run(["umount", "-i", "-l", path], capture_output=True, text=True)
        # A daemon may have removed the lid meanwhile.
        assert done.returncode == 0 or _listed(path) != before, done.stderr


def _listed(path: Path) -> list[str]:
    lines = MOUNTINFO.read_text().splitlines()
    return [line for line in lines if line.split()[4] == str(path)]


def daemons(here: Path) -> list[int]:
    """Return the processes of gitguardfs with a path below ``here``, parents first.

    Of a view of root's in the background these are its keeper, which starts a killed daemon again,
    and the daemon.
    """
    found = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with suppress(FileNotFoundError, ProcessLookupError):
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
            # By a word of its own: directories of the tests can have that name in theirs.
            is_ours = any(
                word.rpartition(b"/")[2] == b"gitguardfs" or b"gitguardfs.commands" in word
                for word in line.split(b"\0")
            )
            if is_ours and os.fsencode(here) + b"/" in line:
                stat = Path(f"/proc/{pid}/stat").read_text()
                found[pid] = int(stat.rpartition(")")[2].split()[1])
    return sorted(found, key=lambda pid: found[pid] in found)


def until(condition: Callable[[], T], what: str, limit: float = LIMIT) -> T:
    """Wait until ``condition()`` is true and return it; AssertionError after ``limit``."""
    deadline = time.monotonic() + limit
    while not (value := condition()):
        assert time.monotonic() < deadline, f"did not happen within {limit} s: {what}"
        time.sleep(0.01)
    return value
