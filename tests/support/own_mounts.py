"""FUSE mounts that an ordinary user gets by setuid fusermount3, wherever that user may write."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.people import AGENT

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


def race_for(view: Path, limit: float) -> None:
    """Have the agent unmount root's view, by several fusermount3 that each have seen one of his.

    AssertionError if the race is not won within ``limit`` seconds.
    """
    device = str(view.stat().st_dev)
    done = subprocess.run(
        ["/usr/bin/python3", "-c", _RACE, view, str(RACING), device],
        timeout=limit, check=False, capture_output=True, text=True, **AS_AGENT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


PAUSED = """
import os, sys, time
from gitguardfs.fuse import preflight
from gitguardfs.cli import main
gate = sys.argv.pop(1)
check = preflight.check
def pausing(*arguments, **more):
    places = check(*arguments, **more)
    open(gate + ".reached", "w").close()
    while not os.path.exists(gate):
        time.sleep(0.01)
    return places
preflight.check = pausing
main()
"""
"""gitguardfs that waits for a file, between its checks and what they are for."""


def paused_command(gate: Path, *arguments: str | Path) -> list[str]:
    """Return the command that makes ``GATE.reached`` when it has checked, and waits for GATE."""
    return [sys.executable, "-c", PAUSED, str(gate), *map(str, arguments)]
