"""A crash leaves a dead mount point and a sealed share, never an open one."""

from __future__ import annotations

import json
import time

import pytest

from tests.guest.machine import Machine
from tests.guest.setting_up import AGENT, mounted, vm_mount
from tests.guest.world import GUARDS, TESTS, Guard
from tests.support.mounting import until

FSTAB = [guard for guard in GUARDS if guard.style == "fstab"]
SYSTEMD = [guard for guard in GUARDS if guard.style == "systemd"]
BACK_LIMIT = 180.0


def pids_of(machine: Machine, guard: Guard) -> list[str]:
    """Return the process ids of the guard's daemon and, by fstab, of its keeper, which is first."""
    # A daemon is started by the launcher's path, by mount(8) or systemd.
    found = machine.run(["pgrep", "-f", f"/gitguardfs .*{guard.view}( |$)"]).stdout.split()
    assert len(found) == (2 if guard.style == "fstab" else 1), found
    return found


def pid_of(machine: Machine, guard: Guard) -> str:
    """Return the process id of the guard's daemon; there has to be exactly one."""
    return pids_of(machine, guard)[-1]


def is_closed(machine: Machine, guard: Guard) -> None:
    """Assert that the agent cannot reach the raw share."""
    for actor in ("agent", "fake root"):
        words = ["python3", "-m", "tests.guest.inside.raw_share", guard.raw, guard.view,
                 guard.tag, guard.transport, actor]  # fmt: skip
        assert json.loads(machine.sh(words, cwd=TESTS, forked=True)) == {}, actor


@pytest.mark.parametrize("each", FSTAB, ids=str)
def test_after_kill_9_the_path_is_dead_and_the_share_sealed(guest: Machine, each: Guard) -> None:
    guest.sh(["kill", "-9", *pids_of(guest, each)])
    time.sleep(1.5)  # the kernel answers some things from its cache for the cache timeout
    for uid in (AGENT, 0):
        for command in (f"ls {each.view}", f"cat {each.view}/demo/README"):
            guest.run(command, uid=uid).failed("not connected")
    assert mounted(guest, each.raw) == [each.transport, "ramfs"]
    is_closed(guest, each)


@pytest.mark.parametrize("each", FSTAB, ids=str)
def test_mounting_again_brings_it_back(guest: Machine, each: Guard) -> None:
    guest.sh(f"mount {each.view}")
    assert mounted(guest, each.view) == ["ramfs", "fuse.gitguardfs"]
    assert mounted(guest, each.raw) == [each.transport, "ramfs"]
    assert guest.sh(f"ls {each.view}/demo", uid=AGENT)
    guest.run(f"cat {each.view}/demo/.git/config", uid=AGENT).failed("Permission denied")
    is_closed(guest, each)


@pytest.mark.parametrize("each", SYSTEMD, ids=str)
def test_systemd_brings_it_back_by_itself(guest: Machine, each: Guard) -> None:
    before = pid_of(guest, each)
    # In the meantime an agent reads in a loop: it gets data of the view or nothing.
    watching = guest.channel.start(
        f"end=$((SECONDS + 10)); while [ $SECONDS -lt $end ]; do ls -A {each.view} {each.raw} "
        f"2>/dev/null; cat {each.raw}/demo/.git/config {each.view}/demo/.git/config 2>/dev/null; "
        "sleep 0.05; done | sort | uniq -c",
        uid=AGENT,
    )
    time.sleep(1)
    guest.sh(f"kill -9 {before}")
    until(
        lambda: guest.run(f"ls {each.view}/demo", uid=AGENT).rc == 0 and pid_of(guest, each),
        "the view is back",
        BACK_LIMIT,
    )
    assert pid_of(guest, each) != before
    assert mounted(guest, each.view) == ["ramfs", "fuse.gitguardfs"], "exactly one mount"
    assert mounted(guest, each.raw) == [each.transport, "ramfs"]
    seen = guest.channel.finish("watching", watching, 60).ok()
    assert "repositoryformatversion" not in seen.stdout, str(seen)
    guest.run(f"cat {each.view}/demo/.git/config", uid=AGENT).failed("Permission denied")
    is_closed(guest, each)


