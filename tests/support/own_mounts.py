"""FUSE mounts that an ordinary user gets by setuid fusermount3, wherever that user may write."""

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tests.support.people import AGENT
from tests.support.raw_calls import (
    MNT_DETACH,
    MS_PRIVATE,
    MS_REC,
    RENAME_EXCHANGE,
    mount,
    pivot_root,
    renameat2,
    umount,
)

_MOUNT = """
import os, socket, subprocess, sys
ours, theirs = socket.socketpair()
subprocess.run(
    ["fusermount3", "-o", sys.argv[2], "--", sys.argv[1]], check=True,
    env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno())}, pass_fds=[theirs.fileno()],
)
_, devices, _, _ = socket.recv_fds(ours, 1, 1)
print("mounted", flush=True)
sys.stdin.read()
"""
AS_AGENT: dict[str, Any] = {"user": AGENT, "group": AGENT, "extra_groups": [], "cwd": "/"}


@contextmanager
def own_mount(
    path: Path, options: str = "fsname=own,subtype=own", served: bool = True
) -> Iterator[None]:
    """Mount a file system of the agent's at ``path``, whose device is open in the body.

    If it is not ``served``, the device is closed: a dead mount. It is not unmounted here.
    """
    process = subprocess.Popen(
        ["/usr/bin/python3", "-c", _MOUNT, path, options],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, **AS_AGENT,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == b"mounted\n"
        if not served:
            process.stdin.close()
            process.wait()
        yield
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait()


def unmount_own(path: Path) -> subprocess.Popen[bytes]:
    """Start the agent's ``fusermount3 -u -z``, which unmounts what is on top of ``path``."""
    return subprocess.Popen(
        ["fusermount3", "-u", "-z", path], stderr=subprocess.DEVNULL, **AS_AGENT
    )


_RACE = """
import os, socket, subprocess, sys
path, at_once = sys.argv[1], int(sys.argv[2])
while os.stat(path).st_dev == int(sys.argv[3]):
    ours, theirs = socket.socketpair()
    subprocess.run(
        ["fusermount3", "-o", "subtype=own", "--", path], stderr=subprocess.DEVNULL,
        env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno())}, pass_fds=[theirs.fileno()],
    )
    ours.close(), theirs.close()
    racing = [
        subprocess.Popen(["fusermount3", "-u", "-z", path], stderr=subprocess.DEVNULL)
        for _ in range(at_once)
    ]
    for each in racing:
        each.wait()
"""
RACING = 4


@contextmanager
def racing_for(view: Path, place: Path) -> Iterator[IO[bytes]]:
    """Have the agent mount and unmount its own at ``place`` until root's view is unmounted.

    Reading the yielded file then returns its end.
    """
    racing = subprocess.Popen(
        ["/usr/bin/python3", "-c", _RACE_ELSEWHERE, place, str(RACING), _device(view)],
        stdout=subprocess.PIPE, **AS_AGENT,
    )  # fmt: skip
    assert racing.stdout is not None
    try:
        yield racing.stdout
    finally:
        racing.kill()
        racing.wait()
        racing.stdout.close()


def _device(view: Path) -> str:
    number = view.stat().st_dev
    return f" {os.major(number)}:{os.minor(number)} "


def exchange_mount_points(directory: Path, end: IO[bytes], limit: float) -> int:
    """Exchange ``view`` and ``own`` until ``end`` is at its end. Returns the number of times.

    To be called as the agent in user and mount namespaces of its own. There neither is a mount
    point, since all mounts are left behind: so the kernel lets them be exchanged.
    """
    inside = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    new = directory / "new"
    mount("none", Path("/"), flags=MS_REC | MS_PRIVATE)
    mount("tmpfs", new, "tmpfs")
    (new / "old").mkdir()
    pivot_root(new, new / "old")
    umount(Path("/old"), MNT_DETACH)
    os.fchdir(inside)
    deadline = time.monotonic() + limit
    times = 0
    while not select.select([end], [], [], 0)[0]:
        renameat2(Path("view"), Path("own"), RENAME_EXCHANGE)
        times += 1
        if time.monotonic() > deadline:
            raise AssertionError("the race was not won")
    return times


_RACE_ELSEWHERE = _RACE.replace(
    "while os.stat(path).st_dev == int(sys.argv[3]):",
    'while sys.argv[3] in open("/proc/self/mountinfo").read():',
)


def race_for(view: Path, limit: float) -> None:
    """Have the agent unmount root's view, by several fusermount3 that each saw an agent's mount.

    AssertionError if the race is not won within ``limit`` seconds.
    """
    device = str(view.stat().st_dev)
    done = subprocess.run(
        ["/usr/bin/python3", "-c", _RACE, view, str(RACING), device],
        timeout=limit, check=False, capture_output=True, text=True, **AS_AGENT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


PAUSED = """
import importlib, os, sys, time
from gitguardfs.commands.gitguardfs import main
gate, where, name = sys.argv[1:4]
del sys.argv[1:4]
module = importlib.import_module(where)
function = getattr(module, name)
def pausing(*arguments, **more):
    done = function(*arguments, **more)
    open(gate + ".reached", "w").close()
    while not os.path.exists(gate):
        time.sleep(0.01)
    return done
setattr(module, name, pausing)
main()
"""
"""gitguardfs, which waits for a file after a call of one of its functions."""


def paused_command(
    gate: Path, *arguments: str | Path, after: str = "gitguardfs.mounting.preflight.check_paths"
) -> list[str]:
    """Return a command that makes ``GATE.reached`` after a call, and waits for GATE."""
    module, _, name = after.rpartition(".")
    return [sys.executable, "-c", PAUSED, str(gate), module, name, *map(str, arguments)]
