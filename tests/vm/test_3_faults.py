"""The next start repairs what `kill -9` leaves at any moment. And the hardened VM."""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from tests.vm.conftest import OPTIONS
from tests.vm.probes import probe
from tests.vm.world import LIMIT, UNRESTRICTED, Session, World, command, is_running, pid_of_qemu


def test_a_killed_driver_leaves_a_vm_that_the_next_up_mends(host: World, first: Session) -> None:
    host.sh("echo kept > ~/kept; sync")
    qemu = pid_of_qemu(host)
    first.process.kill()
    first.process.wait()
    assert is_running(host)
    assert "killed" in host.vm("status").stdout
    assert host.vm("reset", "-y").returncode == 3
    again = host.up(what="boot over a VM that was left")
    assert "left running by a vm up that was killed" in again.said()
    assert not Path(f"/proc/{qemu}").exists()
    assert host.sh("cat ~/kept") == "kept"
    assert host.sh("findmnt -n -o FSTYPE --target . | tail -n 1") == "fuse.gitguardfs"


def test_a_killed_qemu_ends_its_session(host: World) -> None:
    session = host.sessions[-1]
    os.kill(pid_of_qemu(host), signal.SIGKILL)
    assert session.process.wait(120) == 3
    assert "the VM was stopped" in session.said()
    assert not is_running(host)


def test_a_start_that_is_killed_early_is_mended(host: World) -> None:
    """The driver dies while the guest boots; then its QEMU is stopped, too, and never answers."""
    process = host.popen(command("up", "--", "true"))
    qemu = None
    while qemu is None:
        assert process.poll() is None
        with suppress(AssertionError):
            qemu = pid_of_qemu(host)
    process.kill()
    process.wait()
    os.kill(qemu, signal.SIGSTOP)
    assert is_running(host)
    assert host.vm("stop").returncode == 0
    assert not is_running(host)


def test_the_probes_can_fail(host: World, listening: int) -> None:
    """The control run: with the network open, the probes of isolation get answers."""
    words = [sys.executable, "-I", "-c", UNRESTRICTED, "echo READY; exec cat"]
    session = Session(host, words, "control run")
    host.sessions.append(session)
    session.await_ready()
    answers = probe(host, listening, root=True)
    assert {"proxy", "host-port"} <= answers
    # A panic ends the session, which would wait for an answer for ever.
    host.ssh("echo c >/proc/sysrq-trigger", root=True)
    assert session.process.wait(LIMIT) == 3
    assert "the guest's kernel panicked" in session.said()


def test_hardened_and_guarded_on_the_host(host: World, listening: int) -> None:
    """QEMU may start nothing, and not even the guest's root reaches .git."""
    session = host.up(*OPTIONS, "--hardened", "--guard", "host", what="hardened boot")
    assert host.sh("pwd") == "/home/agent/projects/project"
    host.sh("mkdir .venv && touch .venv/own")  # --local deps, with the guard on the host as well
    assert not (host.project / ".venv").exists()
    raw = "cat /var/lib/gitguardfs/*/.git/config; umount -l ~agent/projects/project; "
    done = host.ssh(f"{raw} mkdir /x; mount -t 9p project /x; cat /x/.git/config", root=True)
    assert "ghp-" not in done.stdout
    answers = probe(host, listening, root=False)
    assert answers == {"proxy"}
    host.vm("allow", f"GET {host.registry.url}/small", "private-address")
    status = host.sh(f"curl -sS -o /dev/null -w '%{{http_code}}' {host.registry.url}/small")
    assert status == "200"
    seccomp = Path(f"/proc/{pid_of_qemu(host)}/status").read_text()
    assert "Seccomp:\t2" in seccomp
    assert session.leave() == 0
    assert not [line for line in Path("/proc/mounts").read_text().splitlines()
                if str(host.place / "run") in line]  # fmt: skip
