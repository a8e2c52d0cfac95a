"""Mount namespaces from before the seal, also without a process or with subordinate ids."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gitguardfs.base.findings import Result, Status
from gitguardfs.doctor.context import CheckedSystem
from gitguardfs.mounting import seal
from tests.mount.doctor.test_doctor import examine, only
from tests.support.mounting import LIMIT, area, command, gitguardfs, unmount, until
from tests.support.people import AGENT
from tests.support.repos import MAP, make_project

_KEEP = """
import ctypes, os, socket, sys
libc = ctypes.CDLL(None)
def make(flags=0x10020000):  # CLONE_NEWUSER, CLONE_NEWNS
    uid = os.geteuid()
    assert libc.unshare(flags) == 0
    if flags & 0x10000000 and sys.argv[1] != "subordinate":
        open("/proc/self/setgroups", "w").write("deny")
        for name in ("uid_map", "gid_map"):
            open("/proc/self/" + name, "w").write(f"0 {uid} 1")
    assert libc.mount(b"none", b"/", None, 0x44000, None) == 0  # MS_REC, MS_PRIVATE
def space(prepare=lambda: None, *flags):
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        make(*flags)
        prepare()
        socket.send_fds(theirs, [b"x"], [os.open("/proc/self/ns/mnt", os.O_RDONLY)])
        os._exit(0)
    theirs.close()
    fd = socket.recv_fds(ours, 1, 1)[1][0]
    os.waitpid(child, 0)
    return fd
def on_each_processor(prepare, *flags):
    for number in os.sched_getaffinity(0):
        os.sched_setaffinity(0, {number})
        yield space(prepare, *flags)
def bind():
    # Only younger ones can be mounted, and each processor counts them for itself (Linux 6.18).
    assert libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0
    open("/tmp/space", "w").close()
    inner = list(on_each_processor(lambda: None, 0x20000))
    ways = [b"/proc/self/fd/%d" % fd for fd in inner]
    assert any(libc.mount(way, b"/tmp/space", None, 0x1000, None) == 0 for way in ways)  # MS_BIND
    for fd in inner:
        os.close(fd)
if sys.argv[1] == "descriptor":
    kept = space()
elif sys.argv[1] == "process":
    make()
elif sys.argv[1] == "descriptors":
    kept = list(on_each_processor(lambda: None))
elif sys.argv[1] == "mount":
    make()
    bind()
elif sys.argv[1] == "mount in a descriptor":
    kept = space(bind)
elif sys.argv[1] == "subordinate":
    assert libc.unshare(0x10000000) == 0
    print("unshared", flush=True)
    sys.stdin.readline()
    os.setresgid(1, 1, 1)
    os.setresuid(1, 1, 1)
    libc.prctl(4, 1, 0, 0, 0)  # dumpable again, so that it may write its own map
    make()
