"""Errors are reported in one line, and a fault of the source does not harm the mount."""

import ctypes
import errno
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.mounting import (
    REPOSITORY,
    Mounted,
    area,
    bindfs,
    gitguardfs,
    run_to_end,
    unmount,
    until,
)
from tests.support.people import AGENT, as_user, reachable_python

USAGE, SYSTEM, MOUNT = 1, 2, 32
LIMIT = 60
CLONE_NEWNS = 0x00020000
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(REPOSITORY)}


@pytest.fixture
def here() -> Iterator[Path]:
    """For root only, so that no mount warns of an open source."""
    with area() as path:
        path.chmod(0o700)
        (path / "source").mkdir()
        (path / "source/file").write_text("text")
        (path / "view").mkdir()
        try:
            yield path
        finally:
            unmount(path / "view")
            unmount(path / "source")


def _check(done: subprocess.CompletedProcess[str], code: int, pattern: str) -> None:
    assert "Traceback" not in done.stderr
    assert re.fullmatch(r"gitguardfs: [^\n]+\n", done.stderr), done.stderr
    assert re.search(pattern, done.stderr), done.stderr
    assert (done.returncode, done.stdout) == (code, "")


def _refused(here: Path, code: int, pattern: str, *arguments: str | Path) -> None:
    before = Path("/proc/self/mountinfo").read_text().count(f" {here}")
    _check(run_to_end(*arguments), code, pattern)
    assert Path("/proc/self/mountinfo").read_text().count(f" {here}") == before


def _mounts_at(path: Path) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line.split(" - ")[1].split()[0] for line in lines if line.split()[4] == str(path)]


def _errno_of(function: Callable[..., Any], *arguments: Any) -> int:
    with pytest.raises(OSError) as caught:
        function(*arguments)
    return caught.value.errno or 0


def _succeeds(function: Callable[..., Any], *arguments: Any) -> bool:
    try:
        function(*arguments)
    except OSError:
        return False
    return True


# ------------------------------------------------------------------------------ The places


def test_a_source_and_a_mount_point_inside_one_another(here: Path) -> None:
    (here / "source/sub").mkdir()
    (here / "link").symlink_to("source/sub")
    for source, view in (
        ("source", "source/sub"), ("source/sub", "source"),
        ("source", "link"), ("link", "source"), ("source/../source", "source/sub/."),
    ):  # fmt: skip
        _refused(here, USAGE, "inside one another", f"{here}/{source}", f"{here}/{view}")


@pytest.mark.parametrize("name", [".git", ".GIT", "git~1", ".git/hooks", "sub/.git/a/b"])
def test_a_source_that_is_git_itself(here: Path, name: str) -> None:
    (here / "source" / name).mkdir(parents=True)
    _refused(here, USAGE, r"is a \.git or lies below one", here / "source" / name, here / "view")
    (here / "link").symlink_to(here / "source" / name)
    _refused(here, USAGE, r"is a \.git or lies below one", here / "link", here / "view")


@pytest.mark.parametrize("below", ["", "objects/pack"])
def test_a_source_that_is_a_bare_repository(here: Path, below: str) -> None:
    bare = here / "bare.git"
    subprocess.run(["git", "init", "--quiet", "--bare", bare], check=True, capture_output=True)
    _refused(here, USAGE, "git repository itself.*allow-bare", bare / below, here / "view")


def test_a_mount_point_that_is_not_empty_is_covered_on_demand_alone(here: Path) -> None:
    (here / "view/covered").touch()
    _refused(here, MOUNT, "is not empty.*-o nonempty", here / "source", here / "view")
    for option in (("--nonempty",), ("-o", "nonempty")):
        with gitguardfs(here / "source", here / "view", *option) as mounted:
            assert os.listdir(mounted.path) == ["file"]
        assert os.listdir(here / "view") == ["covered"]


# ------------------------------------------------------------------------- Dead FUSE mounts


