"""A reboot brings every guard back in order; without the shares the machine still comes up."""

from __future__ import annotations

import re

import pytest

from tests.guest.machine import Machine
from tests.guest.setting_up import (
    AGENT,
    are_modules_kept,
    commit_in_private,
    guard_by_hand,
    make_modules,
    mounted,
    vm_mount,
)
from tests.guest.world import BY_HAND, GUARDS, Guard, World, phase
from tests.support.mounting import until
from tests.support.repos import git

EACH = pytest.mark.parametrize("each", GUARDS, ids=str)
LIMIT = 180.0


def enter_by_hand(machine: Machine) -> None:
    """Do what test_1_setup has done, unless it was not run."""
    if machine.run("grep -q ^projects /etc/fstab").rc != 0:
        guard_by_hand(machine)


@EACH
def test_remove_takes_away_all_that_was_made(guarded: World, each: Guard) -> None:
    machine = guarded.machine
    enter_by_hand(machine)
    machine.run([*vm_mount(each), "--remove"], forked=True).ok()
    assert mounted(machine, each.view) == []
    assert mounted(machine, each.raw) == []
    assert machine.run(f"grep -r -- {each.tag} /etc/fstab").stdout == ""
    assert machine.run(
        f"find /etc/systemd/system -name '*{each.tag.replace('-', 'x2d')}*' ; "
        f"grep -rl -- 'What={each.tag}$' /etc/systemd/system"
    ).stdout == ""  # fmt: skip
    assert BY_HAND in machine.sh("cat /etc/fstab"), "a foreign line is gone"
    machine.run(vm_mount(each, git="private"), forked=True).ok()  # again, for the boots


@pytest.fixture(scope="session")
def committed(guarded: World) -> dict[Guard, str]:
    """What the agent has committed before the reboot, to repositories of its own."""
    found = {}
    for each in GUARDS:
        guarded.machine.run(vm_mount(each, git="private"), forked=True).ok()
        make_modules(guarded.machine, each)
        host = guarded.at[each.tag] / "demo"
        found[each] = commit_in_private(guarded.machine, f"{each.view}/demo", host)
    return found


@pytest.fixture(scope="session")
def rebooted(guarded: World, committed: dict[Guard, str]) -> World:
    machine = guarded.machine
    enter_by_hand(machine)
    machine.sh("sync")
    machine.reboot()
    with phase("reboot: all units settled"):
        machine.run("systemctl is-system-running --wait")
    return guarded


def since_boot(machine: Machine, path: str) -> float:
    """Return how many microseconds after boot the unit that mounts ``path`` was up."""
    unit = machine.sh(["systemd-escape", "-p", "--suffix=mount", path])
    text = machine.sh(["systemctl", "show", "-P", "ActiveEnterTimestampMonotonic", unit])
    return float(text)


@EACH
def test_a_reboot_brings_the_guard_back(rebooted: World, each: Guard) -> None:
    machine = rebooted.machine
    assert mounted(machine, each.view) == ["ramfs", "fuse.gitguardfs"], machine.run(
        "systemctl --failed; journalctl -b --no-pager | grep -i -e gitguard -e 'mnt-raw' | tail -30"
    )
    assert mounted(machine, each.raw) == [each.transport, "ramfs"]
    assert machine.sh(f"stat -c %u:%g {each.view}/demo/Makefile", uid=AGENT) == "1000:1000"
    machine.run(f"cat {each.view}/demo/.git/config", uid=AGENT).failed("Not a directory")


@EACH
def test_what_the_agent_committed_is_there_after_a_reboot(
    rebooted: World, committed: dict[Guard, str], each: Guard
) -> None:
    said = rebooted.machine.sh(
        "git rev-parse HEAD && git fsck --strict --no-dangling && git fetch host &&"
        " git rev-parse host/main",
        cwd=f"{each.view}/demo",
        uid=AGENT,
    )
    host = git(rebooted.at[each.tag] / "demo", "rev-parse", "main")
    assert said.split() == [committed[each], host.strip()]


@EACH
def test_a_work_tree_that_the_host_links_after_a_boot_has_a_repository(
    rebooted: World, each: Guard
) -> None:
    """After a boot the seal lies on the share's root; vm-mount puts the share below its seal."""
    git(rebooted.at[each.tag] / "demo", "worktree", "add", "--quiet", "--detach", "linked")
    seen = rebooted.machine.sh(
        "git log --format=%s", cwd=f"{each.view}/demo/linked", uid=AGENT
    ).split("\n")
    assert seen[-1] == "first"


@EACH
def test_dependencies_of_the_agents_are_there_after_a_reboot(rebooted: World, each: Guard) -> None:
    are_modules_kept(rebooted.machine, each, rebooted.at[each.tag])


@EACH
def test_the_share_is_mounted_before_its_guard(rebooted: World, each: Guard) -> None:
    raw = since_boot(rebooted.machine, each.raw)
    view = since_boot(rebooted.machine, each.view)
    assert 0 < raw <= view


def test_the_line_of_bindfs_users_survives_a_reboot(rebooted: World) -> None:
    assert mounted(rebooted.machine, "/home/user/projects") == ["ramfs", "fuse.gitguardfs"]
    assert mounted(rebooted.machine, "/mnt/projects") == ["9p", "ramfs"]


def test_nothing_failed_at_boot(rebooted: World) -> None:
    failed = rebooted.machine.sh("systemctl --failed --no-legend --plain; true")
    assert failed == ""


def test_no_units_wait_for_each_other(rebooted: World) -> None:
    log = rebooted.machine.sh("journalctl -b --no-pager | grep -i 'ordering cycle'; true")
    assert log == ""


@pytest.fixture(scope="session")
def went_down(rebooted: World) -> World:
    """Shut the machine down. Raises GuestGone if it does not go down by itself."""
    rebooted.machine.stop()
    return rebooted


def test_guards_that_the_boot_has_mounted_do_not_keep_the_machine_from_going_down(
    went_down: World,
) -> None:
    console = went_down.machine.console.read_text(errors="replace")
    # Before, several guards were on one share: more than systemd knows of.
    since_the_reboot = console.rpartition("reboot: Restarting system")[2]
    assert "Failed unmounting" not in since_the_reboot


@pytest.fixture(scope="session")
def without_shares(went_down: World) -> World:
    """The same disk, in a machine that has none of the shares."""
    machine = went_down.machine
    machine.shares.clear()
    machine.console.write_text("")
    machine.start("boot without the shares")
    return went_down


def test_without_the_shares_the_guest_reaches_a_login(without_shares: World) -> None:
    machine = without_shares.machine
    until(
        lambda: re.search(r"guest login:", machine.console.read_text(errors="replace")),
        "a login on the console",
        LIMIT,
    )
    assert "emergency" not in machine.console.read_text(errors="replace").lower()
    assert machine.run("systemctl is-active multi-user.target").stdout.strip() == ("active")


@EACH
def test_without_its_share_the_view_is_an_empty_directory(
    without_shares: World, each: Guard
) -> None:
    machine = without_shares.machine
    assert mounted(machine, each.view) == []
    assert machine.sh(f"ls -A {each.view}") == ""
