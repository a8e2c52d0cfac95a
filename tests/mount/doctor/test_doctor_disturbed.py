"""An agent that disturbs the doctor's children cannot make an open way seem closed.

The doctor's children have the agent's uid, so the agent can send them signals and set their limits.
Each attack is carried out by a process of the agent's on a child that has an open share to find.
"""

import errno
import os
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gitguardfs.base.errors import os_error
from gitguardfs.base.findings import Result, Status
from gitguardfs.doctor import search as probes_tree
from gitguardfs.doctor import share_checks, writable_checks
from gitguardfs.linux import processes, run_as, syscalls
from gitguardfs.linux.run_as import NoAnswer, SwitchUserFailed, User
from tests.support.mounting import area
from tests.support.people import AGENT, make_dumpable

PATIENCE = 60.0
USER = User(AGENT, AGENT, (AGENT,), "agent")
FORGED = b'["oserror", 13, "Permission denied"]'

# Waits for a child of the doctor's that has become the agent, does something to it, says what came
# of it, and makes a file so that the child goes on.
AGENTS_PROGRAM = f"""
import ctypes, os, resource, signal, socket, sys
doctor, attack, done = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
def child():
    while True:
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                said = dict(l.split(":", 1) for l in open(f"/proc/{{pid}}/status"))
            except OSError:
                continue
            uids = said["Uid"].split()
            if said["PPid"].strip() == doctor and set(uids) == {{"{AGENT}"}}:
                if int(pid) != os.getpid():
                    return int(pid)
pid = child()
if "stop" in attack:
    os.kill(pid, signal.SIGSTOP)
    while " T " not in open(f"/proc/{{pid}}/stat").read():
        pass
if "forge" in attack:
    held = -1
    while held < 0:
        held = libc.syscall(438, os.pidfd_open(pid), 3, 0)  # pidfd_getfd(2)
        if "dumpable" not in attack:  # else it will be in a moment
            break
    print("forged" if held >= 0 else ctypes.get_errno())
    if held >= 0:
        os.write(held, {FORGED!r})
        if "and kill" in attack:
            os.kill(pid, signal.SIGKILL)
        else:
            answer = socket.socket(fileno=held)
            answer.shutdown(socket.SHUT_WR)
            answer.recv(1)  # the doctor has taken it
if "memory" in attack:
    try:
        open(f"/proc/{{pid}}/mem", "rb+").close()
        print("opened")
    except OSError as error:
        print(error.errno)
if "limit" in attack:
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, 0))
if "kill" in attack:
    os.kill(pid, signal.SIGKILL)
open(done, "w").close()
if "stop" in attack:
    os.kill(pid, signal.SIGCONT)
"""


@pytest.fixture
def share() -> Iterator[Path]:
    """A directory that everybody can enter and list."""
    with area() as path:
        (path / "share").mkdir()
        (path / "share/project").mkdir()
        (path / "marks").mkdir()
        os.chown(path / "marks", AGENT, AGENT)
        yield path / "share"


@contextmanager
def agent(attack: str, share: Path) -> Iterator[tuple[Path, list[str]]]:
    """Have the agent attack a child; yields the file that its process makes, and its output."""
    done = share.parent / "marks/done"
    said: list[str] = []
    with subprocess.Popen(
        ["/usr/bin/python3", "-c", AGENTS_PROGRAM, str(os.getpid()), attack, str(done)],
        stdout=subprocess.PIPE,
        text=True,
        user=AGENT,
        group=AGENT,
        extra_groups=[],
    ) as process:
        try:
            yield done, said
            assert process.wait(PATIENCE) == 0
            assert process.stdout is not None
            said += process.stdout.read().split()
        finally:
            process.kill()


def after(done: Path, way: share_checks.Attempt) -> share_checks.Attempt:
    """Return the attempt, delayed until the agent has attacked."""

    def wait(path: str, guards: object) -> None:
        while not done.exists():
            time.sleep(0.001)
        way(path, ())

    return wait


