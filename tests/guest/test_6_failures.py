"""A crash leaves a dead mount point and a sealed share, never an open one."""

from __future__ import annotations

import time

import pytest

from tests.guest.crashes import BACK_LIMIT, comes_back, is_closed, pids_of
from tests.guest.machine import Machine
from tests.guest.setting_up import AGENT, are_modules_kept, make_modules, mounted, vm_mount
from tests.guest.world import GUARDS, Guard, World
from tests.support.mounting import until

FSTAB = [guard for guard in GUARDS if guard.style == "fstab"]
SYSTEMD = [guard for guard in GUARDS if guard.style == "systemd"]


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
def test_systemd_brings_it_back_without_its_keeper(guest: Machine, each: Guard) -> None:
    keeper, daemon = pids_of(guest, each)
    # In the meantime an agent reads in a loop: it gets data of the view or nothing.
    watching = guest.channel.start(
        f"end=$((SECONDS + 10)); while [ $SECONDS -lt $end ]; do ls -A {each.view} {each.raw} "
        f"2>/dev/null; cat {each.raw}/demo/.git/config {each.view}/demo/.git/config 2>/dev/null; "
        "sleep 0.05; done | sort | uniq -c",
        uid=AGENT,
    )
    time.sleep(1)
    guest.sh(f"kill -9 {keeper}")
    until(lambda: guest.run(f"test -e /proc/{daemon}").rc != 0, "the daemon ends", BACK_LIMIT)
    until(lambda: guest.run(f"ls {each.view}/demo", uid=AGENT).rc == 0, "it is back", BACK_LIMIT)
    assert keeper not in pids_of(guest, each)
    assert mounted(guest, each.view) == ["ramfs", "fuse.gitguardfs"], "exactly one mount"
    assert mounted(guest, each.raw) == [each.transport, "ramfs"]
    seen = guest.channel.finish("watching", watching, 60).ok()
    assert "repositoryformatversion" not in seen.stdout, str(seen)
    guest.run(f"cat {each.view}/demo/.git/config", uid=AGENT).failed("Permission denied")
    is_closed(guest, each)


@pytest.mark.parametrize("number", [9, 12], ids=["kill -9", "restart"])
@pytest.mark.parametrize("each", GUARDS, ids=str)
def test_it_comes_back_with_the_agent_inside(guarded: World, each: Guard, number: int) -> None:
    make_modules(guarded.machine, each)
    comes_back(guarded.machine, each, number)
    are_modules_kept(guarded.machine, each, guarded.at[each.tag])


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
