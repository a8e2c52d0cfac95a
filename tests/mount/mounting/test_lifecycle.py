"""From the command to the end of the daemon: background, readiness, signals, fstab, seal."""

import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gitguardfs.base.errors import Exit
from tests.support.errorfs import CONTENT, Fault, errorfs, slowfs
from tests.support.mounting import (
    REPOSITORY,
    Mounted,
    area,
    command,
    daemons,
    gitguardfs,
    run_to_end,
    unmount,
    until,
)
from tests.support.people import AGENT, as_user, reachable_python

LIMIT = 60
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
CLONE_NEWNS = 0x00020000
SEAL = "gitguardfs-seal"
LID = ["ramfs", "gitguardfs-lid"]


@pytest.fixture
def here() -> Iterator[Path]:
    """A directory in which only root can reach ``private``, and so a source in it."""
    with area() as path:
        (path / "private").mkdir(mode=0o700)
        (path / "private/source").mkdir()
        (path / "private/source/file").write_text("text")
        (path / "source").mkdir()
        (path / "source/file").write_text("text")
        (path / "view").mkdir()
        try:
            yield path
        finally:
            for name in ("view", "second", "source", "private/source"):
                unmount(path / name)
            for pid in daemons(path):
                os.kill(pid, signal.SIGKILL)


def _mounts_at(path: Path) -> list[list[str]]:
    """Return type and source of the mounts at ``path``, lowest first."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line.split(" - ")[1].split()[:2] for line in lines if line.split()[4] == str(path)]


def _numbers_at(path: Path) -> list[str]:
    """Return the numbers of the mounts at ``path``."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line.split()[0] for line in lines if line.split()[4] == str(path)]


def _umount(path: Path, *options: str) -> None:
    """As root does it: umount(8), which runs the umount helper."""
    subprocess.run(["umount", *options, path], check=True)


def _ended(here: Path) -> None:
    until(lambda: not daemons(here), "the daemon ends")


def _is_gone(pid: int) -> bool:
    """Return whether all its descriptors are closed: it has ended, or waits for its parent.

    While another thread has them open, only the first thread is a zombie.
    """
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state == "Z" and len(os.listdir(f"/proc/{pid}/task")) == 1
    except (FileNotFoundError, ProcessLookupError):
        return True