def _killed(mounted: Mounted) -> None:
    mounted.process.kill()
    mounted.process.wait(LIMIT)
    assert _errno_of(os.listdir, mounted.path) == errno.ENOTCONN


@contextmanager
def _to_be_killed(here: Path, *options: str) -> Iterator[Mounted]:
    """A mount whose daemon does not exit with 0."""
    with ExitStack() as stack:
        mounted = stack.enter_context(gitguardfs(here / "source", here / "view", *options))
        try:
            yield mounted
        except BaseException:
            mounted.process.kill()
            raise
        finally:
            with suppress(AssertionError):  # the exit code is that of the kill
                stack.close()


def test_a_dead_guard_at_the_mount_point_is_cleared_away(here: Path) -> None:
    (here / "view/bare").touch()
    with _to_be_killed(here, "--nonempty") as first:
        _killed(first)
        with _started_again(here):
            assert (here / "view/file").read_text() == "text"
            assert _mounts_at(here / "view") == ["ramfs", "fuse.gitguardfs"]
        assert _mounts_at(here / "view") == []
        assert os.listdir(here / "view") == ["bare"]


@contextmanager
def _started_again(here: Path) -> Iterator[None]:
    """As a user starts it; a dead mount point would stop the harness."""
    done = run_to_end(here / "source", here / "view")
    assert (done.returncode, done.stderr) == (0, "")
    yield
    subprocess.run(["umount", here / "view"], check=True)


@pytest.mark.usefixtures("ordinary_user")
def test_a_user_clears_his_own_dead_guard_away(here: Path) -> None:
    user: dict[str, Any] = {"user": AGENT, "group": AGENT, "extra_groups": [], "cwd": "/"}
    for _ in range(2):
        done = run_to_end(here / "source", here / "view", **user)
        assert done.returncode == 0, done.stderr
        assert _mounts_at(here / "view") == ["fuse.gitguardfs"]
        assert as_user(os.listdir, str(here / "view")) == ["file"]
        (pid,) = _daemons(here / "view", "gitguardfs")
        os.kill(pid, signal.SIGKILL)
        until(lambda: _is_dead(here / "view", AGENT), "the daemon is dead")


def test_a_dead_bindfs_at_the_mount_point_is_named(here: Path) -> None:
    """The mount is not ours, so it is not removed."""
    with bindfs(here / "source", here / "view") as path:
        _kill_bindfs(path)
        _refused(here, MOUNT, f"umount -l {path}", here / "source", path)
        assert _mounts_at(path) == ["fuse"]


def test_a_dead_bindfs_as_source_is_named(here: Path) -> None:
    with bindfs(here / "source", here / "below") as path:
        _kill_bindfs(path)
        _refused(here, MOUNT, f"umount -l {path}", path, here / "view")


def _kill_bindfs(path: Path) -> None:
    (pid,) = _daemons(path, "bindfs")
    os.kill(pid, signal.SIGKILL)
    until(lambda: _is_dead(path), "bindfs is dead")


def _daemons(path: Path, program: str) -> list[int]:
    """Return the processes of a program that have ``path`` as an argument."""
    lines = {int(n): _command_line(n) for n in filter(str.isdigit, os.listdir("/proc"))}
    return [
        pid
        for pid, line in lines.items()
        if str(path) in line and program in (os.path.basename(line[0]), *line[1:3])
    ]


def _command_line(pid: str) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return [""]


def _is_dead(path: Path, uid: int = 0) -> bool:
    try:
        as_user(os.listdir, str(path), uid=uid)
    except OSError as error:
        return error.errno == errno.ENOTCONN
    return False


# ------------------------------------------------------------------------------- The system


def _in_own_mounts(prepare: Callable[[Path], None], here: Path, uid: int) -> Any:
    """Start gitguardfs in a namespace of its own in which ``prepare`` has changed the mounts."""
    return as_user(_start_there, prepare, here, uid, uid=0)