@pytest.mark.parametrize("number", [9, 12], ids=["kill -9", "restart"])
@pytest.mark.parametrize("each", GUARDS, ids=str)
def test_it_comes_back_with_the_agent_inside(guest: Machine, each: Guard, number: int) -> None:
    """What the agent wrote at the place meanwhile would be hidden as soon as the view is back."""
    before = pid_of(guest, each)
    guest.sh("rm -f /tmp/inside /tmp/inside.end")
    words = ["python3", "-m", "tests.guest.inside.old_view", each.view, "/tmp/inside"]
    inside = guest.channel.start(words, uid=AGENT, cwd=TESTS)
    until(lambda: guest.run("test -e /tmp/inside").rc == 0, "the agent is inside", BACK_LIMIT)
    if each.style == "systemd" and number != 9:
        guest.sh(["systemctl", "restart", guest.sh(["systemd-escape", "-p",
                 "--template=gitguardfs@.service", each.view])])  # fmt: skip
    else:
        guest.sh(f"kill -{number} {before}")
    if each.style == "fstab" and number != 9:
        until(lambda: guest.run(f"test -e /proc/{before}").rc != 0, "the daemon ends", BACK_LIMIT)
        for uid in (AGENT, 0):
            for command in (f"git init {each.view}/new", f"touch {each.view}/new"):
                assert guest.run(command, uid=uid).rc != 0, command
        guest.sh(f"mount {each.view}")
    # One command that asks seldom: on the emulated processor, others would slow the start down.
    guest.sh(f"until stat -f -c %T {each.view} | grep -q fuse; do sleep 0.2; done")
    assert pid_of(guest, each) != before
    guest.sh("touch /tmp/inside.end")
    said = json.loads(guest.channel.finish(words, inside, BACK_LIMIT).ok().stdout)
    print(f"{each}: away for {said['away']:.1f} s, {said['errors']}")
    assert set(said["errors"]) <= {"ENOTCONN", "ECONNABORTED", "EACCES"}, said
    assert said["old"] == ["ENOTCONN", "ENOTCONN"] and "Makefile" in said["new"], said
    assert mounted(guest, each.view) == ["ramfs", "fuse.gitguardfs"], "no second lid"
    below = f"umount -i -l {each.view} && umount -i -l {each.view} && ls -A {each.view}"
    assert guest.sh(["unshare", "-m", "--propagation", "private", "sh", "-c", below]) == ""
    is_closed(guest, each)


@pytest.mark.parametrize("each", GUARDS, ids=str)
def test_what_was_written_before_the_crash_is_there(guest: Machine, each: Guard) -> None:
    assert "demo" in guest.sh(f"ls {each.view}", uid=AGENT).split()


@pytest.mark.parametrize("each", FSTAB, ids=str)
def test_a_busy_view_is_not_forced(guest: Machine, each: Guard) -> None:
    holding = guest.channel.start(
        f"cd {each.view}/demo && touch /tmp/holds && until test -e /tmp/let-go; do sleep 0.2; "
        "done; rm -f /tmp/holds",
        uid=AGENT,
    )
    until(lambda: guest.run("test -e /tmp/holds").rc == 0, "somebody is in the view", BACK_LIMIT)
    done = guest.run([*vm_mount(each), "--remove"], forked=True)
    guest.sh("touch /tmp/let-go")
    holding.result(BACK_LIMIT)
    guest.sh("rm /tmp/let-go")
    assert done.rc != 0, str(done)
    assert "busy" in (done.stdout + done.stderr).lower() or "use" in done.stderr, str(done)
    assert mounted(guest, each.view) == ["ramfs", "fuse.gitguardfs"]
    assert mounted(guest, each.raw) == [each.transport, "ramfs"]
