"""kill -9 of the daemon while it makes or fetches the agent's repository, or carries a bundle."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gitguardfs.base.constants import PRIVATE_STORE
from gitguardfs.private.store import KEPT
from tests.guest.setting_up import AGENT, commit_on_host, gitguard_fetch, vm_mount
from tests.guest.world import GUARDS, TESTS, Guard, World
from tests.support.mounting import until
from tests.support.repos import HOST_GID, HOST_UID, differences, git, metadata

EACH = pytest.mark.parametrize("each", GUARDS, ids=str)
SIZE = 2 << 20
"""Bytes of a file that git packs for some tenths of a second."""
COPY = f"{PRIVATE_STORE}/*/host.git/objects/pack/tmp_*"
MOMENTS = {
    "9p": (COPY, f"{PRIVATE_STORE}/*/reader"),
    "virtiofs": (f"{PRIVATE_STORE}/*/agent.new", COPY),
}
"""What is in the store when the daemon is killed that seeds, and that fetches."""
OPEN = "until test -e $OVER; do cat .git >/dev/null || exit 1; done"
"""Opens the virtual file all the while; a look at the host is due once a second."""


@pytest.fixture(scope="session")
def private(guarded: World) -> World:
    for each in GUARDS:
        guarded.machine.run(vm_mount(each, git="private"), forked=True).ok()
    return guarded


class Project:
    """A project that the human has just made, and the agent's view of it."""

    def __init__(self, world: World, guard: Guard, name: str) -> None:
        self.machine, self.guard = world.machine, guard
        self.host, self.view = world.at[guard.tag] / name, f"{guard.view}/{name}"
        self.bundle = self.host / ".gitguard/agent.bundle"
        self.host.mkdir()
        os.chown(self.host, HOST_UID, HOST_GID)
        git(self.host, "init", "--quiet", "--template=", "--initial-branch=main")
        commit_on_host(self.host, "first", SIZE)

    def agent(self, command: str) -> str:
        return self.machine.sh(command, cwd=self.view, uid=AGENT)

    def kill(self, sign: str, command: str) -> dict[str, Any]:
        """Kill the daemon as soon as the agent's command has led to the sign."""
        before = metadata(self.host)
        words = ["python3", "-m", "tests.guest.inside.kill_daemon", self.guard.view, sign,
                 self.view, command]  # fmt: skip
        found: dict[str, Any] = json.loads(self.machine.sh(words, cwd=TESTS, forked=True))
        assert not differences(before, metadata(self.host)), sign
        return found

    def is_whole(self) -> None:
        """Assert that the agent's repository is as after a quiet day, and the store is tidy."""
        assert self.agent("git status --porcelain") == ""
        assert self.agent("git fsck --strict --no-dangling") == ""
        directory = str(Path(self.agent("git rev-parse --absolute-git-dir")).parent)
        assert set(self.machine.sh(f"ls -A {directory}").split()) <= KEPT
        left = f"ls -d {directory}?*; find {directory}/host.git -name 'tmp_*' -o -name '*.lock'"
        assert self.machine.run(left).stdout.split() == [f"{directory}.lock"]


@EACH
def test_nothing_is_half_made_or_lost(private: World, each: Guard) -> None:
    project = Project(private, each, "killed")
    seeding, refreshing = MOMENTS[each.transport]
    found = project.kill(seeding, OPEN)
    assert found["left"] and found["rc"] == 0, found
    assert project.machine.run(f"ls -d {seeding}").stdout == "", "the next daemon removes it"
    project.is_whole()
    assert project.agent("git log --format=%s") == "first"

    commit = commit_on_host(project.host, "second", SIZE)
    found = project.kill(refreshing, OPEN)
    assert found["left"] and found["rc"] == 0, found
    until(lambda: commit in project.agent("git fetch host; git rev-parse host/main"), "it is here")
    project.agent("git sync")
    project.is_whole()

    project.agent("git config user.name Agent; git config user.email agent@example.org")
    project.agent("git commit --quiet --allow-empty -m small")
    gitguard_fetch(project.host)
    small, published = git(project.host, "rev-parse", "agent/main"), project.bundle.read_bytes()
    write = f"head -c {SIZE} /dev/urandom >large && git commit --quiet -am large"
    found = project.kill(f"{project.view}/.gitguard/agent.bundle.new.*", write)
    assert found["rc"] == 0 and not found["said"], found
    assert project.bundle.read_bytes() != published
    project.is_whole()
    gitguard_fetch(project.host)
    assert git(project.host, "rev-parse", "agent/main") != small
    large = project.agent("git log -1 --format=%H --grep=large")
    assert git(project.host, "rev-parse", "agent/main").strip() == large
    assert list(project.bundle.parent.glob("agent*")) == [project.bundle]
