"""Processes that have had files of the raw share open since before the seal."""

from __future__ import annotations

import os
import random
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gitguardfs.linux import holders, mountinfo
from gitguardfs.mounting import seal
from tests.support.mounting import LIMIT, area, command, gitguardfs, unmount
from tests.support.own_mounts import AS_AGENT

_HOLD = """
import ctypes, mmap, os, socket, sys
source, what = sys.argv[1:]
def from_a_namespace(path):
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        assert ctypes.CDLL(None).unshare(0x10020000) == 0  # CLONE_NEWUSER, CLONE_NEWNS
        socket.send_fds(theirs, [b"x"], [os.open(path, os.O_PATH)])
        os._exit(0)
    os.waitpid(child, 0)
    return socket.recv_fds(ours, 1, 1)[1][0]
if what == "its working directory":
    os.chdir(source + "/sub")
elif what == "a descriptor":
    kept = os.open(source + "/sub", os.O_PATH)
elif what == "a mapped file":
    fd = os.open(source + "/file", os.O_RDONLY)
    kept = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
    os.closerange(fd, fd + 10)  # mmap has made a copy of it
elif what == "a descriptor from a namespace that is gone":
    kept = from_a_namespace(source + "/sub")
elif what == "a file from a namespace that is gone":
    kept = from_a_namespace(source + "/file")
elif what == "a directory around it from a namespace that is gone":
    kept = from_a_namespace(os.path.dirname(source))
    assert "sub" in os.listdir(os.open("source", os.O_RDONLY, dir_fd=kept))
elif what == "a descriptor that waits in a socket":
    ours, theirs = socket.socketpair()
    fd = os.open(source + "/sub", os.O_PATH)
    socket.send_fds(theirs, [b"x"], [fd])
    os.close(fd)
elif what == "its working directory in a namespace of its own":
    assert ctypes.CDLL(None).unshare(0x10020000) == 0
    os.chdir(source + "/sub")
elif what == "its root directory":
    outside = os.open("/", os.O_PATH)
    assert ctypes.CDLL(None).unshare(0x10000000) == 0  # CLONE_NEWUSER
    os.chroot(source)
    os.fchdir(outside)
    os.close(outside)
elif what == "a directory deeper than a path is long":
    os.chdir(source)
    while os.path.isdir("d" * 200):
        os.chdir("d" * 200)
    kept = os.open(".", os.O_PATH)
elif what == "a thread's directory":
    import threading
    ready = threading.Event()
    def stay():
        assert ctypes.CDLL(None).unshare(0x200) == 0  # CLONE_FS
        os.chdir(source)
        ready.set()
        threading.Event().wait()
    threading.Thread(target=stay, daemon=True).start()
    ready.wait()
ctypes.CDLL(None).prctl(15, b"na\\033[2Jme", 0, 0, 0)
print("holds", flush=True)
sys.stdin.read()
"""
_HOP = """
import os, sys
os.chdir(sys.argv[1])
print("hops", flush=True)
while not os.path.exists(sys.argv[2]):
    if os.fork():
        os._exit(0)
"""


@pytest.fixture
def here() -> Iterator[Path]:
    with area() as path:
        (path / "source/sub").mkdir(parents=True)
        (path / "source/file").write_text("text")
        (path / "view").mkdir()
        (path / "beside").mkdir()
        try:
            yield path
        finally:
            unmount(path / "view")
            unmount(path / "source")


