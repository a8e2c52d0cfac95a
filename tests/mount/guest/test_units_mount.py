"""The service as a real service manager runs it: hardened, sealed, restarted after a crash.

A ``systemd --user`` of root's, in a mount namespace and a control group of its own, stands in for
the system's: it applies the same settings.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

import pytest

from gitguardfs.guest import systemd
from gitguardfs.options.guarded_share import GuardedShare
from tests.support.mounting import AREAS, PLACE, REPOSITORY, daemons

MANAGER = "/usr/lib/systemd/systemd"
LIMIT = 30.0
DEAD = ("Transport endpoint is not connected", "Software caused connection abort")

START = """\
echo $$ >"$1/cgroup.procs"
# The manager asks whether systemd runs here (sd_booted(3)).
mount -t tmpfs none /run && mkdir -p /run/systemd/system
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME="$2" XDG_RUNTIME_DIR="$2" \
    SYSTEMD_LOG_TARGET=console SYSTEMD_UNIT_PATH="$3:/usr/lib/systemd/user" \
    {manager} --user --unit=basic.target
"""


@dataclass
class Manager:
    """A service manager with one instance of ours."""

    area: Path
    pid: int

    @property
    def unit(self) -> str:
        return systemd.service_name(str(self.area / "view"))

    def begin(self, *command: str) -> subprocess.Popen[str]:
        enter = ["nsenter", "-m", "-t", str(self.pid), "env", f"XDG_RUNTIME_DIR={self.area}/run"]
        pipe = subprocess.PIPE
        return subprocess.Popen([*enter, *command], stdout=pipe, stderr=pipe, text=True)

    def inside(self, *command: str) -> subprocess.CompletedProcess[str]:
        process = self.begin(*command)
        output, errors = process.communicate()
        return subprocess.CompletedProcess(command, process.returncode, output, errors)

    def systemctl(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.inside("systemctl", "--user", *words)

    def shown(self, name: str) -> str:
        return self.systemctl("show", "-p", name, "--value", self.unit).stdout.strip()

    def mounts(self) -> list[str]:
        """Return the types of the mounts in the area, in order."""
        lines = Path(f"/proc/{self.pid}/mountinfo").read_text().splitlines()
        return [line.partition(" - ")[2].split()[0] for line in lines if str(self.area) in line]

    def read(self, path: str) -> str:
        done = self.inside("cat", f"{self.area}/{path}")
        return done.stdout + done.stderr.rpartition(": ")[2].strip()

    def write_units(self, *options: str) -> None:
        spec = GuardedShare(
            "projects", "9p", f"{self.area}/src", f"{self.area}/view", "1000:1000", options
        )
        for name, text in systemd.files(spec, f"{self.area}/gitguardfs").items():
            path = self.area / "units" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not name.endswith(".mount"):  # there is no share here
                path.write_text(text)
        # Ours alone: there is no journal here.
        notes = self.area / "units" / f"{self.unit}.d" / "notes.conf"
        notes.write_text(f"[Service]\nStandardError=append:{self.area}/daemon.log\n")
        self.systemctl("daemon-reload")


def wait_for(condition: Callable[[], bool], what: str, manager: Manager | None = None) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        log = (manager.area / "daemon.log").read_text() if manager else ""
        assert time.monotonic() < deadline, f"{what} did not come:\n{log}"
        time.sleep(0.05)


@pytest.fixture
def manager() -> Iterator[Manager]:
    if not os.path.exists(MANAGER):
        pytest.skip("needs systemd")
    area = Path(tempfile.mkdtemp(prefix="ggfs-", dir=PLACE))
    AREAS.append(str(area))
    hierarchy = Path("/sys/fs/cgroup/systemd")
    group = (hierarchy if hierarchy.is_dir() else hierarchy.parent) / area.name
    try:
        group.mkdir()
    except OSError as error:
        shutil.rmtree(area)
        pytest.skip(f"needs a control group: {error.strerror}")
    for name in ("src/project/.git", "view", "run", "units"):
        (area / name).mkdir(parents=True)
    (area / "src/project/.git/config").write_text("secret")
    (area / "src/project/hello.c").write_text("int main;")
    (area / "gitguardfs").write_text(
        f'#!/bin/sh\nPYTHONPATH={REPOSITORY} exec {sys.executable} -m gitguardfs "$@"\n'
    )
    (area / "gitguardfs").chmod(0o755)
    (area / "start").write_text(START.format(manager=MANAGER))
    with open(area / "log", "wb") as log:
        process = subprocess.Popen(
            ["unshare", "-m", "sh", area / "start", group, area / "run", area / "units"],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    found = Manager(area, process.pid)
    try:
        wait_for(lambda: found.systemctl("is-active", "basic.target").returncode == 0, "systemd")
        found.write_units("git=deny")
        yield found
    finally:
        found.systemctl("stop", found.unit)
        found.systemctl("exit")
        try:
            process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for directory in sorted([group, *group.rglob("*/")], reverse=True):
            with suppress(FileNotFoundError):  # it takes its own along
                directory.rmdir()
        shutil.rmtree(area)


def processes_of(manager: Manager) -> list[int]:
    """Return the keeper, which is the main process, and the daemon."""
    keeper, daemon = daemons(manager.area)
    assert manager.shown("MainPID") == str(keeper)
    return [keeper, daemon]


def test_the_hardened_service_guards_until_it_is_stopped(manager: Manager) -> None:
    done = manager.systemctl("start", manager.unit)
    assert done.returncode == 0, (manager.area / "daemon.log").read_text()
    assert manager.mounts() == ["ramfs", "ramfs", "fuse.gitguardfs"]
    assert manager.read("view/project/hello.c") == "int main;"
    assert manager.read("view/project/.git/config") == "Permission denied"
    assert manager.inside("sh", "-c", f"echo x >{manager.area}/view/new").returncode == 0
    assert manager.inside("chown", "1000", f"{manager.area}/view/new").returncode == 0
    for pid in processes_of(manager):
        status = Path(f"/proc/{pid}/status").read_text()
        assert "NoNewPrivs:\t1" in status and "Seccomp:\t2" in status
    assert manager.systemctl("stop", manager.unit).returncode == 0
    assert manager.mounts() == []
    assert manager.shown("Result") == "success"


def kill_the_daemon(manager: Manager) -> None:
    os.kill(processes_of(manager)[1], signal.SIGKILL)


def kill_the_keeper(manager: Manager) -> None:
    os.kill(processes_of(manager)[0], signal.SIGKILL)


def kill_both(manager: Manager) -> None:
    manager.systemctl("kill", "--signal=SIGKILL", manager.unit)


def restart(manager: Manager) -> None:
    manager.systemctl("restart", manager.unit)


@pytest.mark.parametrize(
    ("end", "restarts"),
    [(kill_the_daemon, 0), (kill_the_keeper, 1), (kill_both, 1), (restart, 0)],
    ids=["daemon", "keeper", "both", "restart"],
)
def test_the_service_comes_back_without_opening_the_share(
    manager: Manager, end: Callable[[Manager], None], restarts: int
) -> None:
    manager.systemctl("start", manager.unit)
    before = processes_of(manager)
    seen = set()
    is_over = Event()

    def watch() -> None:
        while not is_over.is_set():
            # The raw share, and the directory below the view.
            seen.add(manager.read("src/project/hello.c"))
            seen.add(manager.read("view/project/.git/config"))

    watcher = Thread(target=watch)
    watcher.start()
    try:
        end(manager)
        wait_for(lambda: daemons(manager.area)[1:] not in ([], before[1:]), "a daemon", manager)
        wait_for(lambda: manager.read("view/project/hello.c") == "int main;", "a view", manager)
        wait_for(lambda: manager.shown("ActiveState") == "active", "the restart", manager)
    finally:
        is_over.set()
        watcher.join()
    assert seen <= {"No such file or directory", "Permission denied", *DEAD}, seen
    assert manager.mounts() == ["ramfs", "ramfs", "fuse.gitguardfs"]
    assert manager.shown("NRestarts") == str(restarts)
    assert (processes_of(manager)[0] == before[0]) == (end == kill_the_daemon)
    assert manager.read("view/project/.git/config") == "Permission denied"


@pytest.mark.parametrize("end", [kill_the_daemon, kill_the_keeper, kill_both, restart])
def test_programs_do_not_notice_a_restart(manager: Manager, end: Callable[[Manager], None]) -> None:
    """Neither a shell in a directory, nor who has files open, nor who works meanwhile."""
    manager.systemctl("start", manager.unit)
    work = """
        cd project && exec 3<hello.c 4>>log || exit 1
        echo ready
        until test -e ../over; do
            echo text >new && mv new old && rm old && mkdir d && rmdir d || exit 1
        done
        cat <&3 && echo line >&4 && cat log && pwd -P
    """
    shell = manager.begin("sh", "-c", f"cd {manager.area}/view && {work}")
    assert shell.stdout is not None and shell.stdout.readline() == "ready\n"
    for _ in range(2):
        former = daemons(manager.area)[1:]
        end(manager)
        wait_for(lambda was=former: daemons(manager.area)[1:] not in ([], was), "a daemon", manager)
        wait_for(lambda: manager.read("view/project/hello.c") == "int main;", "a view", manager)
    manager.inside("touch", f"{manager.area}/view/over")
    output = shell.communicate(timeout=LIMIT)
    assert output == (f"int main;line\n{manager.area}/view/project\n", "")
    assert manager.mounts() == ["ramfs", "ramfs", "fuse.gitguardfs"]
    assert manager.systemctl("stop", manager.unit).returncode == 0
    assert manager.mounts() == []


def test_a_service_that_hands_over_to_nobody_leaves_its_view_dead(manager: Manager) -> None:
    manager.systemctl("start", manager.unit)
    manager.systemctl("kill", "--signal=SIGUSR2", manager.unit)
    wait_for(lambda: manager.shown("ActiveState") == "inactive", "the end")
    assert manager.shown("NRestarts") == "0"
    wait_for(lambda: manager.read("view/project/hello.c") in DEAD, "the end of the view")
    assert manager.mounts() == ["ramfs", "ramfs", "fuse.gitguardfs"]
    assert manager.read("src/project/hello.c") == "No such file or directory"
    assert manager.systemctl("start", manager.unit).returncode == 0
    assert manager.mounts() == ["ramfs", "ramfs", "fuse.gitguardfs"]
    assert manager.read("view/project/hello.c") == "int main;"


def test_a_mistake_in_the_options_is_not_tried_again_and_again(manager: Manager) -> None:
    manager.write_units("git=deny", "deny=x")
    drop_in = manager.area / "units" / f"{manager.unit}.d" / "share.conf"
    drop_in.write_text(drop_in.read_text().replace("deny=x", "deny=/"))
    manager.systemctl("daemon-reload")
    assert manager.systemctl("start", manager.unit).returncode != 0
    assert manager.shown("ActiveState") == "failed"
    assert (manager.shown("ExecMainStatus"), manager.shown("NRestarts")) == ("1", "0")
