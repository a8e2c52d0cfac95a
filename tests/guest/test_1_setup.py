"""From the checkout to guarded directories, as a user gets there."""

from __future__ import annotations

import pytest

from tests.guest.machine import Machine
from tests.guest.setting_up import AGENT, guard_by_hand, mounted, vm_mount
from tests.guest.world import BY_HAND, GUARDS, TRANSPORTS, Guard, World, spare

EACH = pytest.mark.parametrize("each", GUARDS, ids=str)


def test_vm_mount_refuses_a_label_that_is_not_there_and_lists_those_that_are(
    installed: World,
) -> None:
    done = installed.machine.run(
        ["vm-mount", "--label", "nosuch", "--map-mount", "/home/agent/nosuch", "-y"]
    )
    done.failed("nosuch", BY_HAND, spare("virtiofs"))
    assert done.rc in (1, 2, 32)
    assert "Traceback" not in done.stderr


def test_vm_mount_dry_run_changes_nothing(installed: World) -> None:
    machine = installed.machine
    state = (
        "cat /etc/fstab; ls /etc/systemd/system; cut -d' ' -f5 /proc/self/mountinfo; ls /home/agent"
    )
    before = machine.sh(state)
    machine.run([*vm_mount(GUARDS[0]), "--dry-run"], forked=True).ok()
    assert machine.sh(state) == before


@EACH
def test_the_view_is_guarded_and_the_raw_share_sealed(guest: Machine, each: Guard) -> None:
    assert mounted(guest, each.view) == ["ramfs", "fuse.gitguardfs"]
    assert mounted(guest, each.raw) == [each.transport, "ramfs"]


@EACH
def test_owners_of_the_host_are_the_agents_without_being_named(guest: Machine, each: Guard) -> None:
    assert guest.sh(f"stat -c %u:%g {each.view} {each.view}/demo/README").split() == [
        "1000:1000",
        "1000:1000",
    ]


@EACH
def test_git_is_seen_and_not_read(guest: Machine, each: Guard) -> None:
    assert guest.sh(f"stat -c '%u:%g %A' {each.view}/demo/.git", uid=AGENT) == "0:0 d---------"
    for uid in (AGENT, 0):
        guest.run(f"cat {each.view}/demo/.git/config", uid=uid).failed("Permission denied")


def test_findmnt_verifies_what_was_written(guest: Machine) -> None:
    guest.run("findmnt --verify").ok()


@EACH
def test_9p_is_open_to_root_alone(guest: Machine, each: Guard) -> None:
    options = guest.sh(["findmnt", "-n", "-o", "OPTIONS", "-t", each.transport, each.raw])
    assert ("access=0" in options) == (each.transport == "9p")


@EACH
def test_vm_mount_again_changes_nothing(guest: Machine, each: Guard) -> None:
    state = "sha256sum /etc/fstab /etc/systemd/system/*.mount /etc/systemd/system/*.service"
    before = guest.run(state).stdout
    guest.run(vm_mount(each), forked=True).ok()
    assert guest.run(state).stdout == before
    assert mounted(guest, each.view) == ["ramfs", "fuse.gitguardfs"]


def test_the_line_of_bindfs_users_works_as_it_stands(guest: Machine) -> None:
    guard_by_hand(guest)
    view = "/home/user/projects"
    assert mounted(guest, view) == ["ramfs", "fuse.gitguardfs"]
    assert mounted(guest, "/mnt/projects") == ["9p", "ramfs"]
    assert guest.sh(f"stat -c %u:%g {view}/demo/README") == "1000:1000"
    guest.run(f"cat {view}/demo/.git/config", uid=AGENT).failed("Permission denied")
    guest.run("ls /mnt/projects", uid=AGENT).failed("Permission denied")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_two_users_of_a_tag_are_told_apart(guest: Machine, transport: str) -> None:
    """A label that is in use is not mounted a second time beside its guard."""
    guard = next(each for each in GUARDS if each.transport == transport)
    done = guest.run(
        ["vm-mount", "--label", guard.tag, "--mount", "/mnt/raw/second", "--map-mount",
         "/home/agent/second", "--type", transport, "--style", "fstab", "-y"],
        timeout=180,
        forked=True,
    )  # fmt: skip
    assert done.rc != 0, str(done)
    assert mounted(guest, "/home/agent/second") == []
    assert mounted(guest, "/mnt/raw/second") == []
