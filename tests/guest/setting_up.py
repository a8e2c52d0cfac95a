"""Installing the project in the guest and guarding a share, as a user does."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tests.guest.channel import Done
from tests.guest.inside.agent import FORKS
from tests.guest.machine import Machine
from tests.guest.world import CHECKOUT, TESTS, TRANSPORTS, Guard, spare
from tests.support.mounting import LIMIT, REPOSITORY
from tests.support.people import reachable_python
from tests.support.repos import HOST_GID, HOST_UID, as_host, git, git_environment

AGENT = 1000
MAP = "501/1000:@20/@1000"

BY_HAND_LINES = """\
projects /mnt/projects 9p trans=virtio,version=9p2000.L,msize=262144,access=0,_netdev,nofail 0 0
/mnt/projects /home/user/projects fuse.gitguardfs \
map=501/1000:@20/@1000,x-systemd.requires=/mnt/projects,_netdev,nofail,auto 0 0
"""
"""fstab as users of bindfs write it; only the ids of the Mac differ from those in docs/."""


def install(machine: Machine) -> Done:
    """Install from the checkout, as its documents say. The packages are there already."""
    return machine.run("./guest-setup/install.sh", cwd=CHECKOUT, timeout=600).ok()


def import_once(machine: Machine) -> None:
    """Start inside/forks.py: from now on commands with ``forked`` need no imports."""
    machine.sh(
        ["systemd-run", "--quiet", "--unit=gitguardfs-tests-forks", "--property=KillMode=process",
         f"--working-directory={TESTS}", "python3", "-m", "tests.guest.inside.forks"]
    )  # fmt: skip
    machine.sh(f"until test -S {FORKS}; do sleep 0.2; done")


def vm_mount(guard: Guard, *more: str, git: str = "deny") -> list[str]:
    """Return the command that guards a share, with ``.git`` closed or in another mode."""
    return ["vm-mount", "--label", guard.tag, "--mount", guard.raw, "--map-mount", guard.view,
            "--type", guard.transport, "--style", guard.style, "-y", "-o",
            f"git={git},local=deps", *more]  # fmt: skip


def guard(machine: Machine, guard: Guard) -> Done:
    """Guard a share by the one command that a user needs."""
    machine.sh("install -d -m 0700 /mnt/raw")
    return machine.run(vm_mount(guard), forked=True).ok()


def make_modules(machine: Machine, guard: Guard) -> None:
    """Make a directory of the guest's own in the view, as the agent."""
    machine.sh("mkdir -p node_modules && echo kept >node_modules/x", cwd=guard.view, uid=AGENT)


def are_modules_kept(machine: Machine, guard: Guard, host: Path) -> None:
    """Assert that it is there, and that the host has nothing of it."""
    assert machine.sh("cat node_modules/x", cwd=guard.view, uid=AGENT) == "kept"
    assert not (host / "node_modules/x").exists()


def commit_in_private(machine: Machine, project: str, host: Path) -> str:
    """Commit as the agent, to the repository of its own; return the commit."""
    commit = machine.sh(
        "git config user.name Agent && git config user.email agent@example.org &&"
        " git status --short --untracked-files=no && echo '// more' >>hello.c &&"
        " git commit --quiet -m 'of the agent' hello.c && git rev-parse HEAD",
        cwd=project,
        uid=AGENT,
    ).split()[-1]
    assert commit in git(host, "bundle", "list-heads", ".gitguard/agent.bundle")
    return commit


def commit_on_host(host: Path, text: str, size: int = 0) -> str:
    """Commit a line more, and a file of random bytes if they have a size; return the commit."""
    with as_host():
        with open(host / "file", "a") as file:
            file.write(f"{text}\n")
        if size:
            (host / "large").write_bytes(os.urandom(size))
    git(host, "add", ".")
    git(host, "commit", "--quiet", "-m", text)
    return git(host, "rev-parse", "HEAD").strip()


def gitguard_fetch(host: Path, *more: str) -> str:
    """Fetch what the agent has published, as the human; return what the command says."""
    with reachable_python() as python:
        done = subprocess.run(
            [python, "-c", "from gitguardfs.commands.gitguard import main; main()", "fetch", host,
             *more],
            cwd="/", env={**git_environment(), "PYTHONPATH": str(REPOSITORY)}, capture_output=True,
            text=True, timeout=LIMIT, check=False, user=HOST_UID, group=HOST_GID, extra_groups=[],
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def guard_by_hand(machine: Machine) -> None:
    """Enter a share and its guard into fstab, and mount them."""
    machine.sh("mkdir -p /mnt/projects /home/user/projects && chown 1000:1000 /home/user/projects")
    machine.run("cat >>/etc/fstab", stdin=BY_HAND_LINES).ok()
    machine.sh("systemctl daemon-reload && mount /mnt/projects && mount /home/user/projects")


def mounted(machine: Machine, path: str) -> list[str]:
    """Types of all mounts on exactly this path, the topmost last."""
    found = machine.run(["findmnt", "-rn", "-o", "FSTYPE", "--mountpoint", path])
    return found.stdout.split()


PYFUSE3 = ("--allow-suid", "--session=pyfuse3")
"""Options of a view that is also served by the other session, over virtiofs."""


def spare_view(transport: str, *options: str) -> str:
    """Return the path of the spare share's mount with these options."""
    return f"/srv/{transport}{''.join(options)}"


def mount_spares(machine: Machine, wanted: Iterable[tuple[str, ...]]) -> None:
    """Guard the spare share of each transport with each set of options, and by each session."""
    wanted = sorted(wanted)
    for transport in TRANSPORTS:
        raw = f"/mnt/raw/{spare(transport)}"
        machine.sh(f"mkdir -p {raw} && mount -t {transport} {spare(transport)} {raw}")
    for transport in TRANSPORTS:
        for options in [*wanted, *([PYFUSE3] if transport == "virtiofs" else [])]:
            view = spare_view(transport, *options)
            machine.sh(["mkdir", "-p", view])
            raw = f"/mnt/raw/{spare(transport)}"
            mount = ["gitguardfs", "--no-seal", "--map", MAP, raw, view, *options]
            machine.run(mount, forked=True).ok()
