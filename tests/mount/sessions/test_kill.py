"""A daemon is killed while it serves a request: the next one answers it, and does nothing twice."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gitguardfs.base.protocol import RENAME_NOREPLACE
from gitguardfs.linux.syscalls import renameat2
from gitguardfs.sessions.kernel_session.abi import Opcode
from tests.support.mounting import LIMIT, REPOSITORY, area, daemons, unmount, until

_KILLED = """
import os, signal, sys
from gitguardfs.commands.gitguardfs import main
from gitguardfs.sessions.kernel_session.connection import Connection
from gitguardfs.sessions.kernel_session.notes import Notes

armed, opcode, moment = os.environ["ARMED"], int(os.environ["OPCODE"]), os.environ["MOMENT"]
host, is_always = os.environ["HOST"] or ":", moment == "always"
begins, done, send = Notes.begins, Notes.done, Connection.send
begun = []

def note_begin(self, this, unique, *more):
    if this == opcode and moment == "begins" and os.path.exists(armed):
        os.system(f"{host}; sleep 0.02")  # a clock tick
    is_noted = begins(self, this, unique, *more)
    if this == opcode and is_noted and os.path.exists(armed):
        begun.append(unique)
        if moment in ("begins", "always") or (moment == "twice" and unique >> 63):
            die(unique)
    return is_noted

def die(unique):
    if unique in begun:
        if not is_always:
            os.unlink(armed)
            if moment == "twice" and not unique >> 63:
                open(armed, "x").close()
        if moment == "done":
            os.system(host)
        os.kill(os.getpid(), signal.SIGKILL)

def note_done(self, unique, reply):
    if moment == "begun":
        die(unique)
    done(self, unique, reply)

def reply(self, unique, answer):
    if moment in ("done", "twice"):
        die(unique)
    send(self, unique, answer)

