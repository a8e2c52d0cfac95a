"""``gitguard doctor`` finds nothing after vm-mount, and each fault that is made afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.guest.machine import Machine
from tests.guest.setting_up import AGENT, vm_mount
from tests.guest.world import GUARDS, Guard, World

MAIN = GUARDS[0]
LIMIT = 1200.0

Findings = dict[str, str]


def examine(machine: Machine, view: str, *options: str) -> tuple[int, Findings, int]:
    """Return the exit status, the findings of each check, and the number of rows."""
    done = machine.run(
        ["gitguard", "doctor", view, "--user", "agent", "--json", *options],
        timeout=LIMIT,
        forked=True,
    )
    assert done.rc in (0, 1), str(done)
    rows = json.loads(done.stdout)
    found: Findings = {}
    for row in rows:
        if row["status"] == "finding":
            found[row["id"]] = f"{found.get(row['id'], '')}{row['title']}: {row['detail']}\n"
    assert done.rc == bool(found), str(done)
    return done.rc, found, len(rows)


@contextmanager
def broken(machine: Machine, how: str, undo: str) -> Iterator[None]:
    machine.sh(how)
    try:
        yield
    finally:
        machine.run(undo).ok()


@pytest.mark.parametrize("each", GUARDS, ids=str)
def test_nothing_is_found_where_nothing_is_wrong(guest: Machine, each: Guard) -> None:
    before = guest.sh(f"ls -A {each.view}")
    attack = ["--attack"] if each is MAIN else []
    status, found, checks = examine(guest, each.view, *attack)
    assert (status, found) == (0, {})
    assert checks > (30 if attack else 15)
    assert guest.sh(f"ls -A {each.view}") == before, "it left something behind"


def test_the_agent_need_not_be_named_by_the_user_who_has_sudo(guest: Machine) -> None:
    words = ["env", "SUDO_UID=1001", "gitguard", "doctor", MAIN.view, "--json"]
    done = guest.run(words, timeout=LIMIT).ok()
    rows = {row["id"]: row for row in json.loads(done.stdout)}
    assert rows["run.user"]["status"] == "note" and "agent" in rows["run.user"]["title"]


def test_a_share_without_its_seal_is_found(guest: Machine) -> None:
    # Both protections have to be removed: the seal and the private parent.
    # On 9p, access=0 would still protect it.
    each = next(guard for guard in GUARDS if guard.transport == "virtiofs")
    with broken(
        guest,
        f"umount -l {each.raw} && chmod 755 /mnt/raw",
        f"chmod 700 /mnt/raw && mount -t ramfs -o ro,mode=000 gitguardfs-seal {each.raw}",
    ):
        _, found, _ = examine(guest, each.view)
    assert f"the raw share {each.raw} can be reached" in found["share.path"], found


@pytest.fixture(scope="module")
def with_rights(guarded: World) -> Findings:
    """Return the findings when the agent may use sudo and is in a group that owns the disks."""
    guest, path = guarded.machine, "/etc/sudoers.d/agent"
    with broken(
        guest,
        f"echo 'agent ALL=(ALL) NOPASSWD: ALL' >{path} && chmod 440 {path} && "
        "usermod -aG disk agent",
        f"rm {path} && gpasswd -d agent disk",
    ):
        assert guest.run("sudo -n true", uid=AGENT).rc == 0, "sudo does not work here"
        warned = guest.run(vm_mount(MAIN), forked=True).ok().stdout
        return {**examine(guest, MAIN.view)[1], "vm-mount": warned}


def test_sudo_without_a_password_is_found(with_rights: Findings) -> None:
    assert "rights.sudo" in with_rights


def test_a_group_that_gives_root_is_found(with_rights: Findings) -> None:
    assert "rights.groups" in with_rights


def test_vm_mount_warns_of_both_and_otherwise_of_nothing(
    guest: Machine, with_rights: Findings
) -> None:
    warnings = [
        line for line in with_rights["vm-mount"].splitlines() if line.startswith("Warning: ")
    ]
    assert len(warnings) == 2 and "sudo" in warnings[0] and "disk" in warnings[1], warnings
    assert "Warning" not in guest.run(vm_mount(MAIN), forked=True).ok().stdout


def test_a_guard_that_is_off_is_found(guest: Machine) -> None:
    """Unmounted, and mounted again with the policy off."""
    each = MAIN
    remount = f"mount {each.view}"
    with broken(guest, f"umount {each.view}", remount):
        _, found, _ = examine(guest, each.view)
        assert "guard.mounted" in found, found
    off = f"umount {each.view}; gitguardfs --git=off --map 501/1000:@20/@1000 --seal"
    with broken(guest, f"{off} {each.raw} {each.view}", f"umount {each.view}; {remount}"):
        _, found, _ = examine(guest, each.view)
    assert "guard.policy" in found, found