def _start_there(
    prepare: Callable[[Path], None], here: Path, uid: int
) -> subprocess.CompletedProcess[str]:
    if ctypes.CDLL(None).unshare(CLONE_NEWNS) != 0:
        raise AssertionError("unshare failed")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    prepare(here)
    who: dict[str, Any] = {"user": uid, "group": uid, "extra_groups": []} if uid else {}
    done = run_to_end(here / "source", here / "view", cwd="/", **who)
    subprocess.run(["umount", "-l", here / "view"], check=False, capture_output=True)
    return done


def _own_devices(here: Path) -> None:
    """A /dev with what programs need, and no fuse."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/dev"], check=True)
    for name, minor in (("null", 3), ("zero", 5), ("random", 8), ("urandom", 9)):
        os.mknod(f"/dev/{name}", stat.S_IFCHR | 0o666, os.makedev(1, minor))
        os.chmod(f"/dev/{name}", 0o666)


def _no_fusermount(here: Path) -> None:
    """Not on the PATH, and in none of the usual places."""
    _own_devices(here)
    os.mknod("/dev/fuse", stat.S_IFCHR | 0o666, os.makedev(10, 229))
    os.chmod("/dev/fuse", 0o666)
    for directory in ("usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin"):
        if os.path.exists(path := f"/{directory}/fusermount3"):
            subprocess.run(["mount", "--bind", "/dev/null", path], check=True)


@pytest.fixture
def ordinary_user(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    here.chmod(0o755)
    for name in ("source", "view"):
        os.chown(here / name, AGENT, AGENT)
        (here / name).chmod(0o700)
    with reachable_python() as python:
        monkeypatch.setattr(sys, "executable", python)
        yield


def test_a_kernel_without_fuse(here: Path) -> None:
    done = _in_own_mounts(_own_devices, here, uid=0)
    _check(done, SYSTEM, "no /dev/fuse.*modprobe fuse")


@pytest.mark.usefixtures("ordinary_user")
def test_a_user_without_fusermount3(here: Path) -> None:
    done = _in_own_mounts(_no_fusermount, here, uid=AGENT)
    _check(done, SYSTEM, "fusermount3 is not installed.*fuse3")


@pytest.mark.usefixtures("ordinary_user")
def test_a_mount_point_that_is_not_the_users(here: Path) -> None:
    os.chown(here / "view", 0, 0)
    (here / "view").chmod(0o755)
    done = run_to_end(
        here / "source", here / "view", user=AGENT, group=AGENT, extra_groups=[], cwd="/"
    )
    assert done.returncode == MOUNT
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"gitguardfs: cannot mount at {here}/view")


def test_an_audit_log_that_cannot_be_written(here: Path) -> None:
    (here / "link").symlink_to("elsewhere")
    for log in ("absent/log", "source", "link"):
        _refused(
            here, SYSTEM, "cannot write the audit log", here / "source", here / "view",
            "--audit-log", here / log,
        )  # fmt: skip


# ------------------------------------------------------------------ Faults of the source

GONE = {errno.EIO, errno.ESTALE, errno.ENOENT, errno.ENOTCONN}


@contextmanager
def _tmpfs(path: Path, *options: str) -> Iterator[Path]:
    with ExitStack() as stack:
        how = ",".join(["mode=777", *options])
        subprocess.run(["mount", "-t", "tmpfs", "-o", how, "tmpfs", path], check=True)
        stack.callback(unmount, path)
        yield path


def test_a_source_that_is_unmounted_lazily_serves_on(here: Path) -> None:
    with _tmpfs(here / "source") as source:
        (source / "file").write_text("on the share")
        with gitguardfs(source, here / "view", "--cache-timeout", "0") as mounted:
            subprocess.run(["umount", "-l", source], check=True)
            assert (source / "file").read_text() == "text", "what lies below the share"
            assert (mounted.path / "file").read_text() == "on the share"
            (mounted.path / "new").write_text("x")
            assert sorted(os.listdir(mounted.path)) == ["file", "new"]


def test_a_source_whose_server_dies_gives_errors_and_the_daemon_lives(here: Path) -> None:
    with bindfs(here / "source", here / "below") as below:
        with gitguardfs(below, here / "view", "--cache-timeout", "0") as mounted:
            opened = os.open(mounted.path / "file", os.O_RDWR)
            _kill_bindfs(below)
            for attempt in (
                lambda: os.listdir(mounted.path),
                lambda: os.read(opened, 10),
                lambda: (mounted.path / "file").read_text(),
                lambda: (mounted.path / "new").touch(),
                lambda: (mounted.path / "new").mkdir(),
                lambda: os.fsync(opened),
                lambda: os.rename(mounted.path / "file", mounted.path / "other"),
                lambda: os.close(opened),
            ):
                assert _errno_of(attempt) in GONE
            assert mounted.alive()


def test_a_file_held_open_while_the_server_dies_does_not_spoil_the_end(here: Path) -> None:
    """Closing it fails on such a source; the daemon still unmounts and exits 0."""
    with bindfs(here / "source", here / "below") as below:
        with gitguardfs(below, here / "view") as mounted:
            opened = os.open(mounted.path / "file", os.O_RDWR)
            try:
                _kill_bindfs(below)
                mounted.process.terminate()
                assert mounted.process.wait(LIMIT) == 0
                assert _mounts_at(mounted.path) == []
            finally:
                with suppress(OSError):
                    os.close(opened)


def test_a_source_that_is_removed_gives_errors_and_the_daemon_lives(here: Path) -> None:
    (here / "source/sub").mkdir()
    (here / "source/sub/file").touch()
    with gitguardfs(here / "source", here / "view", "--cache-timeout", "0") as mounted:
        with open(mounted.path / "file") as opened:
            os.stat(mounted.path / "sub/file")
            subprocess.run(["rm", "-rf", here / "source"], check=True)
            assert opened.read() == "text", "an open file stays readable"
            assert os.listdir(mounted.path) == []
            for attempt in (
                lambda: os.stat(mounted.path / "file"),
                lambda: os.stat(mounted.path / "sub/file"),
                lambda: os.listdir(mounted.path / "sub"),
                lambda: (mounted.path / "new").touch(),
                lambda: (mounted.path / "new").mkdir(),
            ):
                assert _errno_of(attempt) in GONE
        (here / "source").mkdir()
        (here / "source/new").touch()
        assert not (mounted.path / "new").exists(), "another directory at the same place"
        assert mounted.alive()


def test_a_source_that_is_moved_away_serves_on(here: Path) -> None:
    with gitguardfs(here / "source", here / "view", "--cache-timeout", "0") as mounted:
        (here / "source").rename(here / "moved")
        (here / "source").mkdir()
        (mounted.path / "new").write_text("x")
        assert (here / "moved/new").read_text() == "x"
        assert os.listdir(here / "source") == []


def _fill(path: str) -> tuple[int, int]:
    """Write until there is an error. Returns how many bytes write(2) took, and the errno."""
    written = 0
    fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)
    try:
        while True:
            written += os.write(fd, b"x" * 300_000)
    except OSError as error:
        return written, error.errno or 0
    finally:
        os.close(fd)


def test_a_full_disk_fails_the_writer_and_nobody_else(here: Path) -> None:
    with _tmpfs(here / "source", "size=2m") as source:
        (source / "other").write_text("other")
        here.chmod(0o755)
        with gitguardfs(source, here / "view", "--seal") as mounted:
            view = mounted.path
            written, number = as_user(_fill, str(view / "file"))
            assert errno.errorcode[number] == "ENOSPC"
            assert written > 1_500_000
            assert (view / "file").stat().st_size == written
            assert (view / "file").read_bytes() == b"x" * written
            assert (view / "other").read_text() == "other"
            assert as_user(_fill, str(view / "second")) == (0, errno.ENOSPC)
            (view / "file").unlink()
            until(lambda: _succeeds((view / "third").write_text, "x" * 500_000), "room again")
            assert (view / "third").read_text() == "x" * 500_000


def test_a_disk_without_inodes_fails_the_maker_and_leaves_nothing(here: Path) -> None:
    with _tmpfs(here / "source", "nr_inodes=50") as source:
        with gitguardfs(source, here / "view") as mounted:
            made = 0
            with pytest.raises(OSError) as caught:
                for made in range(100):
                    (mounted.path / f"file{made}").touch()
            assert caught.value.errno == errno.ENOSPC
            assert _errno_of((mounted.path / "directory").mkdir) == errno.ENOSPC
            assert _errno_of((mounted.path / "link").symlink_to, "x") == errno.ENOSPC
            assert len(os.listdir(mounted.path)) == made
            (mounted.path / "file0").unlink()
            # The inode is free when the kernel has told the daemon to forget it.
            until(lambda: _succeeds((mounted.path / "directory").mkdir), "there is room again")


# -------------------------------------------------------------------------- kill -9 under load

WRITER = """
import os, sys
data = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
acknowledged = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
turn = 0
try:
    while True:
        line = b"%d\\n" % turn
        os.write(data, line)
        os.fsync(data)
        os.write(acknowledged, line)
        turn += 1
