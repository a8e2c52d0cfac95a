"""A daemon with bugs put in by the tests: a request may fail by one, the mount never does."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.mounting import REPOSITORY, area, daemons, unmount, until

LIMIT = 60
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(REPOSITORY)}

PROGRAM = """
import logging, sys
from gitguardfs.fs import audit_log as audit
from gitguardfs.fs import content, source
from gitguardfs.options import rate_limit
from gitguardfs.fs import files, metadata, tree
from gitguardfs.sessions.pyfuse3_session import handlers, session
from gitguardfs.sessions.kernel_session import abi, replies
from gitguardfs.sessions.kernel_session import session as kernel_session
def broken(*_): raise RuntimeError("put in by hand")
class Broken(logging.Handler): emit = broken
{}
sys.argv = ["gitguardfs", *sys.argv[1:]]
from gitguardfs.commands.gitguardfs import main
main()
"""


@pytest.fixture
def here() -> Iterator[Path]:
    with area() as path:
        path.chmod(0o700)
        (path / "source/.git").mkdir(parents=True)
        (path / "source/file").write_text("text")
        (path / "source/link").symlink_to("file")
        (path / "view").mkdir()
        try:
            yield path
        finally:
            unmount(path / "view")
            for pid in daemons(path):
                os.kill(pid, signal.SIGKILL)


def _forget(view: Path) -> None:
    """Let the kernel forget an object: it does at once when the last name is removed."""
    (view / "new").touch()
    (view / "new").unlink()
    (view / "next").touch()
    (view / "next").unlink()


def _refused(view: Path) -> None:
    _fails_with(errno.EACCES, lambda: os.listdir(view / ".git"))


def _fails(call: Callable[[Path], object]) -> Callable[[Path], None]:
    return lambda view: _fails_with(errno.EIO, lambda: call(view))


def _fails_with(number: int, call: Callable[[], object]) -> None:
    with pytest.raises(OSError) as caught:
        call()
    assert caught.value.errno == number


RATES = ("--read-rate", "1M", "--write-rate", "1M")

BUGS: dict[str, tuple[str, Callable[[Path], None], tuple[str, ...]]] = {
    "forget": ("tree.Tree.forget = broken", _forget, ()),
    "audit": ("audit.AuditLog.refuse = broken", _refused, ()),
    "log": (
        "tree.Tree.statfs = broken\nlogging.getLogger('gitguardfs').addHandler(Broken())",
        _fails(os.statvfs),
        (),
    ),
    "rate of reading": (
        "rate_limit.RateLimit.delay = broken",
        _fails(lambda view: (view / "file").read_text()),
        RATES,
    ),
    "rate of writing": (
        "rate_limit.RateLimit.delay = broken",
        _fails(lambda view: (view / "x").write_text("x")),
        RATES,
    ),
    "text for bytes": (
        "metadata.Metadata.readlink = lambda *_: 'text'",
        _fails(lambda view: os.readlink(view / "link")),
        (),
    ),
    "a negative count": (
        "source.Source.write = lambda *_: -1\nfiles._note_write = lambda *_: None",
        _fails(lambda view: (view / "x").write_text("x")),
        ("--direct-io",),
    ),
    "text for data": (
        "content.read_nowait = lambda *_: 'text'",
        _fails(lambda view: (view / "file").read_text()),
        (),
    ),
}  # fmt: skip
KERNEL_BUGS: dict[str, tuple[str, Callable[[Path], None], tuple[str, ...]]] = {
    "a log of all requests": (
        "kernel_session.log.setLevel(10)\nlogging.getLogger('gitguardfs').addHandler(Broken())",
        lambda view: (view / "file").write_text("text"),
        (),
    ),
    "more data than asked for": (
        "content.read_nowait = lambda fd, offset, size, known: bytes(size + 1)",
        _fails(lambda view: (view / "file").read_text()),
        (),
    ),
    "an errno that is none": (
        "def fails(*_): raise replies.RequestError(10 ** 30)\ntree.Tree.statfs = fails",
        _fails(os.statvfs),
        (),
    ),
    "a packer": (
        "abi.OUT_STATFS = None",
        _fails(os.statvfs),
        (),
    ),
}  # fmt: skip
"""Bugs that the kernel's session notices itself, or whose place it has alone."""
CASES = [
    *(("pyfuse3", bug) for bug in BUGS), *(("kernel", bug) for bug in (*BUGS, *KERNEL_BUGS)),
]  # fmt: skip


def _command(here: Path, code: str, *options: str) -> list[str]:
    """Return the command that mounts in the background."""
    program = [sys.executable, "-c", PROGRAM.format(code)]
    return [*program, str(here / "source"), str(here / "view"), *options]


@pytest.mark.parametrize(("session", "bug"), CASES)
def test_a_bug_costs_the_request_alone(here: Path, session: str, bug: str) -> None:
    code, provoke, options = (BUGS | KERNEL_BUGS)[bug]
    command = _command(here, code, "--session", session, *options)
    subprocess.run(command, env=ENVIRONMENT, timeout=LIMIT, check=True)
    before = daemons(here)
    for _ in range(2):
        provoke(here / "view")
    assert os.listdir(here / "view")
    assert daemons(here) == before
    subprocess.run(["umount", here / "view"], check=True)
    until(lambda: not daemons(here), "the daemon ends")


LATE = """
import os, time
session.ANSWER_LIMIT = 0.01
ask = session._ask
def late(path):
    while not os.path.exists({!r}):
        time.sleep(0.01)
    ask(path)
session._ask = late
"""


def test_a_mount_that_is_late_says_so_and_stays(here: Path) -> None:
    """pyfuse3 does not say when the kernel has asked; the kernel's session is asked first."""
    starting = subprocess.Popen(
        _command(here, LATE.format(str(here / "gate")), "--session", "pyfuse3"),
        env=ENVIRONMENT, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert starting.stderr is not None
    assert "has not answered" in starting.stderr.readline()
    (here / "gate").touch()
    starting.communicate(timeout=LIMIT)
    assert starting.returncode == 0
    assert (here / "view/file").read_text() == "text"
