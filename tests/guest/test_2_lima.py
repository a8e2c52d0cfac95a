"""The scripts that ``gitguard lima`` provisions, run for real where Lima would run them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import yaml

from gitguardfs.base.constants import HOLDER, PROJECT_SHARE
from gitguardfs.host.share import lima_yaml as lima
from gitguardfs.host.share.lima_yaml import LimaSpec, Tool
from tests.guest.channel import Done
from tests.guest.machine import Machine
from tests.guest.setting_up import mounted
from tests.guest.world import LIMA, LIMA_SETUP, World, phase
from tests.support.repos import HOST_GID, HOST_UID

USER = "lima-agent"
"""Not the agent of the other tests, so that the script has to make the user."""
UID = 1001
VIEW = f"/home/{USER}/shop"
SETUP = f"{HOLDER}/setup"
OPTIONS = "trans=virtio,version=9p2000.L,msize=262144,cache=none,nofail,comment=cloudconfig"
FSTAB = f"""\
{LIMA} {PROJECT_SHARE} 9p rw,{OPTIONS} 0 0
{LIMA_SETUP} {SETUP} 9p ro,{OPTIONS} 0 0
"""


class Instance:
    """A machine that Lima has just booted, and its provisioning scripts."""

    def __init__(
        self, machine: Machine, scripts: list[str], probe: str, param: dict[str, str]
    ) -> None:
        self.machine = machine
        self.param = {f"PARAM_{name}": value for name, value in param.items()}
        self.scripts = [self._put(text, f"{n}") for n, text in enumerate(scripts)]
        self.probe = self._put(probe, "probe")

    def _put(self, text: str, name: str) -> str:
        path = f"/var/tmp/lima-{name}.sh"
        self.machine.run(f"cat >{path} && chmod 755 {path}", stdin=text).ok()
        return path

    def provision(self, number: int, lima_user: str = "me") -> Done:
        return self.machine.run(
            [self.scripts[number]], timeout=600, LIMA_CIDATA_USER=lima_user, **self.param
        )


@pytest.fixture(scope="module")
def instance(booted: World) -> Iterator[Instance]:
    machine = booted.machine
    tools, options = (Tool.PYTHON,), ("git=deny",)
    spec = LimaSpec("/home/me/shop", "agent-shop", "/setup", tools=tools, options=options)
    found = yaml.safe_load(lima.render(spec))
    scripts = [one["script"].replace("agent=agent", f"agent={USER}") for one in found["provision"]]
    probe = found["probes"][0]["script"].replace("/home/agent/", f"/home/{USER}/")
    machine.sh("cp /etc/fstab /root/fstab.before-lima")
    machine.run("cat >>/etc/fstab", stdin=FSTAB).ok()
    machine.sh(f"mkdir -p {PROJECT_SHARE} {SETUP} && systemctl daemon-reload")
    machine.sh(f"mount {PROJECT_SHARE} && mount {SETUP}")
    made = Instance(machine, scripts, probe, found["param"])
    try:
        yield made
    finally:
        machine.run(["vm-mount", "--remove", "--tag", LIMA, "--map-mount", VIEW])
        machine.sh(f"umount {PROJECT_SHARE} {SETUP}")
        machine.sh("cp /root/fstab.before-lima /etc/fstab && systemctl daemon-reload")
        machine.run(["userdel", "--remove", USER])


@pytest.fixture(scope="module")
def provisioned(instance: Instance) -> Instance:
    refused = instance.provision(0, lima_user=USER)
    refused.failed("has sudo")
    assert mounted(instance.machine, VIEW) == [], "the agent is Lima's own user"
    with phase("Lima's provisioning"):
        for number in range(len(instance.scripts)):
            instance.provision(number).ok()
    return instance


def test_the_project_is_guarded_where_the_agent_sees_it(provisioned: Instance) -> None:
    machine = provisioned.machine
    assert mounted(machine, VIEW) == ["ramfs", "fuse.gitguardfs"]
    assert mounted(machine, PROJECT_SHARE) == ["9p", "ramfs"]
    assert machine.sh(f"stat -c '%u:%g' {VIEW}/demo/README", uid=UID) == f"{UID}:{UID}"
    machine.run([provisioned.probe], uid=UID, **provisioned.param).ok()


def test_the_agent_has_a_user_of_its_own_without_sudo(provisioned: Instance) -> None:
    machine = provisioned.machine
    assert machine.sh(f"id -u {USER} && id -Gn {USER}").split() == [str(UID), USER]
    machine.run("sudo -n true", uid=UID).failed()
    assert machine.sh(f"runuser -l {USER} -c 'id -un; pwd'").split() == [USER, f"/home/{USER}"]


def test_what_the_agent_is_to_reach_is_the_view_alone(provisioned: Instance) -> None:
    machine = provisioned.machine
    assert machine.sh(f"stat -c '%U %a' {HOLDER}") == "root 700"
    for path in (PROJECT_SHARE, SETUP, HOLDER):
        machine.run(f"ls {path}", uid=UID).failed("Permission denied")
        machine.run(f"unshare -Urm ls {path}", uid=UID).failed("Permission denied")
    for attack in ("cat .git/config", "mv .git x", "echo evil >.git/hooks/post-checkout",
                   "unshare -Ur cat .git/config", "mkdir -p a && mkdir a/.git"):  # fmt: skip
        machine.run(attack, cwd=f"{VIEW}/demo", uid=UID).failed("Permission denied")


def test_the_agents_work_is_the_host_users(provisioned: Instance, booted: World) -> None:
    provisioned.machine.sh("echo text >new", cwd=f"{VIEW}/demo", uid=UID)
    st = os.stat(booted.at[LIMA] / "demo/new")
    assert (st.st_uid, st.st_gid) == (HOST_UID, HOST_GID)


def test_the_next_start_of_the_machine_changes_nothing(provisioned: Instance) -> None:
    machine = provisioned.machine
    state = (
        "stat -c '%i %Y' /usr/local/bin/gitguardfs; cat /etc/fstab /etc/passwd;"
        # Not all mounts: those of login sessions come and go.
        " findmnt -rn -t 9p,virtiofs,ramfs,fuse.gitguardfs"
    )
    before = machine.sh(state)
    done = provisioned.provision(0).ok()
    assert "Nothing to do" in done.stdout
    assert machine.sh(state) == before


def test_the_doctor_finds_nothing(provisioned: Instance) -> None:
    done = provisioned.machine.run(["gitguard", "doctor", VIEW, "--user", USER], timeout=1200)
    assert done.rc == 0, str(done)
