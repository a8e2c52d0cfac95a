"""The entrypoint of the microVM, run for real: a mount of its own, and an agent without rights."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gitguardfs.host.share import krun_text as krun
from gitguardfs.host.share.krun_text import KrunSpec
from tests.support.mounting import MOUNTINFO, REPOSITORY, area, unmount, until
from tests.support.people import AGENT

ENTRYPOINT = REPOSITORY / "gitguardfs/host/share/files/entrypoint.sh"
ISOLATED = REPOSITORY / "tests/support/isolated.py"
LAUNCHER = Path("/usr/local/sbin/gitguardfs")
"""Where the entrypoint looks first; covered, so that what is installed here is not run."""
REFUSED = 125


@dataclass
class MicroVm:
    """A directory with the contents of a microVM's image."""

    area: Path

    @property
    def source(self) -> Path:
        return self.area / "shares/project"

    @property
    def view(self) -> Path:
        return self.area / "view"

    @property
    def home(self) -> Path:
        return self.area / "home"

    def start(
        self, *command: str, before: tuple[str, ...] = (), **environment: str
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*before, "bash", ENTRYPOINT, *command],
            env={
                "PATH": "/usr/bin:/bin",
                "GITGUARD_SOURCE": str(self.source),
                "GITGUARD_VIEW": str(self.view),
                "GITGUARD_AGENT": "ggfs-agent",
                **environment,
            },
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, script: str, stdin: str = "", **environment: str) -> tuple[int, str, str]:
        """Run a shell script as the agent; returns status, output and errors."""
        process = self.start("sh", "-c", script, **environment)
        out, err = process.communicate(stdin, timeout=60)
        return process.returncode, out, err

    def mounts(self) -> list[str]:
        points = [line.split()[4] for line in MOUNTINFO.read_text().splitlines()]
        return [point for point in points if point.startswith(f"{self.area}/")]


@pytest.fixture
def vm() -> Iterator[MicroVm]:
    with area() as here:
        made = MicroVm(here)
        (made.source / ".git").mkdir(parents=True)
        (made.source / ".git/config").write_text("secret\n")
        (made.source / "hello.c").write_text("int main;\n")
        made.source.parent.chmod(0o700)
        for directory in (made.view, made.home, made.home / ".venv", made.home / ".venv/bin"):
            directory.mkdir()
        subprocess.run(
            ["chown", "-R", f"{AGENT}:{AGENT}", made.source, made.view, made.home], check=True
        )
        passwd = here / "passwd"
        entry = f"ggfs-agent:x:{AGENT}:{AGENT}::{made.home}:/bin/sh\n"
        passwd.write_text(entry + Path("/etc/passwd").read_text())
        subprocess.run(["mount", "-n", "--bind", passwd, "/etc/passwd"], check=True)
        place = LAUNCHER.parent
        subprocess.run(["mount", "-n", "-t", "tmpfs", "none", place], check=True)
        LAUNCHER.write_text(
            f'#!/bin/sh\nPYTHONPATH={REPOSITORY} exec {sys.executable} -m gitguardfs "$@"\n'
        )
        LAUNCHER.chmod(0o755)
        try:
            yield made
        finally:
            unmount(made.view)
            unmount(made.source)
            subprocess.run(["umount", "-n", "-i", place, "/etc/passwd"], check=True)


def test_the_command_runs_as_the_agent_in_the_view_and_its_status_is_returned(vm: MicroVm) -> None:
    script = "id -u; id -G; pwd; echo $HOME $USER; grep -E 'CapEff|CapBnd|NoNewPrivs' "
    status, out, err = vm.run(f"{script} /proc/self/status; exit 7")
    assert (status, err) == (7, "")
    lines = out.split("\n")
    assert lines[:4] == [str(AGENT), str(AGENT), str(vm.view), f"{vm.home} ggfs-agent"]
    told = dict(line.split(":\t") for line in lines[4:-1])
    assert told == {"CapEff": "0" * 16, "CapBnd": "0" * 16, "NoNewPrivs": "1"}
    assert vm.mounts() == []


def test_what_the_agent_writes_is_on_the_share(vm: MicroVm) -> None:
    status, _, err = vm.run("cat >new && mv hello.c main.c", stdin="text\n")
    assert (status, err) == (0, "")
    assert (vm.source / "new").read_text() == "text\n"
    assert (vm.source / "new").stat().st_uid == AGENT
    assert (vm.source / "main.c").exists()


ATTACKS = (
    "cat .git/config",
    "echo evil >.git/config",
    "mv .git x",
    "rm -rf .git",
    "mkdir -p a && mkdir a/.git",
    "unshare -Ur cat .git/config",
    "ls {source}",
    "cat {source}/.git/config",
    "unshare -Urm ls {source}",
    "ls /proc/$PPID/root{source}",
)


def test_attacks_on_the_repository_are_refused(vm: MicroVm) -> None:
    script = "\n".join(
        f"({attack.format(source=vm.source)}) >/dev/null 2>&1 && echo not refused: '{attack}'"
        for attack in ATTACKS
    )
    status, out, err = vm.run(f"{script}\nls -d .git; exit 0")
    assert (status, err) == (0, "")
    assert "not refused" not in out, out
    assert ".git" in out.split()
    assert (vm.source / ".git/config").read_text() == "secret\n"