def tried(share: Path, attack: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Result, list[str]]:
    """Return what the doctor says of an open share, and what the agent says."""
    with agent(attack, share) as (done, said):
        ways = {"by its path": after(done, share_checks.by_path)}
        monkeypatch.setattr(share_checks, "PLAIN", ways)
        result = share_checks._by_path(USER, str(share), ())
    return result, said


def test_an_answer_cannot_be_forged(share: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result, said = tried(share, "stop forge", monkeypatch)
    assert result.status is Status.FINDING and "stopped its process" in result.detail
    assert said == [str(errno.EPERM)], "the agent opened the answer's socket"


@pytest.mark.parametrize("attack", ["forge dumpable and kill", "forge dumpable"])
def test_a_forged_answer_would_not_count(
    share: Path, monkeypatch: pytest.MonkeyPatch, attack: str
) -> None:
    """Only the second defence is on: the child's exit status must match its answer."""
    switch_user = run_as.switch_user

    def become_dumpable(user: User) -> None:
        switch_user(user)
        make_dumpable()

    monkeypatch.setattr(run_as, "switch_user", become_dumpable)
    result, said = tried(share, attack, monkeypatch)
    assert result.status is Status.FINDING and "killed" in result.detail
    assert said == ["forged"], "the attack itself does not work"


def test_a_child_cannot_be_traced(share: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result, said = tried(share, "forge memory", monkeypatch)
    assert result.status is Status.FINDING and "by its path" in result.detail
    assert said == [str(errno.EPERM), str(errno.EACCES)]


@pytest.mark.parametrize(
    ("attack", "told"),
    [("stop", "stopped its process"), ("kill", "killed"), ("limit", "open files")],
)
def test_a_child_that_was_kept_from_trying_is_a_finding(
    share: Path, monkeypatch: pytest.MonkeyPatch, attack: str, told: str
) -> None:
    result, _ = tried(share, attack, monkeypatch)
    assert result.status is Status.FINDING and told in result.detail


def test_what_keeps_a_search_from_its_end_is_no_answer(share: Path) -> None:
    """A limit that the agent sets to a child that looks for files, in the middle of the work."""
    for search in (
        lambda: writable_checks.writable_among([str(share)]),
        lambda: probes_tree.search(str(share)),
    ):
        with pytest.raises(NoAnswer, match="open files"):
            run_as.run_as(without_descriptors, search, user=USER)


def without_descriptors(search: Callable[[], object]) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))
    search()


def test_namespaces_that_the_user_has_used_up_are_not_taken_for_none(
    share: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def used_up() -> None:
        raise os_error(errno.ENOSPC)

    monkeypatch.setattr(syscalls, "unshare_user_and_mounts", used_up)
    result = share_checks._in_namespace(USER, str(share), ())
    assert result.status is Status.FINDING and "No space" in result.detail


def test_where_changing_the_user_leaves_a_process_open_nothing_is_tried(
    share: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "suid_dumpable").write_text("1\n")
    monkeypatch.setattr(run_as, "SUID_DUMPABLE", str(tmp_path / "suid_dumpable"))
    with pytest.raises(SwitchUserFailed, match="suid_dumpable"):
        share_checks._by_path(USER, str(share), ())


@pytest.mark.parametrize("separator", ["\\r", "\\x0c", "\\x1c", "\\x85"])
def test_no_process_passes_for_roots_by_its_name(separator: str) -> None:
    renamed = f"""
import ctypes, sys
ctypes.CDLL(None).prctl(15, "{separator}Uid:\\t0\\t0".encode("latin-1"), 0, 0, 0)
print(flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        ["/usr/bin/python3", "-c", renamed], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        user=AGENT, group=AGENT, extra_groups=[],
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None and process.stdout.readline() == b"\n"
            status = Path(f"/proc/{process.pid}/status").read_bytes()
            assert b"Uid:\t0" in status.split(b"\n")[0], "it is not called that"
            assert processes.user_ids(status) == (AGENT,) * 4
        finally:
            process.kill()