except OSError as error:
    sys.exit(error.errno)
"""


@pytest.mark.every_processor
def test_a_killed_daemon_loses_nothing_and_shows_nothing(here: Path) -> None:
    (here / "view/bare").touch()
    with _to_be_killed(here, "--nonempty") as mounted:
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", WRITER, mounted.path / f"data{n}", here / f"acknowledged{n}"]
            )
            for n in range(4)
        ]
        try:
            promises = [here / f"acknowledged{n}" for n in range(4)]
            until(lambda: all(p.exists() and p.stat().st_size > 200 for p in promises), "load")
            mounted.process.kill()
            codes = [writer.wait(LIMIT) for writer in writers]
        finally:
            for writer in writers:
                writer.kill()
        mounted.process.wait(LIMIT)
        assert set(codes) <= {errno.ENOTCONN, errno.ECONNABORTED}
        for attempt in (
            lambda: os.listdir(mounted.path),
            lambda: os.stat(mounted.path),
            lambda: (mounted.path / "file").read_text(),
            lambda: (mounted.path / "new").touch(),
        ):
            assert _errno_of(attempt) == errno.ENOTCONN
        for n in range(4):
            promised = (here / f"acknowledged{n}").read_text()
            assert (here / f"source/data{n}").read_text().startswith(promised)
        with _started_again(here):
            names = ["data0", "data1", "data2", "data3", "file"]
            assert sorted(os.listdir(here / "view")) == names
            (here / "view/data0").write_text("works")


# ------------------------------------------------------------------------------ A racing host

HOST = """
import contextlib, os, shutil, sys
os.chdir(sys.argv[1])
turn = 0
while not os.path.exists("../stop"):
    turn += 1
    for n in range(20):
        with contextlib.suppress(OSError):
            os.rename(f"name{n}", f"name{n}.x")
        with contextlib.suppress(OSError):
            os.unlink(f"name{n}.x")
        with contextlib.suppress(OSError):
            open(f"name{n}", "w").write(str(turn))
    if turn % 2:
        os.mkdir("next")
    else:
        os.mknod("next")
    with contextlib.suppress(OSError):
        os.rename("thing", "old")
    with contextlib.suppress(OSError):
        os.rename("next", "thing")
    shutil.rmtree("next", ignore_errors=True)
    shutil.rmtree("old", ignore_errors=True)
    for name in ("next", "old"):
        with contextlib.suppress(OSError):
            os.unlink(name)
"""

ORDINARY = {
    errno.ENOENT, errno.ESTALE, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY,
}  # fmt: skip


@pytest.mark.every_processor
def test_a_host_that_races_causes_ordinary_errors_only(here: Path) -> None:
    """Names vanish between listing and use, directories become files and back."""
    (here / "source/shared").mkdir()
    # The host may replace a file just before its rename: that moved the new one, and if the host
    # has taken the old name again meanwhile, it cannot go back.
    lost = (r"a change of '(shared/name\d+|away)' could not be undone: File exists",)
    options = ("--cache-timeout", "0.01")
    with gitguardfs(here / "source", here / "view", *options, expected=lost) as mounted:
        shared = mounted.path / "shared"
        host = subprocess.Popen([sys.executable, "-c", HOST, here / "source/shared"])
        seen: set[int] = set()

        def attempt(function: Callable[..., Any], *arguments: Any) -> None:
            try:
                function(*arguments)
            except OSError as error:
                seen.add(error.errno or 0)

        try:
            until((shared / "name0").exists, "the host is at work")
            for turn in range(400):
                for name in os.listdir(shared):
                    attempt(os.stat, shared / name)
                n = turn % 20
                attempt((shared / f"name{n}").read_text)
                attempt(os.rename, shared / f"name{n}", shared / f"name{(n + 1) % 20}")
                attempt(os.rename, shared / f"name{n}", mounted.path / "away")
                attempt(os.unlink, shared / f"name{n}")
                attempt(os.listdir, shared / "thing")
                attempt((shared / "thing").read_text)
                attempt((shared / "thing/inside").touch)
                attempt(os.unlink, shared / "thing/inside")
                attempt(os.rmdir, shared / "thing")
                attempt(os.unlink, shared / "thing")
        finally:
            (here / "source/stop").touch()
            host.wait(LIMIT)
        names = sorted(errno.errorcode[number] for number in seen)
        assert seen <= ORDINARY, names
        assert errno.ENOENT in seen, "the two did not meet, so nothing is tested"
        assert mounted.alive()


def test_a_directory_that_becomes_a_file_in_use_is_an_ordinary_error(here: Path) -> None:
    (here / "source/thing/deep").mkdir(parents=True)
    with gitguardfs(here / "source", here / "view", "--cache-timeout", "3600") as mounted:
        thing = mounted.path / "thing"
        directory = os.open(thing / "deep", os.O_RDONLY | os.O_DIRECTORY)
        try:
            (here / "source/thing/deep").rmdir()
            (here / "source/thing").rmdir()
            (here / "source/thing").write_text("a file")
            for attempt in (
                lambda: os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=directory),
                lambda: os.stat("name", dir_fd=directory),
                lambda: (thing / "new").touch(),
            ):
                assert _errno_of(attempt) in ORDINARY
        finally:
            os.close(directory)
        assert mounted.alive()
        assert (mounted.path / "file").read_text() == "text"


# -------------------------------------------------------------------- Too many open files


def test_more_open_files_than_the_daemon_may_have_is_enfile_and_passes(here: Path) -> None:
    for n in range(400):
        (here / f"source/f{n}").write_text(str(n))
    with gitguardfs(here / "source", here / "view", limit_nofile=256) as mounted:
        with ExitStack() as held:
            with pytest.raises(OSError) as caught:
                for n in range(400):
                    held.enter_context(open(mounted.path / f"f{n}"))
            assert errno.errorcode[caught.value.errno or 0] == "ENFILE"
            assert mounted.descriptors() <= 256
            with pytest.raises(OSError) as caught:
                (mounted.path / "new").touch()
            assert errno.errorcode[caught.value.errno or 0] == "ENFILE"
            assert (mounted.path / "f0").stat().st_size == 1, "what needs none still works"
        for n in range(400):
            assert (mounted.path / f"f{n}").read_text() == str(n)
        assert len(os.listdir(mounted.path)) == 401
        (mounted.path / "new").touch()
        assert mounted.descriptors() < 256
