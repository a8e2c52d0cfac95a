"""The processes of a guard, and what is seen when they are killed."""

from __future__ import annotations

import json

from tests.guest.machine import Machine
from tests.guest.setting_up import AGENT, mounted
from tests.guest.world import TESTS, Guard
from tests.support.mounting import until

BACK_LIMIT = 180.0
CACHED, CACHES_LIMIT = 2.0, 30.0
"""Seconds for which the kernel answers from its caches; and in which they surely have run out."""


def pids_of(machine: Machine, guard: Guard) -> list[str]:
    """Return the process ids of the guard's keeper and of its daemon."""
    # They are started by the launcher's path, by mount(8) or systemd.
    found = machine.run(["pgrep", "-f", f"/gitguardfs .*{guard.view}( |$)"]).stdout.split()
    assert len(found) == 2, found
    return found


def is_closed(machine: Machine, guard: Guard) -> None:
    """Assert that the agent cannot reach the raw share."""
    for actor in ("agent", "fake root"):
        words = ["python3", "-m", "tests.guest.inside.raw_share", guard.raw, guard.view,
                 guard.tag, guard.transport, actor]  # fmt: skip
        assert json.loads(machine.sh(words, cwd=TESTS, forked=True)) == {}, actor


def comes_back(machine: Machine, guard: Guard, number: int) -> None:
    """Send the daemon a signal while the agent is inside; assert that the view comes back."""
    _keeper, before = pids_of(machine, guard)
    machine.sh("rm -f /tmp/inside /tmp/inside.end")
    # Since Linux 6.9 the kernel sends again what a killed daemon has not answered.
    version = tuple(map(int, machine.sh("uname -r").split(".")[:2]))
    is_handed_over = version >= (6, 9) if number == 9 else guard.style == "systemd"
    limit = CACHED if is_handed_over else CACHES_LIMIT
    inside = "tests.guest.inside.old_view"
    words = ["python3", "-m", inside, guard.view, "/tmp/inside", str(limit)]
    started = machine.channel.start(words, uid=AGENT, cwd=TESTS)
    until(lambda: machine.run("test -e /tmp/inside").rc == 0, "the agent is inside", BACK_LIMIT)
    if is_handed_over and number != 9:
        escape = ["systemd-escape", "-p", "--template=gitguardfs@.service", guard.view]
        machine.sh(["systemctl", "restart", machine.sh(escape)])
    else:
        machine.sh(f"kill -{number} {before}")
    if guard.style == "fstab" and number != 9:
        until(lambda: machine.run(f"test -e /proc/{before}").rc != 0, "the daemon ends", BACK_LIMIT)
        for uid in (AGENT, 0):
            for command in (f"git init {guard.view}/new", f"touch {guard.view}/new"):
                assert machine.run(command, uid=uid).rc != 0, command
        machine.sh(f"mount {guard.view}")
    # One command that asks seldom: on the emulated processor, others would slow the start down.
    machine.sh(f"until stat -f -c %T {guard.view} | grep -q fuse; do sleep 0.2; done")
    assert before not in pids_of(machine, guard)
    machine.sh("touch /tmp/inside.end")
    said = json.loads(machine.channel.finish(words, started, BACK_LIMIT).ok().stdout)
    print(f"{guard}: away for {said['away']:.1f} s, {said['errors']}")
    expected = set() if is_handed_over else {"ENOTCONN", "ECONNABORTED", "EACCES"}
    assert set(said["errors"]) <= expected, said
    assert said["old"] == (["", ""] if is_handed_over else ["ENOTCONN", "ENOTCONN"]), said
    assert "Makefile" in said["new"], said
    assert mounted(machine, guard.view) == ["ramfs", "fuse.gitguardfs"], "no second lid"
    below = f"umount -i -l {guard.view} && umount -i -l {guard.view} && ls -A {guard.view}"
    assert machine.sh(["unshare", "-m", "--propagation", "private", "sh", "-c", below]) == ""
    is_closed(machine, guard)
