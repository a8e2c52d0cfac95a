"""The place of a view stays closed while no view is there, and an old view stops nothing."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from gitguardfs.linux import mountinfo
from gitguardfs.mounting.keeper import PAUSE
from tests.support.mounting import (
    LIMIT,
    REPOSITORY,
    area,
    command,
    daemons,
    gitguardfs,
    run_to_end,
    unmount,
    until,
)
from tests.support.own_mounts import AS_AGENT
from tests.support.people import AGENT, as_user

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(REPOSITORY)}

_SPY = """
import os, sys
place, stop = sys.argv[1:]
print("watching", flush=True)
seen = set()
while not os.path.exists(stop):
    try:
        os.close(os.open(place + "/written", os.O_CREAT | os.O_WRONLY))
    except OSError:
        pass
    try:
        seen.update(os.listdir(place))
    except OSError:
        pass
    try:
        seen.add(open(place + "/.git/config").read())
    except OSError:
        pass
print(" ".join(sorted(seen)))
"""

_STAY = """
import ctypes, os, sys
os.chdir(sys.argv[1])
kept = os.open(".", os.O_RDONLY | os.O_DIRECTORY), os.open("file", os.O_RDONLY)
watch = ctypes.CDLL(None).inotify_init1(0)
assert ctypes.CDLL(None).inotify_add_watch(watch, b".", 0xfff) >= 0
print("stays", flush=True)
for line in sys.stdin:
    try:
        os.chdir(line[:-1])
        print(" ".join(sorted(os.listdir("."))), flush=True)
    except OSError as error:
        print(error.strerror, flush=True)