def _kill(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    until(lambda: all(map(_is_gone, pids)), "the daemon is gone")


# ------------------------------------------------------------------------ Into the background


def test_the_command_returns_when_the_mount_answers(here: Path) -> None:
    """The daemon closes captured pipes: otherwise the caller waits for its end."""
    done = run_to_end(here / "private/source", here / "view")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (here / "view/file").read_text() == "text"
    assert _mounts_at(here / "view") == [LID, ["fuse.gitguardfs", str(here / "private/source")]]
    keeper, pid = daemons(here)
    assert os.getsid(pid) == keeper, "not in the session of the terminal"
    assert os.readlink(f"/proc/{pid}/cwd") == "/", "holds no directory of the caller's"
    assert [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in (0, 1, 2)] == ["/dev/null"] * 3


def test_relative_paths_are_those_of_the_caller(here: Path) -> None:
    done = run_to_end("private/source", "view", "--audit-log", "private/audit", cwd=here)
    assert (done.returncode, done.stderr) == (0, "")
    assert (here / "view/file").read_text() == "text"
    assert (here / "private/audit").exists()


def test_a_lazy_umount_ends_the_daemon_when_the_last_user_is_gone(here: Path) -> None:
    with gitguardfs(here / "private/source", here / "view", "--seal") as mounted:
        with open(mounted.path / "file") as file:
            subprocess.run(["umount", "-l", mounted.path], check=True)
            assert file.read() == "text"
            assert mounted.alive()
            assert _mounts_at(here / "private/source") == [["ramfs", SEAL]]
        assert mounted.process.wait(LIMIT) == 0
        assert _mounts_at(here / "private/source") == []


def test_a_busy_view_stays_and_its_seal_too(here: Path) -> None:
    with gitguardfs(here / "private/source", here / "view", "--seal") as mounted:
        with open(mounted.path / "file") as file:
            done = subprocess.run(["umount", mounted.path], capture_output=True, text=True)
            assert (done.returncode, done.stderr) == (
                32, f"umount.fuse.gitguardfs: {mounted.path}: target is busy\n",
            )  # fmt: skip
            assert file.read() == "text"
        assert (mounted.path / "file").read_text() == "text"
        assert _mounts_at(here / "private/source") == [["ramfs", SEAL]]


def test_only_root_s_word_takes_the_seal_off(here: Path) -> None:
    """Another user's helper has no effect; nor has root's signal while the view is mounted."""
    with pytest.raises(AssertionError, match=r"ended with 2"):
        with gitguardfs(
            here / "private/source", here / "view", "--seal", expected=(r"not by root",)
        ) as mounted:
            done = subprocess.run(
                ["/sbin/umount.fuse.gitguardfs", mounted.path], user=AGENT, group=AGENT,
                extra_groups=[], cwd="/", capture_output=True, check=False,
            )  # fmt: skip
            assert done.returncode != 0
            mounted.process.send_signal(signal.SIGRTMIN)
            until(lambda: (mounted.path / "file").read_text(), "it goes on")
            subprocess.run(["umount", "-i", mounted.path], check=True)
            mounted.process.wait(LIMIT)
    assert _mounts_at(here / "private/source") == [["ramfs", SEAL]]


def test_what_the_helper_says_is_one_line_whatever_a_path_holds(here: Path) -> None:
    path = here / "view\x1b]0;x\x07\n"
    path.mkdir()
    done = subprocess.run(
        ["/sbin/umount.fuse.gitguardfs", path], capture_output=True, text=True, check=False
    )
    (line,) = done.stderr.splitlines()
    assert done.returncode == 32 and line.isprintable()
    assert line.endswith("/view\\x1b]0;x\\x07\\n: not mounted")


def test_a_request_that_outlives_the_mount_is_no_error(here: Path) -> None:
    """With its last user gone, the kernel withdraws open requests and expects no reply.

    The last RELEASE of a view that was unmounted lazily often is such a request. Here the
    daemon has taken it and waits for the source's server while the mount goes.
    """
    with errorfs(here / "source", here / "share", here / "control") as share:
        with gitguardfs(share.path, here / "view") as mounted:
            user = os.open(mounted.path, os.O_PATH)
            file = os.open(mounted.path / "file", os.O_RDONLY)
            ours, theirs = socket.socketpair()
            socket.send_fds(ours, [b"x"], [file])
            os.close(file)  # flushed; what is under way in the socket is only released
            subprocess.run(["umount", "-l", mounted.path], check=True)
            with share.failing(Fault(("FLUSH",), "file", held=True)):
                ours.close()
                theirs.close()
                until(share.hits, "the daemon closes the file")
                os.close(user)
            assert mounted.process.wait(LIMIT) == 0


# ------------------------------------------------------------------------------- Readiness


@pytest.mark.parametrize("abstract", [False, True])
def test_the_service_manager_is_told_when_the_mount_answers(here: Path, abstract: bool) -> None:
    name = str(here / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name if abstract else name)
        manager.settimeout(LIMIT)
        process = subprocess.Popen(
            command(here / "private/source", here / "view", "-f"),
            env={**ENVIRONMENT, "NOTIFY_SOCKET": f"@{name}" if abstract else name},
        )
        try:
            assert manager.recv(100).split(b"\n")[0] == b"READY=1"
            assert (here / "view/file").read_text() == "text"
        finally:
            process.terminate()
            assert process.wait(LIMIT) == 0


@pytest.mark.parametrize("address", ["/nonexistent/socket", "@nobody-listens", ""])
def test_a_service_manager_that_is_gone_does_no_harm(here: Path, address: str) -> None:
    process = subprocess.Popen(
        command(here / "private/source", here / "view", "-f"),
        env={**ENVIRONMENT, "NOTIFY_SOCKET": address},
    )
    try:
        until((here / "view/file").exists, "the mount answers")
        assert (here / "view/file").read_text() == "text"
    finally:
        process.terminate()
        assert process.wait(LIMIT) == 0


def test_debug_prints_each_request(here: Path) -> None:
    with gitguardfs(here / "private/source", here / "view", "-d") as mounted:
        os.stat(mounted.path / "file")
        assert "INIT" in _printed(mounted, "LOOKUP")


def _printed(mounted: Mounted, word: str) -> str:
    until(lambda: word in mounted.log.read_text(errors="replace"), f"{word} is printed")
    return mounted.log.read_text(errors="replace")


# --------------------------------------------------------------------------------- Signals

READ = "import sys; sys.stdout.buffer.write(open(sys.argv[1], 'rb').read())"
SYNC = "import os, sys; fd = os.open(sys.argv[1], os.O_RDWR); os.fsync(fd); print('synced')"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
@pytest.mark.parametrize("program", [READ, SYNC], ids=["read", "fsync"])
def test_a_signal_unmounts_after_the_requests_in_flight(
    here: Path, number: signal.Signals, program: str
) -> None:
    """A process that waits for a read or an fsync gets the answer, not an error."""
    with slowfs(here / "slow", here / "gate") as slow:
        with gitguardfs(slow.path, here / "view") as mounted:
            waiting = subprocess.Popen(
                [sys.executable, "-c", program, mounted.path / "slow"], stdout=subprocess.PIPE
            )
            try:
                until(slow.somebody_waits, "a request is in flight")
                mounted.process.send_signal(number)
                _printed(mounted, number.name)
                assert waiting.poll() is None
                assert mounted.alive()
            finally:
                slow.release()
                output, _ = waiting.communicate(timeout=LIMIT)
            assert output == (CONTENT if program == READ else b"synced\n")
            assert waiting.returncode == 0
            assert mounted.process.wait(LIMIT) == 0
            assert _mounts_at(mounted.path) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_a_signal_ends_it_although_somebody_is_in_the_mount(
    here: Path, number: signal.Signals
) -> None:
    with gitguardfs(here / "private/source", here / "view", "--seal") as mounted:
        user = subprocess.Popen(["sleep", "100"], cwd=mounted.path)
        try:
            mounted.process.send_signal(number)
            assert mounted.process.wait(LIMIT) == 0
            assert _mounts_at(mounted.path) == _mounts_at(here / "private/source") == []
        finally:
            user.kill()
            user.wait()


SIGNALLED = """
import os, sys
from gitguardfs.commands.gitguardfs import main
from gitguardfs.mounting import view
number = int(sys.argv.pop(1))
mount = view.mount
def mount_then_signal(*arguments):
    mounted = mount(*arguments)
    os.kill(os.getpid(), number)
    return mounted
view.mount = mount_then_signal
main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2], ids=lambda n: n.name)
def test_a_signal_right_after_the_mount_leaves_no_dead_mount(
    here: Path, number: signal.Signals
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED, str(int(number)), "-f", "--seal",
         here / "private/source", here / "view"],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=LIMIT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert _mounts_at(here / "view") == [LID]
    # Nobody has used the view yet: the next daemon is to find the source sealed.
    assert len(_mounts_at(here / "private/source")) == 1


SIGNALLED_AT_THE_END = """
import os, signal
from gitguardfs.commands.gitguardfs import main
set_wakeup_fd = signal.set_wakeup_fd
def signal_then_set(fd, **options):
    if fd == -1:
        os.kill(os.getpid(), signal.SIGTERM)
    return set_wakeup_fd(fd, **options)
signal.set_wakeup_fd = signal_then_set
main()
"""


def test_a_signal_in_the_last_moment_is_no_error(here: Path) -> None:
    """Python notes each signal in a descriptor: not in one that is closed already."""
    with subprocess.Popen(
        [sys.executable, "-c", SIGNALLED_AT_THE_END, "-f", "--no-seal",
         here / "private/source", here / "view"],
        cwd=REPOSITORY, stderr=subprocess.PIPE, text=True,
    ) as daemon:  # fmt: skip
        until(lambda: (here / "view/file").exists(), "the view answers")
        daemon.send_signal(signal.SIGTERM)
        assert "wakeup fd" not in daemon.communicate(timeout=LIMIT)[1]
    assert daemon.returncode == 0
    assert not any(kind == "fuse.gitguardfs" for kind, _ in _mounts_at(here / "view"))


@pytest.mark.every_processor
@pytest.mark.parametrize("pause", [0, 0.001, 0.003, 0.01, 0.03])
def test_more_signals_do_not_disturb_the_end(here: Path, pause: float) -> None:
    """For example a second Ctrl-C, or a service manager that sends two signals."""
    for others in ((signal.SIGTERM,), (signal.SIGINT, signal.SIGHUP), (signal.SIGUSR1,)):
        with gitguardfs(here / "private/source", here / "view", "--seal") as mounted:
            for number in (signal.SIGTERM, *others):
                with suppress(ProcessLookupError):
                    mounted.process.send_signal(number)
                time.sleep(pause)
            assert mounted.process.wait(LIMIT) == 0
            assert _mounts_at(mounted.path) == _mounts_at(here / "private/source") == []


KILLS = 500


@pytest.mark.every_processor
def test_callers_that_are_killed_keep_nobody_waiting(here: Path) -> None:
    """The kernel withdraws their requests, maybe just before the daemon reads them."""
    with slowfs(here / "slow", here / "gate") as slow:
        with gitguardfs(slow.path, here / "view", "--cache-timeout", "0") as mounted:
            waiting = subprocess.Popen(
                [sys.executable, "-c", READ, mounted.path / "slow"], stdout=subprocess.PIPE
            )
            try:
                until(slow.somebody_waits, "a request is in flight")
                waits_in = Path(f"/proc/{mounted.process.pid}/wchan")
                for _ in range(KILLS):
                    _kill_a_caller(mounted.path)
                    until(lambda: waits_in.read_text() != "fuse_dev_do_read", "no read lasts")
            finally:
                slow.release()
                output, _ = waiting.communicate(timeout=LIMIT)
            assert output == CONTENT


def _kill_a_caller(path: Path) -> None:
    child = os.fork()
    if child == 0:
        while True:
            os.stat(path)
    time.sleep(random.uniform(0.0002, 0.002))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_hangup_of_the_terminal_does_not_end_it(here: Path) -> None:
    """The shell that mounted is closed; the mount stays."""
    shell = subprocess.run(
        ["setsid", "-w", *command(here / "private/source", here / "view")],
        env=ENVIRONMENT,
        timeout=LIMIT,
        check=True,
    )
    assert shell.returncode == 0
    assert (here / "view/file").read_text() == "text"


# -------------------------------------------------------------------------- mount(8), fstab


def _in_own_mounts(function: Callable[..., None], here: Path) -> None:
    """Call it in a namespace where ``gitguardfs`` is installed in /usr/local/bin."""
    launchers = here / "bin"
    launchers.mkdir()
    launcher = launchers / "gitguardfs"
    launcher.write_text(
        f'#!/bin/sh\nPYTHONPATH={REPOSITORY} exec {sys.executable} -m gitguardfs "$@"\n'
    )
    launcher.chmod(0o755)
    as_user(_installed, function, here, launchers, uid=0)


def _installed(function: Callable[..., None], here: Path, launchers: Path) -> None:
    if ctypes.CDLL(None).unshare(CLONE_NEWNS) != 0:
        raise AssertionError("unshare failed")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "--bind", launchers, "/usr/local/bin"], check=True)
    try:
        function(here)
    finally:
        subprocess.run(["umount", "-l", here / "view"], check=False, capture_output=True)
        _ended(here)


def _mount(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["env", "-i", "/bin/mount", *arguments], capture_output=True, text=True, timeout=LIMIT,
        check=False,
    )  # fmt: skip


FSTAB_OPTIONS = {
    "of bindfs": "map=1000/1000:@1000/@1000,x-systemd.requires=/mnt/projects,_netdev,nofail,auto",
    "short": "map=1000:1000",
    "ours": "map=auto,git=readonly,cache-timeout=0,deny=.env,hide=secret*,xattr=ro,noatime,nofail",
    "comma": r"map=501:1000\,@20:@50,defaults",
    "generic": "defaults,rw,suid,dev,exec,nouser,async,noauto,x-gvfs-hide,comment=projects",
}


@pytest.mark.parametrize("options", FSTAB_OPTIONS.values(), ids=FSTAB_OPTIONS.keys())
def test_a_line_of_fstab_mounts_it(here: Path, options: str) -> None:
    (here / "fstab").write_text(f"{here}/source {here}/view fuse.gitguardfs {options} 0 0\n")
    _in_own_mounts(_mounts_by_fstab, here)


def _mounts_by_fstab(here: Path) -> None:
    done = _mount("-T", here / "fstab", here / "view")
    assert done.returncode == 0, done.stderr
    assert (here / "view/file").read_text() == "text"
    _keeper, daemon = daemons(here)
    subprocess.run(["umount", here / "view"], check=True)
    until(lambda: _is_gone(daemon), "the daemon ends")


def test_a_mistake_in_fstab_fails_the_mount_by_name(here: Path) -> None:
    (here / "fstab").write_text(f"{here}/source {here}/view fuse.gitguardfs gti=hide 0 0\n")
    _in_own_mounts(_fails_by_fstab, here)


def _fails_by_fstab(here: Path) -> None:
    done = _mount("-T", here / "fstab", here / "view")
    assert done.returncode == 1
    assert "unknown option 'gti=hide'" in done.stderr
    assert "Traceback" not in done.stderr
    assert _mounts_at(here / "view") == []


def test_a_remount_through_mount_8_is_refused_by_name(here: Path) -> None:
    _in_own_mounts(_remounts, here)


def _remounts(here: Path) -> None:
    mount = ("-t", "fuse.gitguardfs", here / "source", here / "view")
    assert _mount(*mount).returncode == 0
    done = _mount(*mount, "-o", "remount,ro")
    assert done.returncode != 0
    assert "remount is not supported" in done.stderr
    assert (here / "view/file").read_text() == "text"


# ------------------------------------------------------------------------- An ordinary user


def _write(path: str) -> None:
    with open(path, "w") as file:
        file.write("by the user")


def test_an_ordinary_user_can_guard_a_directory_for_himself(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("source", "source/file", "view"):
        os.chown(here / name, AGENT, AGENT)
    (here / "source/.git").mkdir()
    with reachable_python() as python:
        monkeypatch.setattr(sys, "executable", python)
        done = run_to_end(
            here / "source", here / "view", user=AGENT, group=AGENT, extra_groups=[], cwd="/"
        )
        assert done.returncode == 0, done.stderr
        first = done.stderr.splitlines()[0]
        assert first.startswith("gitguardfs: warning: not root"), done.stderr
        view = str(here / "view")
        as_user(_write, f"{view}/file")
        assert (here / "source/file").read_text() == "by the user"
        with pytest.raises(PermissionError):
            as_user(os.listdir, f"{view}/.git")
        with pytest.raises(PermissionError):
            as_user(os.mkdir, f"{view}/.GIT")
        with pytest.raises(PermissionError):
            as_user(os.chown, f"{view}/file", 0, -1)
        with pytest.raises(PermissionError):
            as_user(os.listdir, view, uid=2000)
        with pytest.raises(PermissionError):
            os.listdir(view)  # not even root
        again = run_to_end(
            here / "source", here / "view", user=AGENT, group=AGENT, extra_groups=[], cwd="/"
        )
        assert again.returncode == Exit.MOUNT
        assert f"a gitguardfs mount already (fusermount3 -u {view})" in again.stderr
        subprocess.run(
            ["fusermount3", "-u", view], user=AGENT, group=AGENT, extra_groups=[], check=True
        )
        _ended(here)


def test_an_ordinary_user_cannot_seal(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chown(here / "view", AGENT, AGENT)
    with reachable_python() as python:
        monkeypatch.setattr(sys, "executable", python)
        done = run_to_end(
            here / "source", here / "view", "--seal",
            user=AGENT, group=AGENT, extra_groups=[], cwd="/",
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("gitguardfs: --seal needs root")


# ---------------------------------------------------------------------------------- The seal


def test_an_ordinary_directory_stays_open_and_the_user_is_told(here: Path) -> None:
    done = run_to_end(here / "source", here / "view")
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"gitguardfs: warning: {here}/source stays open to other users")
    assert "--seal" in line
    assert (here / "source/file").read_text() == "text"


def test_nobody_is_warned_of_a_source_that_only_root_can_reach(here: Path) -> None:
    done = run_to_end(here / "private/source", here / "view")
    assert (done.returncode, done.stderr) == (0, "")
    assert (here / "private/source/file").read_text() == "text", "and it is not sealed"


@pytest.mark.parametrize("option", [("--seal",), ("-o", "seal")])
def test_the_seal_covers_the_source_while_it_is_guarded(
    here: Path, option: tuple[str, ...]
) -> None:
    (here / "source").chmod(0o777)
    with gitguardfs(here / "source", here / "view", *option):
        assert (here / "view/file").read_text() == "text"
        assert _mounts_at(here / "source") == [["ramfs", SEAL]]
        with pytest.raises(PermissionError):
            as_user(os.listdir, str(here / "source"))
        assert os.listdir(here / "source") == [], "empty for root as well"
        with pytest.raises(OSError):
            (here / "source/new").touch()
        (here / "view/new").touch()
    assert sorted(os.listdir(here / "source")) == ["file", "new"]


def test_a_second_guard_over_a_sealed_source_is_refused(here: Path) -> None:
    with gitguardfs(here / "source", here / "view", "--seal"):
        (here / "second").mkdir()
        for options in ((), ("--seal",), ("--no-seal",)):
            done = run_to_end(here / "source", here / "second", *options)
            assert done.returncode == 32, done.stderr
            line = done.stderr.splitlines()[-1]
            assert line.startswith("gitguardfs: "), done.stderr
            assert "sealed" in line
            assert "Traceback" not in done.stderr
            assert _mounts_at(here / "second") == []
        assert (here / "view/file").read_text() == "text"
        assert _mounts_at(here / "source") == [["ramfs", SEAL]]


def _crash_sealed(here: Path) -> None:
    assert run_to_end(here / "source", here / "view", "--seal").returncode == 0
    _kill(*daemons(here))
    assert _mounts_at(here / "source") == [["ramfs", SEAL]]


def test_a_restart_that_fails_leaves_the_seal_of_the_crashed_daemon(here: Path) -> None:
    """Otherwise the raw share would be open, without a view to use instead."""
    _crash_sealed(here)
    done = run_to_end(here / "source", here / "view", "-o", "fsname=" + "x" * 5000)
    assert done.returncode == 32, done.stderr
    assert _mounts_at(here / "source") == [["ramfs", SEAL]]


SPY = """
import os, sys
reached = 0
print("watching", flush=True)
while not os.path.exists(sys.argv[2]):
    try:
        os.close(os.open(sys.argv[1], os.O_RDONLY))
        reached += 1
    except OSError:
        pass
print(reached)
"""


@pytest.mark.every_processor
def test_a_restart_never_opens_the_raw_share_for_a_moment(here: Path) -> None:
    """An agent could keep a descriptor of the share that it opens in that moment."""
    _crash_sealed(here)
    spy = subprocess.Popen(
        [sys.executable, "-c", SPY, here / "source/file", here / "stop"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert spy.stdout is not None
    try:
        assert spy.stdout.readline() == "watching\n"
        for _ in range(5):
            assert run_to_end(here / "source", here / "view").returncode == 0
            _kill(*daemons(here))
    finally:
        (here / "stop").touch()
        output, _ = spy.communicate(timeout=LIMIT)
    assert int(output) == 0, f"the raw share was reached {output.strip()} times"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["-o", "fsname=" + "x" * 5000], 32), (["--audit-log", "/no/where"], 2),
     (["-o", "mountpoint=/else/where"], 32), (["-o", "git=denied"], 1),
     (["-o", "map=nobody-of-that-name/1000"], 1), (["-o", "seal,what=1"], 1)],
    ids=["mount", "audit log", "mount point", "value", "user", "option"],
)  # fmt: skip
def test_a_guard_that_does_not_start_seals_what_it_was_to_guard(
    here: Path, arguments: list[str], code: int
) -> None:
    """At boot nobody would see that the raw share is open."""
    done = run_to_end(here / "source", here / "view", "--seal", *arguments)
    assert done.returncode == code, done.stderr
    assert "is sealed until it is guarded" in done.stderr
    assert done.stderr.count("\n") <= 2, done.stderr
    assert _mounts_at(here / "source") == [["ramfs", SEAL]]
    assert run_to_end(here / "source", here / "view").returncode == 0
    assert (here / "view/file").read_text() == "text"
    _umount(here / "view")
    _ended(here)
    assert (here / "source/file").read_text() == "text"


def test_a_daemon_that_outlives_its_view_unmounts_nothing_else(here: Path) -> None:
    """Another namespace keeps the view mounted; its mount number is reused by then."""
    assert run_to_end(here / "source", here / "view", "--seal").returncode == 0
    number = _numbers_at(here / "view")[-1]
    keeper = subprocess.Popen(["unshare", "-m", "--propagation", "private", "sleep", "60"])
    others = []
    try:
        until(lambda: Path(f"/proc/{keeper.pid}/comm").read_text() == "sleep\n", "it is there")
        unmount(here / "view")
        for index in range(50):
            others.append(here / f"other{index}")
            others[-1].mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "other", others[-1]], check=True)
            if _numbers_at(others[-1]) == [number]:
                break
        assert _numbers_at(others[-1]) == [number]
        assert daemons(here)
        keeper.kill()
        keeper.wait()
        _ended(here)
        assert all(_numbers_at(other) for other in others)
    finally:
        keeper.kill()
        keeper.wait()
        for other in others:
            unmount(other)
    assert _mounts_at(here / "source") == [["ramfs", SEAL]], "it was not told that root unmounted"


def test_a_view_that_was_moved_with_its_parent_ends_cleanly(here: Path) -> None:
    (here / "home/view").mkdir(parents=True)
    assert run_to_end(here / "source", here / "home/view", "--seal").returncode == 0
    (here / "home").rename(here / "house")
    _umount(here / "house/view", "-l")  # without -l, umount(8) looks for the helper by the path
    _ended(here)
    assert _mounts_at(here / "source") == []


def test_a_guard_that_does_not_start_leaves_open_what_was_not_to_be_sealed(here: Path) -> None:
    for arguments in ([], ["--no-seal"]):
        done = run_to_end(here / "source", here / "none", *arguments)
        assert done.returncode == 32 and "sealed" not in done.stderr, done.stderr
        assert _mounts_at(here / "source") == []


def _without_pyfuse3(here: Path, *options: str) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys\nsys.modules.update(pyfuse3=None, trio=None)\n"
        "from gitguardfs.commands.gitguardfs import main\nmain()\n"
    )
    return subprocess.run(
        [sys.executable, "-c", code, here / "source", here / "view", "--seal", *options],
        env=ENVIRONMENT, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_without_pyfuse3_a_mount_of_roots_goes_on_with_a_warning(here: Path) -> None:
    done = _without_pyfuse3(here)
    assert done.returncode == 0 and "warning: no pyfuse3 and trio here" in done.stderr, done.stderr
    assert (here / "view/file").read_text() == "text"
    _umount(here / "view")
    _ended(here)


def test_without_the_pyfuse3_that_it_needs_the_source_is_sealed(here: Path) -> None:
    done = _without_pyfuse3(here, "--session=pyfuse3")
    assert done.returncode == 2, done.stderr
    assert "python3-pyfuse3" in done.stderr and "is sealed" in done.stderr
    assert _mounts_at(here / "source") == [["ramfs", SEAL]]


def test_a_transfer_that_is_held_back_does_not_hold_up_the_end(here: Path) -> None:
    """At 1 kB a second the transfer would take minutes."""
    (here / "source/large").write_bytes(bytes(300_000))
    with gitguardfs(here / "source", here / "view", "--read-rate", "1000") as mounted:
        reader = subprocess.Popen(["cat", here / "view/large"], stdout=subprocess.DEVNULL)
        opened = f"{here}/view/large"
        until(lambda: opened in _open_files(reader.pid), "it reads")
        mounted.process.send_signal(signal.SIGTERM)
        mounted.process.wait(LIMIT)
    reader.wait(LIMIT)


def _open_files(pid: int) -> list[str]:
    return [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]


def test_a_view_can_be_the_source_of_another(here: Path) -> None:
    """For example if the host guards its export and the guest guards it again."""
    (here / "source/.git").mkdir()
    with gitguardfs(here / "source", here / "view"):
        with gitguardfs(here / "view", here / "second", "--cache-timeout", "0") as second:
            (second.path / "new").write_text("x" * 100_000)
            assert (here / "source/new").stat().st_size == 100_000
            assert sorted(os.listdir(second.path)) == ["file", "new"]
            with pytest.raises(PermissionError):
                os.listdir(second.path / ".git")


def test_a_copy_of_the_view_elsewhere_does_not_keep_umount_waiting(here: Path) -> None:
    """Users can make one in a mount namespace of their own."""
    with gitguardfs(here / "private/source", here / "view", "--seal") as mounted:
        keeper = subprocess.Popen(["unshare", "-m", "--propagation", "private", "sleep", "60"])
        try:
            until(lambda: Path(f"/proc/{keeper.pid}/comm").read_text() == "sleep\n", "it is there")
            _umount(mounted.path)
            assert mounted.process.wait(LIMIT) == 0
            assert _mounts_at(here / "private/source") == []
        finally:
            keeper.kill()
            keeper.wait()