print("kept", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def share() -> Iterator[Path]:
    with area() as place:
        (place / "raw").mkdir()
        make_project(place / "raw/share")
        yield place


@contextmanager
def keeping(what: str) -> Iterator[int]:
    """A process of the agent's that keeps a mount namespace; its number."""
    with subprocess.Popen(
        ["/usr/bin/python3", "-c", _KEEP, what],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        user=AGENT, group=AGENT, extra_groups=[], bufsize=0,
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        try:
            if what == "subordinate":
                assert process.stdout.readline() == b"unshared\n"
                for name in ("uid_map", "gid_map"):
                    text = f"0 {AGENT} 1\n1 100000 1\n"
                    Path(f"/proc/{process.pid}/{name}").write_text(text)
                process.stdin.write(b"\n")
            assert process.stdout.readline() == b"kept\n"
            yield process.pid
        finally:
            process.kill()


def kept_by(pid: int) -> list[str]:
    """The descriptors of mount namespaces that a process has."""
    fds = [f"/proc/{pid}/fd/{number}" for number in os.listdir(f"/proc/{pid}/fd")]
    return [fd for fd in fds if os.readlink(fd).startswith("mnt:")]


def elsewhere(share: Path, system: Callable[[], CheckedSystem]) -> Result:
    with gitguardfs(share / "raw/share", share / "view", "--map", MAP, "--seal", "--allow-holders",
                    expected=("from before the seal",)):  # fmt: skip
        [said] = [r for r in examine(share / "view", system()) if r.id == "share.elsewhere"]
    return said


@pytest.mark.every_processor
@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("descriptor", "descriptor {fd} of process {pid} (python3) leads to {share}"),
        (
            "mount",
            "process {pid} (python3) sees {share}, "
            "the mount /tmp/space in the mount namespace of process {pid} (python3) leads to "
            "{share}",
        ),
        ("subordinate", "process {pid} (python3) sees {share}"),
    ],
)
def test_a_namespace_that_the_user_can_enter_is_found(share: Path, what: str, told: str) -> None:
    with keeping(what) as pid:
        said = elsewhere(share, lambda: only(share, pid))
        fd = "".join(path.rpartition("/")[2] for path in kept_by(pid))
    raw = share / "raw/share"
    assert said.status is Status.FINDING
    assert said.detail == told.format(pid=pid, fd=fd, share=raw)


@pytest.mark.every_processor
def test_a_namespace_that_is_kept_in_one_without_processes_is_a_finding(share: Path) -> None:
    with keeping("mount in a descriptor") as pid:
        said = elsewhere(share, lambda: only(share, pid))
    assert said.status is Status.FINDING
    assert "leads to" in said.detail


@pytest.mark.every_processor
def test_a_namespace_that_is_mounted_here_is_found(share: Path) -> None:
    (share / "space").touch()
    with keeping("descriptors") as pid:
        assert any(
            subprocess.run(["mount", "--bind", fd, share / "space"], check=False).returncode == 0
            for fd in kept_by(pid)
        )
    try:
        said = elsewhere(share, lambda: only(share))
    finally:
        subprocess.run(["umount", share / "space"], check=True)
    assert said.detail == f"the mount {share / 'space'} leads to {share / 'raw/share'}"


# --------------------------------------------------------------------------------- at the start


def start(share: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(share / "raw/share", share / "view", "--seal", "--map", MAP, "--map", "1000:501"),
        capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip


@pytest.mark.every_processor
@pytest.mark.parametrize(
    "what", ["process", "descriptor", "mount", "mount in a descriptor", "subordinate"]
)
def test_a_guard_does_not_start_while_a_namespace_shows_the_share(share: Path, what: str) -> None:
    (share / "view").mkdir()
    try:
        with keeping(what) as pid:
            for _ in range(2):  # the second one takes the first one's seal over
                done = start(share)
                assert done.returncode == 32, done.stderr
                assert "a mount namespace that shows it" in done.stderr
                assert f"process {pid} (python3)" in done.stderr
                assert seal.is_sealed(str(share / "raw/share"))
        done = start(share)
        assert done.returncode == 0, done.stderr
    finally:
        unmount(share / "view")
        unmount(share / "raw/share")


def test_a_namespace_that_came_after_the_seal_keeps_no_guard_from_starting(share: Path) -> None:
    (share / "view").mkdir()
    try:
        daemon = subprocess.Popen(
            [*command(share / "raw/share", share / "view", "--seal", "--map", MAP), "-f"],
            stderr=subprocess.DEVNULL,
        )
        until(lambda: (share / "view/README.md").exists(), "the view answers")
        with keeping("process"):
            daemon.kill()
            daemon.wait()
            done = start(share)
            assert done.returncode == 0, done.stderr
    finally:
        unmount(share / "view")
        unmount(share / "raw/share")


def test_where_only_root_gets_to_the_share_no_namespace_shows_it(share: Path) -> None:
    (share / "view").mkdir()
    (share / "raw").chmod(0o700)
    try:
        with keeping("process"):
            done = start(share)
            assert done.returncode == 0, done.stderr
    finally:
        unmount(share / "view")
        unmount(share / "raw/share")
