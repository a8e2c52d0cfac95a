"""The end of a daemon whose source's server takes requests and does not answer."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from gitguardfs.base.errors import UserError
from gitguardfs.linux import mountinfo
from gitguardfs.mounting import lid, seal
from tests.support.errorfs import ROOT, Fault, Share, errorfs
from tests.support.mounting import LIMIT, area, unmount, until

_IMPATIENT = """
from gitguardfs.mounting import drain
from gitguardfs.commands.gitguardfs import main
drain.SILENCE = 1.0
main()
"""
"""gitguardfs, which gives up after one second without an answer, not after ten."""
_PATIENT = _IMPATIENT.replace("SILENCE = 1.0", "SILENCE = 600.0")
_STILL_ASKING = _IMPATIENT.replace(
    "main()\n",
    """
import signal, sys, time
from gitguardfs.sessions.pyfuse3_session import session
sys.argv += ["--session", "pyfuse3"]
class Asking:
    DEVNULL = None
    def run(*_, **__):
        while True:
            for how in (signal.SIG_BLOCK, signal.SIG_UNBLOCK):
                signal.pthread_sigmask(how, {signal.SIGWINCH})  # looks for pending signals
            time.sleep(0.01)
session.subprocess = Asking
main()
""",
)
"""gitguardfs whose first question to its own mount takes long, on a thread that takes signals."""


_STARTING = _IMPATIENT.replace(
    "main()\n",
    """
import os, subprocess, sys, time
from threading import Thread
def start():
    while not os.path.exists(sys.argv[1] + "/../go"):
        time.sleep(0.01)
    subprocess.run(["true"])