"""


@pytest.fixture
def here() -> Iterator[Path]:
    with area() as path:
        (path / "source/.git").mkdir(parents=True)
        (path / "source/.git/config").write_text("secret")
        (path / "source/file").write_text("text")
        (path / "source").chmod(0o777)
        (path / "view").mkdir()
        os.chown(path / "view", AGENT, AGENT)
        try:
            yield path
        finally:
            for pid in daemons(path):
                os.kill(pid, signal.SIGKILL)
            until(lambda: not daemons(path), "all daemons end")
            unmount(path / "view")
            unmount(path / "source")


def _run(here: Path, *options: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
    return run_to_end(here / "source", here / "view", *options, **more)


def _start(here: Path, *options: str, before: Callable[[], object] | None = None) -> int:
    """Start a daemon in the background; return its pid."""
    done = _run(here, *options, preexec_fn=before)
    assert done.returncode == 0, done.stderr
    _keeper, pid = daemons(here)
    return pid


def _end(here: Path, number: signal.Signals) -> None:
    """End the daemon and its keeper."""
    for pid in daemons(here):
        os.kill(pid, number)
    until(lambda: not daemons(here), "the daemon ends")


def mounts_at(path: Path) -> list[str]:
    """Return the names of the mounts at ``path``, lowest first; views by their type."""
    found = [m for m in mountinfo.listed() if m.mount_point == os.fsencode(path)]
    return [m.fstype if m.is_fuse else m.source for m in found]


LID, VIEW = "gitguardfs-lid", "fuse.gitguardfs"


@contextmanager
def _process(program: str, *arguments: Path, **more: Any) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        ["/usr/bin/python3", "-c", program, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **more,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() in ("watching\n", "stays\n")
        yield process
    finally:
        process.kill()
        process.communicate()


def _ask(process: subprocess.Popen[str], directory: str) -> str:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{directory}\n")
    process.stdin.flush()
    return process.stdout.readline().rstrip("\n")


# ------------------------------------------------------------------------ never seen or written


@pytest.mark.every_processor
@pytest.mark.parametrize("options", [("--seal",), ("--no-seal",), ()], ids=" ".join)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGUSR2], ids=lambda n: n.name)
def test_the_place_below_is_neither_seen_nor_written_while_a_daemon_is_replaced(
    here: Path, number: signal.Signals, options: Sequence[str]
) -> None:
    (here / "view/bare").touch()
    _start(here, "--nonempty", *options)
    with _process(_SPY, here / "view", here / "stop", **AS_AGENT) as spy:
        for _ in range(4):
            _end(here, number)
            _start(here, "--nonempty", *options)
            assert mounts_at(here / "view") == [LID, VIEW], "no second lid"
        (here / "stop").touch()
        seen = set(spy.communicate(timeout=LIMIT)[0].split())
    assert seen <= {"file", "written", ".git"}
    subprocess.run(["umount", here / "view"], check=True)
    assert os.listdir(here / "view") == ["bare"]


@pytest.mark.every_processor
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGUSR2], ids=lambda n: n.name)
def test_a_source_below_its_own_view_is_not_seen_meanwhile(
    here: Path, number: signal.Signals
) -> None:
    arguments = command(here / "source", here / "source")
    start = [*arguments, "--git", "hide"]
    subprocess.run(start, check=True, env=ENVIRONMENT, capture_output=True)
    with _process(_SPY, here / "source", here / "stop", **AS_AGENT) as spy:
        for _ in range(4):
            _end(here, number)
            subprocess.run(start, check=True, env=ENVIRONMENT, capture_output=True)
            assert mounts_at(here / "source") == ["gitguardfs-seal", VIEW]
        (here / "stop").touch()
        seen = set(spy.communicate(timeout=LIMIT)[0].split())
    assert seen <= {"file", "written"}
    subprocess.run(["umount", here / "source"], check=True)
    until(lambda: not daemons(here), "the daemon ends")
    assert (here / "source/.git/config").read_text() == "secret"
    assert mounts_at(here / "source") == []


def test_a_start_that_fails_leaves_the_place_as_it_was(here: Path) -> None:
    fails = ("-o", "fsname=" + "x" * 5000)
    assert _run(here, *fails).returncode == 32
    assert mounts_at(here / "view") == []
    _start(here)
    _end(here, signal.SIGKILL)
    assert _run(here, *fails).returncode == 32
    assert mounts_at(here / "view") == [LID]
    with pytest.raises(PermissionError):
        as_user(os.listdir, here / "view")
    with pytest.raises(OSError):
        (here / "view/new").touch()
    _start(here)
    assert (here / "view/file").read_text() == "text"


def test_the_owner_of_the_place_is_known_below_a_lid(here: Path) -> None:
    os.chown(here / "source", 501, 501)
    for _ in range(2):
        _start(here, "--map", "auto")
        st = (here / "view").stat()
        assert (st.st_uid, st.st_gid) == (AGENT, AGENT)
        _end(here, signal.SIGKILL)


def test_the_place_of_a_view_is_no_source(here: Path) -> None:
    """It would show an empty directory, or what the view was to hide."""
    _start(here)
    _end(here, signal.SIGUSR2)
    (here / "second").mkdir()
    done = subprocess.run(
        command(here / "view", here / "second"), env=ENVIRONMENT, capture_output=True, text=True,
        timeout=LIMIT, check=False,
    )  # fmt: skip
    assert done.returncode == 32
    assert done.stderr == (
        f"gitguardfs: {here}/view is the place of a view that is not mounted (mount that view)\n"
    )


# -------------------------------------------------------------------------- starts again by itself


@pytest.mark.every_processor
def test_a_killed_daemon_in_the_background_is_started_again(here: Path) -> None:
    """A line of fstab has no service manager that would do it. The agent stays inside."""
    (here / "view/bare").touch()
    relative = command("source", "view", "--seal", "--nonempty", "--audit-log", here / "log")
    subprocess.run(relative, check=True, env=ENVIRONMENT, cwd=here)
    keeper, pid = daemons(here)
    with (
        _process(_SPY, here / "view", here / "stop", **AS_AGENT) as spy,
        _process(_STAY, here / "view", **AS_AGENT) as inside,
    ):
        for _ in range(3):
            os.kill(pid, signal.SIGKILL)
            until(lambda: daemons(here)[1:] not in ([], [pid]), "another one")  # noqa: B023
            until(lambda: _is_served(here / "view"), "the view is back")
            assert mounts_at(here / "source") == ["gitguardfs-seal"]
            assert _ask(inside, str(here / "view")).split()[0] == "file"
            first, pid, *_ = daemons(here)  # and for a moment, a child that writes utab
            assert first == keeper
        (here / "stop").touch()
        seen = set(spy.communicate(timeout=LIMIT)[0].split())
    assert seen <= {"file", "written", ".git"}
    with pytest.raises(PermissionError):
        as_user(os.listdir, here / "view/.git")
    subprocess.run(["umount", here / "view"], check=True)
    until(lambda: not daemons(here), "daemon and keeper end")
    assert os.listdir(here / "view") == ["bare"]
    assert (here / "source/file").read_text() == "text"


def _is_served(view: Path) -> bool:
    """Return whether there is one view on one lid, whose daemon answers."""
    before = [m for m in mountinfo.listed() if m.path == str(view)]
    with suppress(OSError):
        os.statvfs(view)
        now = [m for m in mountinfo.listed() if m.path == str(view)]
        return now == before and mounts_at(view) == [LID, VIEW]
    return False


def test_a_daemon_that_never_answered_is_not_started_again(here: Path) -> None:
    """It would be killed again and again, by whatever kills it; and its caller got the error."""
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, here / "source", here / "view"], env=ENVIRONMENT,
        capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stderr.endswith("gitguardfs: the daemon died before the mount was up\n")
    until(lambda: not daemons(here), "nothing goes on")


_KILLED = """
import os, signal
from gitguardfs.commands.gitguardfs import main
from gitguardfs.mounting import view
view.mount = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
main()
"""


def _comes_back(here: Path, former: int) -> None:
    until(lambda: daemons(here)[1:] not in ([], [former]), "another daemon")
    until(lambda: _is_served(here / "view"), "the view is back")


def test_what_its_owner_has_unmounted_stays_unmounted(here: Path) -> None:
    """As an administrator ends a view that hangs: umount -l, then kill -9."""
    daemon = _start(here, "--seal")
    with open(here / "view/file"):
        subprocess.run(["umount", "-l", here / "view"], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "other", here / "view"], check=True)
        os.kill(daemon, signal.SIGKILL)
    until(lambda: not daemons(here), "the keeper ends")
    assert mounts_at(here / "view") == ["other"]


def test_another_directory_is_not_guarded_in_the_place_of_the_former(here: Path) -> None:
    daemon = _start(here, "--no-seal")
    (here / "source").rename(here / "moved")
    (here / "source").mkdir()
    os.kill(daemon, signal.SIGKILL)
    until(lambda: not daemons(here), "the keeper ends")
    with pytest.raises(OSError):
        (here / "view/new").touch()


def test_a_start_that_fails_is_tried_again(here: Path) -> None:
    (here / "logs").mkdir()
    daemon = _start(here, "--audit-log", str(here / "logs/log"))
    (here / "logs").rename(here / "away")
    os.kill(daemon, signal.SIGKILL)
    until(lambda: mounts_at(here / "view") == [LID] or not _is_served(here / "view"), "it is away")
    time.sleep(2 * PAUSE)
    (here / "away").rename(here / "logs")
    _comes_back(here, daemon)


def test_signals_to_both_processes_keep_their_meaning(here: Path) -> None:
    _start(here)
    first, daemon = daemons(here)
    for number in (signal.SIGUSR1, signal.SIGRTMIN):
        os.kill(first, number)
    os.kill(daemon, signal.SIGKILL)
    _comes_back(here, daemon)
    waits = Path(f"/proc/{first}/wchan")
    until(lambda: waits.read_text() == "do_wait", "the keeper knows that it is ready")
    os.kill(first, signal.SIGTERM)
    until(lambda: not daemons(here), "both end")
    assert mounts_at(here / "view") == []


def test_a_caller_that_ignores_its_children_changes_nothing(here: Path) -> None:
    daemon = _start(here, "--seal", before=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
    os.kill(daemon, signal.SIGKILL)
    _comes_back(here, daemon)
    subprocess.run(["umount", here / "view"], check=True)
    until(lambda: not daemons(here), "both end")
    assert mounts_at(here / "view") == mounts_at(here / "source") == []


_NOT_READY = """
from gitguardfs.commands.gitguardfs import main
from gitguardfs.mounting.signals import SignalReceiver
SignalReceiver.note_ready = lambda self: None
main()
"""


def test_umount_of_a_view_that_is_not_ready_says_that_the_seal_stays(here: Path) -> None:
    """As just after a crash. Signals that a daemon gets by then leave the seal."""
    subprocess.run(
        [sys.executable, "-c", _NOT_READY, here / "source", here / "view", "--seal"],
        env=ENVIRONMENT, check=True, timeout=LIMIT,
    )  # fmt: skip
    done = subprocess.run(["umount", here / "view"], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert f"a seal stays (umount {here}/source opens the share)" in done.stderr
    assert mounts_at(here / "source") == ["gitguardfs-seal"]


def test_the_keeper_holds_nothing_of_the_source(here: Path) -> None:
    """It would keep its file system busy, as well as whoever reads the command's output."""
    _start(here)
    keeper, _ = daemons(here)
    assert os.readlink(f"/proc/{keeper}/cwd") == "/"
    open_files = Path(f"/proc/{keeper}/fd")
    held = {os.readlink(link) for link in open_files.iterdir()}
    paths = {link for link in held if not link.startswith(("socket:", "/memfd:"))}
    assert paths - {"/dev/fuse", str(here / "view")} == {"/dev/null"}  # for the next daemon