Notes.begins, Notes.done, Connection.send = note_begin, note_done, reply
main()
"""


@pytest.fixture
def here() -> Iterator[Path]:
    with area() as path:
        (path / "source/full").mkdir(parents=True)
        (path / "source/empty").mkdir()
        (path / "source/file").write_text("text")
        (path / "source/log").write_text("line\nline\n")
        (path / "view").mkdir()
        yield path
        unmount(path / "view")
        until(lambda: not daemons(path), "they end")


def _create(view: Path) -> None:
    fd = os.open(view / "new", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o640)
    os.write(fd, b"new")
    os.close(fd)


def _append(flags: int, size: int) -> Callable[[Path], None]:
    def append(view: Path) -> None:
        fd = os.open(view / "log", os.O_WRONLY | os.O_APPEND | flags)
        assert os.write(fd, b"line\n" * size) == 5 * size
        os.close(fd)

    return append


def _rename(view: Path) -> None:
    directory = os.open(view, os.O_RDONLY)
    renameat2(directory, b"file", directory, b"moved", RENAME_NOREPLACE)
    os.close(directory)


CHANGES: dict[str, tuple[Opcode, Callable[[Path], object], tuple[str, ...]]] = {
    "mkdir": (Opcode.MKDIR, lambda view: os.mkdir(view / "new"), ()),
    "mknod": (Opcode.MKNOD, lambda view: os.mknod(view / "new", stat.S_IFIFO | 0o600), ()),
    "symlink": (Opcode.SYMLINK, lambda view: os.symlink("file", view / "new"), ()),
    "link": (Opcode.LINK, lambda view: os.link(view / "file", view / "new"), ()),
    "create": (Opcode.CREATE, _create, ()),
    "unlink": (Opcode.UNLINK, lambda view: os.unlink(view / "file"), ()),
    "rmdir": (Opcode.RMDIR, lambda view: os.rmdir(view / "empty"), ()),
    "rename": (Opcode.RENAME, lambda view: os.rename(view / "file", view / "moved"), ()),
    "replace": (Opcode.RENAME, lambda view: os.rename(view / "file", view / "log"), ()),
    "renameat2": (Opcode.RENAME2, _rename, ()),
    "setxattr": (
        Opcode.SETXATTR,
        lambda view: os.setxattr(view / "file", "user.a", b"b"),
        ("--xattr", "rw"),
    ),
    "append": (Opcode.WRITE, _append(0, 1), ("--direct-io",)),
    "append by a helper": (Opcode.WRITE, _append(os.O_SYNC, 50_000), ("--direct-io",)),
}


def _start(here: Path, opcode: Opcode, moment: str, *options: str, host: str = "") -> None:
    """Mount. While ``here/armed`` is there, a request kills the daemon; the host does something."""
    environment = {
        **os.environ, "PYTHONPATH": str(REPOSITORY), "HOST": host,
        "ARMED": str(here / "armed"), "OPCODE": str(opcode), "MOMENT": moment,
    }  # fmt: skip
    subprocess.run(
        [sys.executable, "-c", _KILLED, here / "source", here / "view", *options],
        env=environment, timeout=LIMIT, check=True,
    )  # fmt: skip


def _tree(path: Path) -> dict[str, object]:
    """Return names with kinds and contents."""
    return {
        str(each.relative_to(path)): each.read_bytes() if each.is_file() else each.lstat().st_mode
        for each in path.rglob("*")
    }


@pytest.mark.parametrize("moment", ["begun", "done", "twice"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_made_once(here: Path, change: str, moment: str, tmp_path: Path) -> None:
    """It is killed when the change was made: before it noted that, or before it answered.

    Twice: before it answered, and so is the daemon that is asked again, when it has begun.
    """
    opcode, make, options = CHANGES[change]
    subprocess.run(["cp", "-a", here / "source", tmp_path / "expected"], check=True)
    make(tmp_path / "expected")
    _start(here, opcode, moment, *options)
    former = daemons(here)
    (here / "armed").touch()
    make(here / "view")
    assert daemons(here)[0] == former[0] and daemons(here)[1:] != former[1:], "it was killed"
    assert _tree(here / "source") == _tree(here / "view") == _tree(tmp_path / "expected")


def test_what_the_host_makes_after_a_removal_is_not_removed_as_well(here: Path) -> None:
    _start(here, Opcode.UNLINK, "done", host=f"echo host >{here}/source/file")
    (here / "armed").touch()
    os.unlink(here / "view/file")
    assert (here / "source/file").read_text() == "host\n"


def test_who_is_not_the_first_to_make_a_file_is_told(here: Path) -> None:
    """As for a lock: the file is there, but this caller has not made it."""
    _start(here, Opcode.CREATE, "begins", host=f"touch {here}/source/new")
    (here / "armed").touch()
    with pytest.raises(FileExistsError):
        _create(here / "view")
    assert not (here / "armed").exists(), "it was killed"


def test_what_the_host_has_put_in_place_of_a_new_file_is_not_opened_unasked(here: Path) -> None:
    new = here / "source/new"
    _start(here, 35, "done", host=f"rm {new}; echo secret >{new}; chmod 600 {new}")
    (here / "source").chmod(0o777)
    (here / "armed").touch()
    done = subprocess.run(["sh", "-c", f"cat 0<>{here}/view/new"], user=1000, capture_output=True)
    assert b"Permission denied" in done.stderr and not done.stdout
    assert not (here / "armed").exists(), "it was killed"


def test_a_request_that_ends_each_daemon_is_given_up(here: Path) -> None:
    _start(here, Opcode.MKDIR, "always")
    held = os.open(here / "view/full", os.O_PATH)
    (here / "armed").touch()
    with pytest.raises(OSError, match=r"not connected|abort"):
        os.mkdir("new", dir_fd=held)
    os.close(held)
    (here / "armed").unlink()
    until(lambda: _serves(here / "view/file"), "the view is mounted anew")


def _serves(path: Path) -> bool:
    try:
        return path.read_text() == "text"
    except OSError:
        return False