Thread(target=start, daemon=True).start()
main()
""",
)
"""gitguardfs that starts a process on a thread, as it does to fetch a repository."""


@dataclass
class Hung:
    """A view of a share that is about to hang."""

    view: Path
    share: Share
    process: subprocess.Popen[bytes]


@pytest.fixture
def here() -> Iterator[Path]:
    with area() as path:
        (path / "host/directory").mkdir(parents=True)
        (path / "host/file").write_text("text")
        (path / "host/unread").write_text("text")
        (path / "view").mkdir()
        yield path


@contextmanager
def _daemon(here: Path, *faults: Fault, program: str = _IMPATIENT) -> Iterator[Hung]:
    with errorfs(here / "host", here / "share", here / "control") as share:
        share.add(*faults)
        process = subprocess.Popen(
            [sys.executable, "-c", program, share.path, here / "view", "-f", "--seal",
             "--cache-timeout", "0"]
        )  # fmt: skip
        try:
            yield Hung(here / "view", share, process)
        finally:
            share.clear()
            process.kill()
            process.wait(LIMIT)
            unmount(here / "view")
            while seal.is_sealed(str(share.path)):
                subprocess.run(["umount", "-i", share.path], check=True)


def _answers(view: Path) -> bool:
    return (view / "file").exists()


def _is_closed(view: Path) -> bool:
    """Whether the view is gone and its lid is left."""
    top = mountinfo.top_at(str(view))
    return top is not None and lid.is_lid(top)


def _stat(view: Path) -> None:
    os.stat(view / "directory")


def _list(view: Path) -> None:
    os.listdir(view / "directory")


def _create(view: Path) -> None:
    (view / "new").touch()


def _read(view: Path) -> None:
    (view / "unread").read_bytes()


def _sync(view: Path) -> None:
    fd = os.open(view / "file", os.O_WRONLY)
    os.fsync(fd)


def _caller(call: Callable[[Path], None], view: Path) -> int:
    """Start a process that makes the call; it ends with 1 when that fails."""
    pid = os.fork()
    if pid == 0:
        try:
            call(view)
        except OSError:
            os._exit(1)
        finally:
            os._exit(0)
    return pid


def _has_ended(pid: int) -> bool:
    return os.waitpid(pid, os.WNOHANG)[0] == pid


CALLS = {
    "LOOKUP": _stat, "GETATTR": _stat, "READDIR": _list, "CREATE": _create, "OPEN": _read,
    "READ": _read, "FSYNC": _sync,
}  # fmt: skip


@pytest.mark.parametrize(
    ("request_", "number"),
    [*((name, signal.SIGTERM) for name in CALLS), ("LOOKUP", signal.SIGUSR2)],
)
def test_callers_are_answered_and_the_seal_stays(
    here: Path, request_: str, number: signal.Signals
) -> None:
    with _daemon(here) as hung:
        until(lambda: _answers(hung.view), "the view answers")
        (fault,) = hung.share.add(Fault((request_,), held=True))
        caller = _caller(CALLS[request_], hung.view)
        until(lambda: hung.share.hits(fault), "the server has the request")
        hung.process.send_signal(number)
        until(lambda: _has_ended(caller), "the caller is answered while the server hangs")
        until(lambda: _is_closed(hung.view), "the view is gone")
        assert seal.is_sealed(str(hung.share.path))
        until(lambda: _is_free(hung.share.path), "the next daemon can take the seal over")
        hung.share.clear()
        assert hung.process.wait(LIMIT) == 2


def test_a_signal_reaches_the_drain_whatever_thread_runs(here: Path) -> None:
    """A thread that took the signal would hide it, since no handler runs while the main one waits.

    That was so on a busy machine, where the daemon was told to end soon after it had started.
    """
    with _daemon(here, program=_STILL_ASKING) as hung:
        until(lambda: _answers(hung.view), "the view answers")
        (fault,) = hung.share.add(Fault(("CREATE",), held=True))
        caller = _caller(CALLS["CREATE"], hung.view)
        until(lambda: hung.share.hits(fault), "the server has the request")
        hung.process.send_signal(signal.SIGTERM)
        until(lambda: _has_ended(caller), "the caller is answered while the server hangs")
        hung.share.clear()
        assert hung.process.wait(LIMIT) == 2


def test_a_daemon_with_an_open_file_gives_up_as_well(here: Path) -> None:
    """It starts no process meanwhile: the kernel would close the file in it, and send a FLUSH."""
    with _daemon(here) as hung:
        until(lambda: _answers(hung.view), "the view answers")
        file = os.open(hung.view / "file", os.O_WRONLY)
        os.write(file, b"written")
        hung.share.add(Fault(("FLUSH",), held=True))
        _give_up(hung, signal.SIGTERM)
        with suppress(OSError):  # the view is dead
            os.close(file)


def test_a_process_that_is_being_started_does_not_keep_it(here: Path) -> None:
    """The new process closes its copy of the file, and waits for the server in the place of git."""
    with _daemon(here, program=_STARTING) as hung:
        until(lambda: _answers(hung.view), "the view answers")
        file = os.open(hung.view / "file", os.O_WRONLY)
        os.write(file, b"written")
        (fault,) = hung.share.add(Fault(("FLUSH",), held=True))
        (here / "go").touch()
        until(lambda: hung.share.hits(fault), "the server has the request")
        _give_up(hung, signal.SIGTERM)
        with suppress(OSError):  # the view is dead
            os.close(file)


def _give_up(hung: Hung, number: signal.Signals) -> None:
    """End a daemon whose server hangs; all is done before the server answers again."""
    hung.process.send_signal(number)
    until(lambda: _is_closed(hung.view), "the view is gone")
    until(lambda: _is_free(hung.share.path), "the next daemon can take the seal over")
    hung.share.clear()
    assert hung.process.wait(LIMIT) == 2


def _is_free(share: Path) -> bool:
    try:
        seal.check_free(str(share))
    except UserError:
        return False
    return True


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 2), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_view_that_never_answered_goes_as_well(
    here: Path, number: signal.Signals, code: int
) -> None:
    """No thread of the daemon's waits for its own mount: that would outlive even SIGKILL."""
    first_of_the_view = Fault(("STATFS",), name=ROOT, nth=2, held=True)
    with _daemon(here, first_of_the_view) as hung:
        until(lambda: len(hung.share.hits()) > 0, "the view's STATFS is at the server")
        hung.process.send_signal(number)
        if number == signal.SIGTERM:
            until(lambda: _is_closed(hung.view), "the view is gone")
        hung.share.clear()
        assert hung.process.wait(LIMIT) == code


def test_a_signal_before_the_mount_is_ready_leaves_the_seal(here: Path) -> None:
    """A service manager ends a slow start by this signal: that is not root's request."""
    first_of_the_view = Fault(("STATFS",), name=ROOT, nth=2, held=True)
    with _daemon(here, first_of_the_view, program=_PATIENT) as hung:
        until(lambda: len(hung.share.hits()) > 0, "the view's STATFS is at the server")
        hung.process.send_signal(signal.SIGTERM)
        hung.share.clear()
        assert hung.process.wait(LIMIT) == 0
        assert _is_closed(hung.view)
        assert seal.is_sealed(str(hung.share.path))