# --------------------------------------------------------------------------- what takes it off


def test_a_view_over_its_source_leaves_that_closed(here: Path) -> None:
    """The seal below it stays, although nobody asked for one: else the raw source would be seen."""
    here.chmod(0o700)

    def take_away() -> None:
        with gitguardfs(here / "source", here / "source") as mounted:
            subprocess.run(["fusermount3", "-u", here / "source"], check=True)
            mounted.process.wait(LIMIT)
            assert mounts_at(here / "source") == ["gitguardfs-seal"]

    with pytest.raises(AssertionError, match=f"(?s)ended with 2.*umount {here}/source opens it"):
        take_away()


def test_to_unmount_a_dead_view_opens_its_place(here: Path) -> None:
    _start(here)
    _end(here, signal.SIGKILL)
    done = subprocess.run(["umount", here / "view"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert mounts_at(here / "view") == []


def test_to_unmount_a_dead_view_says_that_a_seal_stays(here: Path) -> None:
    _start(here, "--seal")
    _end(here, signal.SIGKILL)
    done = subprocess.run(["umount", here / "view"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and f"umount {here}/source opens" in done.stderr
    assert mounts_at(here / "view") == []
    subprocess.run(["umount", here / "source"], check=True)


def test_a_view_that_left_lazily_keeps_nobody_from_its_place(here: Path) -> None:
    first = _start(here)
    with open(here / "view/file") as file:
        subprocess.run(["umount", "-l", here / "view"], check=True)
        assert mounts_at(here / "view") == []
        done = _run(here)
        assert done.returncode == 0, done.stderr
        assert file.read() == "text"
    until(lambda: first not in daemons(here), "the first one ends")
    assert mounts_at(here / "view") == [LID, VIEW]
    assert (here / "view/file").read_text() == "text"


# ------------------------------------------------------------------------------ old views


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGUSR2, signal.SIGTERM], ids=lambda n: n.name
)
def test_who_only_holds_an_old_view_stops_nothing(here: Path, number: signal.Signals) -> None:
    """The second start finds views of two earlier daemons, both detached."""
    with _process(_NOTHING, **AS_AGENT):
        _start(here, "--seal")
        with _process(_STAY, here / "view", **AS_AGENT) as first:
            _end(here, number)
            _start(here, "--seal")
            with _process(_STAY, here / "view", **AS_AGENT) as second:
                _end(here, number)
                _start(here, "--seal")
                for old in (first, second):
                    assert _ask(old, ".") == os.strerror(errno.ENOTCONN)
                    assert _ask(old, str(here / "view")) == "file"
        assert mounts_at(here / "source") == ["gitguardfs-seal"]


_NOTHING = "import sys; print('stays', flush=True); sys.stdin.read()"


# ------------------------------------------------------------------------- views of ordinary users


@pytest.fixture
def own_view(here: Path, ordinary_users_can_mount: None) -> Path:
    done = _run(here, **AS_AGENT)
    assert done.returncode == 0, done.stderr
    return here / "view"


@pytest.mark.parametrize(
    "how",
    [("umount",), ("umount", "-l"), ("fusermount3", "-u"), ("fusermount", "-u"),
     ("umount.fuse.gitguardfs",)],
    ids=" ".join,
)  # fmt: skip
def test_a_user_unmounts_their_own_view(own_view: Path, how: Sequence[str]) -> None:
    path = f"/sbin/{how[0]}" if "." in how[0] else how[0]
    done = subprocess.run(
        [path, *how[1:], own_view], capture_output=True, text=True, check=False, **AS_AGENT
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert mounts_at(own_view) == []
    until(lambda: not daemons(own_view.parent), "the daemon ends")


def test_a_user_unmounts_their_own_dead_view(own_view: Path) -> None:
    _end(own_view.parent, signal.SIGKILL)
    done = subprocess.run(
        ["umount", own_view], capture_output=True, text=True, check=False, **AS_AGENT
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert mounts_at(own_view) == []


def test_a_users_busy_view_stays(own_view: Path) -> None:
    with _process(_STAY, own_view, **AS_AGENT):
        done = subprocess.run(
            ["umount", own_view], capture_output=True, text=True, check=False, **AS_AGENT
        )
        assert done.returncode == 32 and "busy" in done.stderr, done.stderr
        assert mounts_at(own_view) == [VIEW]
    unmount(own_view)


def test_root_unmounts_a_users_view(own_view: Path) -> None:
    done = subprocess.run(["umount", own_view], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert mounts_at(own_view) == []


@pytest.mark.parametrize("how", [("umount",), ("umount", "-l"), ("/sbin/umount.fuse.gitguardfs",)])
def test_a_user_does_not_unmount_the_view_of_another(here: Path, how: Sequence[str]) -> None:
    _start(here)
    done = subprocess.run(
        [*how, here / "view"], capture_output=True, text=True, check=False, **AS_AGENT
    )
    assert done.returncode != 0
    assert mounts_at(here / "view") == [LID, VIEW]
    if how[0].startswith("/"):
        assert done.stderr == (
            f"umount.fuse.gitguardfs: {here}/view was mounted by root"
            f" (as that user or as root: umount {here}/view)\n"
        )


_UNSEEN = """
import os
from gitguardfs.linux import syscalls
from gitguardfs.mounting import covers

def refuse(*_):
    raise OSError

before = os.readlink("/proc/self/ns/mnt")
syscalls.mount = refuse
try:
    with covers.unseen_mounts():
        pass
except OSError:
    print(os.readlink("/proc/self/ns/mnt") == before)
"""


def test_who_cannot_hide_mounts_is_where_they_are_seen() -> None:
    """The seal of a guard that fails to start would be put on where nobody sees it."""
    arguments = [sys.executable, "-c", _UNSEEN]
    done = subprocess.run(arguments, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr
