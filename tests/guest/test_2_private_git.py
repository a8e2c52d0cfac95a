"""The agent's own git on a share, and what the human fetches of it on the host."""

from __future__ import annotations

import os

import pytest

from tests.guest.setting_up import (
    AGENT,
    PRIVATE,
    commit_on_host,
    gitguard_fetch,
    spare_view,
)
from tests.guest.world import TRANSPORTS, World, spare
from tests.support.mounting import until
from tests.support.repos import HOST_GID, HOST_UID, differences, git, metadata

PROJECT = "own-git"


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_agent_and_human_commit_to_one_live_tree(spares: World, transport: str) -> None:
    machine, host = spares.machine, spares.at[spare(transport)] / PROJECT
    view = f"{spare_view(transport, *PRIVATE)}/{PROJECT}"
    host.mkdir()
    os.chown(host, HOST_UID, HOST_GID)
    git(host, "init", "--quiet", "--template=", "--initial-branch=main")
    commit_on_host(host, "first")
    before = metadata(host)

    def agent(command: str) -> str:
        return machine.sh(command, cwd=view, uid=AGENT)

    assert agent("git status --porcelain") == "", "the first one is clean"
    assert "first" in agent("git log --oneline")
    agent("git config user.name Agent && git config user.email agent@example.org")
    agent("echo more >>file && git commit --quiet -am 'of the agent'")
    commit = agent("git rev-parse HEAD").strip()
    assert not differences(before, metadata(host))
    machine.run("cat .git/config", cwd=view, uid=AGENT).failed("Not a directory")
    machine.run("rm -f .git", cwd=view, uid=AGENT).failed("Permission denied")
    machine.run("git init new", cwd=view, uid=AGENT).failed("Permission denied")

    until((host / ".gitguard/agent.bundle").exists, "the bundle is on the host")
    assert "of the agent" in gitguard_fetch(host)
    assert git(host, "rev-parse", "agent/main").strip() == commit
    gitguard_fetch(host, "--merge", "main")
    assert git(host, "rev-parse", "HEAD").strip() == commit
    assert git(host, "status", "--porcelain") == ""

    commit_on_host(host, "of the human")
    until(lambda: "of the human" in agent("git sync; git log --oneline"), "the agent follows")
    assert agent("git status --porcelain") == ""
