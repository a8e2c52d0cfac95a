"""``gitguard share --guard host --run``: the guarded view on the host, as root and as a user."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from gitguardfs.base import installation
from gitguardfs.base.errors import GitguardExit
from gitguardfs.linux import mountinfo
from tests.support.mounting import REPOSITORY, area, until
from tests.support.people import AGENT, as_user, reachable_python

LIMIT = 60
VIEWS = Path("/run/gitguardfs")
GITGUARD = "from gitguardfs.commands.gitguard import main; main()"


@pytest.fixture
def here() -> Iterator[Path]:
    with area() as path:
        project = path / "my, project"
        (project / ".git").mkdir(parents=True)
        (project / ".git" / "config").write_text("[core]\n")
        (project / "file").write_text("text")
        (path / "run").mkdir(mode=0o700)
        subprocess.run(["chown", "-R", "1000:1000", path], check=True)
        yield path


@pytest.fixture
def tag() -> Iterator[str]:
    """A tag of our own for a view of root's; leaves nothing in /run."""
    name = f"test-{os.getpid()}"
    yield name
    (VIEWS / name).rmdir()
    with suppress(OSError):  # other views are mounted there
        VIEWS.rmdir()


def share(
    here: Path, *options: str, uid: int, python: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-c", GITGUARD, "share",
         str(here / "my, project"), "--guard", "host", "--run", *options],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "XDG_RUNTIME_DIR": str(here / "run")},
        cwd="/", user=uid, group=uid, extra_groups=[], timeout=LIMIT,
        capture_output=True, text=True,
    )  # fmt: skip


@contextmanager
def stopping(done: subprocess.CompletedProcess[str], uid: int) -> Iterator[dict[str, Any]]:
    """Yield the JSON output; at the end, stop the guard by the command in it."""
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    view = said["guard"]["mountpoint"]
    try:
        yield said
    finally:
        subprocess.run(said["guard"]["stop"], user=uid, group=uid, extra_groups=[], check=True)
        until(lambda: mountinfo.top_at(view) is None, "the view is gone")


def read(path: str) -> str:
    return Path(path).read_text()


def test_a_user_starts_and_stops_the_guard_on_the_host(here: Path) -> None:
    with reachable_python() as python:
        done = share(here, "--json", "--tag", "a,b", uid=AGENT, python=python)
        with stopping(done, AGENT) as said:
            view = said["exported"]
            assert view == f"{here}/run/gitguardfs/a,b"
            assert said["guard"]["running"] is True
            assert as_user(read, f"{view}/file") == "text"
            with pytest.raises(OSError) as refusal:
                as_user(read, f"{view}/.git/config")
            assert refusal.value.errno == errno.EACCES
            assert read(f"{here}/my, project/.git/config") == "[core]\n"
            again = share(here, "--json", "--tag", "a,b", uid=AGENT, python=python)
            assert again.returncode == 0 and "was running already" in again.stderr


def test_root_guards_where_other_users_cannot_look(here: Path, tag: str) -> None:
    with stopping(share(here, "--json", "--tag", tag, uid=0), 0) as said:
        view = said["exported"]
        assert view == f"{VIEWS}/{tag}"
        assert read(f"{view}/file") == "text"
        with pytest.raises(PermissionError):
            read(f"{view}/.git/config")
        with pytest.raises(PermissionError):
            as_user(read, f"{view}/file")


def test_code_in_the_working_directory_is_not_run(here: Path, tag: str) -> None:
    (here / "gitguardfs/commands").mkdir(parents=True)
    for name in ("__init__", "__main__", "commands/__init__", "commands/gitguardfs"):
        (here / f"gitguardfs/{name}.py").write_text(f"open({str(here / 'taken')!r}, 'w')\n")
    run = f"import sys; sys.path[0] = {str(REPOSITORY)!r}"
    done = subprocess.run(
        [sys.executable, "-c", f"{run}; {GITGUARD}", "share", str(here / "my, project"),
         "--guard", "host", "--run", "--json", "--tag", tag],
        cwd=here, timeout=LIMIT, capture_output=True, text=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )  # fmt: skip
    with stopping(done, 0) as said:
        assert read(f"{said['exported']}/file") == "text"
    assert not (here / "taken").exists()


def test_a_guard_that_died_is_started_again_and_not_called_running(here: Path, tag: str) -> None:
    first = share(here, "--json", "--tag", tag, uid=0)
    assert first.returncode == 0, first.stderr
    view = json.loads(first.stdout)["exported"]
    for pid in daemons_of(view):  # its keeper first, which was started first
        os.kill(pid, signal.SIGKILL)
    until(lambda: not daemons_of(view), "the daemon is gone")
    with stopping(share(here, "--json", "--tag", tag, uid=0), 0) as said:
        assert said["warnings"] == [] and read(f"{view}/file") == "text"


def daemons_of(view: str) -> list[int]:
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().endswith(os.fsencode(f"\0{view}\0")):
                found.append(int(pid))
    return found


@pytest.mark.parametrize("how", ["another directory", "other options"])
def test_a_guard_that_lets_through_something_else_is_not_called_running(
    here: Path, tag: str, how: str
) -> None:
    view = VIEWS / tag
    view.mkdir(mode=0o700, parents=True)
    (here / "other").mkdir()
    source = here / ("other" if how == "another directory" else "my, project")
    options = [] if how == "another directory" else ["--git", "off"]
    subprocess.run(installation.command(*options, "--no-seal", str(source), str(view)), check=True)
    try:
        done = share(here, "--tag", tag, uid=0)
        assert done.returncode == GitguardExit.FAILED and done.stdout == ""
        assert f"umount {view}" in done.stderr and len(done.stderr.splitlines()) == 1
    finally:
        subprocess.run(["umount", view], check=True)