def test_the_raw_tree_is_sealed_even_where_its_parent_is_open(vm: MicroVm) -> None:
    vm.source.parent.chmod(0o755)
    script = f"ls {vm.source} >/dev/null 2>&1 || echo sealed"
    assert vm.run(script)[:2] == (0, "sealed\n")
    assert sorted(os.listdir(vm.source)) == [".git", "hello.c"]


def test_the_guard_does_what_it_is_told(vm: MicroVm) -> None:
    script = "cat .git/config; touch .git/x 2>/dev/null || echo refused"
    status, out, _ = vm.run(script, GITGUARD_OPTIONS="git=readonly")
    assert (status, out) == (0, "secret\nrefused\n")


def test_directories_of_the_microvms_own_outlive_it_and_are_not_on_the_share(vm: MicroVm) -> None:
    spec = KrunSpec(str(vm.source), AGENT, AGENT, options=("git=deny", "local=deps"))
    options = f"{krun.guard_options(spec)},local-store={vm.area}/local"
    for script, expected in (
        ("mkdir node_modules && echo x >node_modules/a && cat node_modules/a", "x\n"),
        ("cat node_modules/a", "x\n"),
    ):
        assert vm.run(script, GITGUARD_OPTIONS=options) == (0, expected, "")
    assert sorted(os.listdir(vm.source)) == [".git", "hello.c"]


def test_nothing_of_the_agents_is_run_as_root(vm: MicroVm) -> None:
    for name in ("findmnt", "getent", "gitguardfs", "env", "setpriv", "umount", "chown"):
        planted = vm.home / ".venv/bin" / name
        planted.write_text(f"#!/bin/sh\ntouch {vm.area}/planted\n")
        planted.chmod(0o755)
    path = f"{vm.home}/.venv/bin:/usr/bin:/bin"
    status, out, _ = vm.run("echo $PATH; echo $VIRTUAL_ENV", PATH=path)
    assert status == 0
    assert out.split("\n")[0].startswith(f"{vm.home}/.venv/bin:")
    assert out.split("\n")[1] == f"{vm.home}/.venv"
    assert not (vm.area / "planted").exists()


def test_a_volume_of_roots_becomes_the_agents_and_a_link_is_not_followed(vm: MicroVm) -> None:
    (vm.area / "roots").mkdir()
    (vm.home / ".claude").symlink_to(vm.area / "roots")
    os.chown(vm.home / ".venv", 0, 0)
    assert vm.run("touch ~/.venv/mine")[0] == 0
    assert (vm.area / "roots").stat().st_uid == 0


def test_without_a_guard_nothing_is_run(vm: MicroVm) -> None:
    status, out, err = vm.run("echo ran", GITGUARD_OPTIONS="nosuchoption")
    assert (status, out) == (REFUSED, "") and "could not be guarded" in err
    LAUNCHER.write_text("#!/bin/sh\nexit 0\n")
    status, out, err = vm.run("echo ran")
    assert (status, out) == (REFUSED, "") and "nothing guards" in err
    status, out, err = vm.run("echo ran", GITGUARD_SOURCE=f"{vm.area}/missing")
    assert (status, out) == (REFUSED, "") and "is not mounted" in err
    status, out, err = vm.run("echo ran", GITGUARD_AGENT="root")
    assert (status, out) == (REFUSED, "") and "is root" in err
    assert str(vm.view) not in vm.mounts()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_reaches_the_command_and_the_view_goes(vm: MicroVm, number: int) -> None:
    name = signal.Signals(number).name.removeprefix("SIG")
    script = f"trap 'echo got {name}; exit 9' {name}; echo ready; while :; do sleep 0.1; done"
    process = vm.start("sh", "-c", script)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    assert str(vm.view) in vm.mounts() and str(vm.source) in vm.mounts()
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (9, f"got {name}\n", "")
    assert vm.mounts() == []


def test_a_command_that_dies_of_a_signal_is_128_more(vm: MicroVm) -> None:
    assert vm.run("kill -KILL $$")[0] == 128 + signal.SIGKILL
    assert vm.mounts() == []


def test_the_view_goes_although_something_still_uses_it(vm: MicroVm) -> None:
    status, out, _ = vm.run("sleep 1000 >/dev/null 2>&1 & echo $!")
    try:
        assert status == 0
        assert str(vm.view) not in vm.mounts()
    finally:
        os.kill(int(out), signal.SIGKILL)
    until(lambda: vm.mounts() == [], "the seal goes with the daemon")


def test_kill_leaves_nothing_running_and_the_next_start_works(vm: MicroVm) -> None:
    """As in the microVM, all processes end with the first; nobody is left to unmount."""
    process = vm.start(
        "sh", "-c", "echo text >new; echo ready; sleep 1000", before=(sys.executable, str(ISOLATED))
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    inside = Path(f"/proc/{_entrypoint_below(process.pid)}")
    assert str(vm.view) in (inside / "mountinfo").read_text()
    os.kill(int(inside.name), signal.SIGKILL)
    assert process.wait(60) != 0
    process.communicate()
    assert not _processes_naming(str(vm.view))
    assert vm.mounts() == []
    assert vm.run("cat new") == (0, "text\n", "")


def _processes_naming(text: str) -> list[str]:
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if text.encode() in words:
            found.append(pid)
    return found


def _entrypoint_below(pid: int) -> int:
    """The process that runs the entrypoint, among those that descend from ``pid``."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        if words[:2] == [b"bash", os.fsencode(ENTRYPOINT)]:
            return int(child)
        if (found := _entrypoint_below(int(child))) != 0:
            return found
    return 0