@contextmanager
def _held(place: Path, what: str) -> Iterator[int]:
    process = subprocess.Popen(
        ["/usr/bin/python3", "-c", _HOLD, place, what],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **AS_AGENT,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == b"holds\n"
        yield process.pid
    finally:
        process.communicate()


def _run(here: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(here / "source", here / "view", "--seal", *options),
        capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip


def _is_sealed(here: Path) -> bool:
    top = mountinfo.top_at(str(here / "source"))
    return top is not None and seal.is_seal(top)


@pytest.mark.parametrize(
    "what",
    [
        "its working directory",
        "its root directory",
        "a descriptor",
        "a mapped file",
        "a thread's directory",
        "a descriptor from a namespace that is gone",
        "a file from a namespace that is gone",
        "a directory around it from a namespace that is gone",
        "a descriptor that waits in a socket",
        "its working directory in a namespace of its own",
    ],
)
def test_who_holds_the_share_is_named_and_keeps_the_guard_from_starting(
    here: Path, what: str
) -> None:
    with _held(here / "source", what) as pid:
        for _ in range(2):  # the second one takes the first one's seal over
            done = _run(here)
            assert done.returncode == 32, done.stderr
            assert f"{pid} (na\\x1b[2Jme): " in done.stderr, done.stderr
            assert "then start again" in done.stderr
            assert _is_sealed(here)
            assert not os.path.ismount(here / "view")
    done = _run(here)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


@pytest.mark.every_processor
def test_a_process_that_becomes_another_one_all_the_time_is_not_overlooked(here: Path) -> None:
    process = subprocess.Popen(
        ["/usr/bin/python3", "-c", _HOP, here / "source", here / "stop"],
        stdout=subprocess.PIPE, **AS_AGENT,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"hops\n"
        done = _run(here)
    finally:
        (here / "stop").touch()
        process.stdout.read()
        process.stdout.close()
        process.wait()
    assert done.returncode == 32, done.stderr
    assert _is_sealed(here)


_HAND_ON = """
import os, socket, sys
sys.stdin.readline()
peer = socket.socket(fileno=int(sys.argv[1]))
if sys.argv[2:]:
    kept = os.open(sys.argv[2], os.O_PATH)
    print("holds", flush=True)
    sys.stdin.readline()
    socket.send_fds(peer, [b"x"], [kept])
    peer.recv(1)
    os.close(kept)
    print("handed on", flush=True)
else:
    kept = socket.recv_fds(peer, 1, 1)[1][0]
    peer.send(b"x")
sys.stdin.read()
"""


@pytest.mark.every_processor
def test_two_that_hand_a_descriptor_on_while_they_are_looked_at_are_found(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The descriptor is always in the process that is not being examined, until the second pass."""
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    pipes: dict[str, Any] = {"stdin": pipe, "stdout": pipe, "stderr": null, "bufsize": 0}
    python = ["/usr/bin/python3", "-c", _HAND_ON]
    ours, theirs = socket.socketpair()
    with (
        ours,
        theirs,
        subprocess.Popen(
            [*python, str(ours.fileno()), here / "source"], pass_fds=[ours.fileno()],
            **pipes, **AS_AGENT,
        ) as giver,
        subprocess.Popen(
            [*python, str(theirs.fileno())], pass_fds=[theirs.fileno()], **pipes, **AS_AGENT
        ) as taker,
    ):  # fmt: skip
        assert giver.stdin and giver.stdout and taker.stdin
        giver.stdin.write(b"\n")
        assert giver.stdout.readline() == b"holds\n"
        list_directory, looked_at = os.listdir, set()

        def watched(path: str) -> list[str]:
            found = list_directory(path)
            if path == f"/proc/{taker.pid}/task":
                looked_at.add(taker.pid)
            elif path == f"/proc/{giver.pid}/task" and looked_at == {taker.pid}:
                looked_at.add(giver.pid)
                taker.stdin.write(b"\n")
                giver.stdin.write(b"\n")
                assert giver.stdout.readline() == b"handed on\n"
            return found

        monkeypatch.setattr(os, "listdir", watched)
        monkeypatch.setattr(random, "sample", lambda pids, _: [taker.pid, giver.pid])
        table = mountinfo.listed()
        fd = os.open(here / "source", os.O_PATH)
        mount = next(one for one in table if one.mnt_id == mountinfo.number_of(fd))
        found = holders.find_holders(
            holders.with_shares_below(bytes(here / "source"), mount, table)
        )
        assert [one.pid for one in found] == [taker.pid]
        os.close(fd)
        for process in (giver, taker):
            process.stdin.close()
            process.stdout.close()


def test_what_is_beside_the_share_or_in_a_view_of_it_does_not_count(here: Path) -> None:
    with gitguardfs(
        here / "source", here / "beside", "--git=off", expected=(r"stays open",)
    ) as beside:
        with _held(beside.path, "a descriptor"), _held(here, "none"):
            # Descriptors that it inherits may be of mounts that this namespace does not show.
            null = subprocess.DEVNULL
            with subprocess.Popen(
                ["sleep", "600"], cwd=here, user=1000, stdout=null, stderr=null
            ) as process:
                done = _run(here)
                process.kill()
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


@pytest.mark.parametrize(("opened", "status"), [("beside/file", 0), ("source/file", 32)])
def test_a_descriptor_of_another_namespace_s_mount_counts_by_where_it_leads(
    here: Path, opened: str, status: int
) -> None:
    """For example the output of a service in a mount namespace, inherited from outside of it."""
    (here / "beside/file").write_text("text")
    root_s = ["unshare", "--mount", "--propagation=private", "sh", "-c", "echo ready; read line"]
    pipe = subprocess.PIPE
    with subprocess.Popen(root_s, stdin=pipe, stdout=pipe) as around:
        assert around.stdout is not None
        assert around.stdout.readline() == b"ready\n"
        with (
            open(f"/proc/{around.pid}/root{here / opened}", "rb") as file,
            subprocess.Popen(
                ["sleep", "600"], stdin=file, stdout=pipe, stderr=pipe, **AS_AGENT
            ) as process,
        ):
            done = _run(here)
            process.kill()
        around.communicate(b"\n")
    assert done.returncode == status, done.stderr
    assert (f"{process.pid} (sleep): descriptor 0" in done.stderr) == (status != 0)


DEEP = "a directory deeper than a path is long"


def _dig(place: Path) -> None:
    fd = os.open(place, os.O_PATH)
    for _ in range(25):
        os.mkdir("d" * 200, dir_fd=fd)
        below = os.open("d" * 200, os.O_PATH, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)


def test_who_holds_what_is_deep_in_the_share_is_named(here: Path) -> None:
    _dig(here / "source")
    with _held(here / "source", DEEP) as pid:
        done = _run(here)
    assert done.returncode == 32 and f"{pid} (" in done.stderr, done.stderr


def test_what_is_deep_elsewhere_does_not_count(here: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "none", here / "beside"], check=True)
    try:
        _dig(here / "beside")
        with _held(here / "beside", DEEP):
            done = _run(here)
    finally:
        subprocess.run(["umount", "-l", here / "beside"], check=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_root_s_own_processes_do_not_count_and_others_can_be_allowed(here: Path) -> None:
    with subprocess.Popen(["sleep", "600"], cwd=here / "source/sub") as process:
        done = _run(here)
        process.kill()
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    subprocess.run(["umount", here / "view"], check=True)
    with _held(here / "source", "a descriptor") as pid:
        done = _run(here, "--allow-holders")
        assert done.returncode == 0
        assert f"{pid} (" in done.stderr
