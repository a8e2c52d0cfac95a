"""The agent's own git on a share, and what the human fetches of it on the host."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.guest.setting_up import AGENT, PRIVATE, spare_view
from tests.guest.world import TRANSPORTS, World, spare
from tests.support.mounting import LIMIT, REPOSITORY, until
from tests.support.people import reachable_python
from tests.support.repos import (
    HOST_GID,
    HOST_UID,
    as_host,
    differences,
    git,
    git_environment,
    metadata,
)

PROJECT = "own-git"


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_agent_and_human_commit_to_one_live_tree(spares: World, transport: str) -> None:
    machine, host = spares.machine, spares.at[spare(transport)] / PROJECT
    view = f"{spare_view(transport, *PRIVATE)}/{PROJECT}"
    host.mkdir()
    os.chown(host, HOST_UID, HOST_GID)
    git(host, "init", "--quiet", "--template=", "--initial-branch=main")
    _commit(host, "first")
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
    assert "of the agent" in _gitguard_fetch(host)
    assert git(host, "rev-parse", "agent/main").strip() == commit
    _gitguard_fetch(host, "--merge", "main")
    assert git(host, "rev-parse", "HEAD").strip() == commit
    assert git(host, "status", "--porcelain") == ""

    _commit(host, "of the human")
    until(lambda: "of the human" in agent("git sync; git log --oneline"), "the agent follows")
    assert agent("git status --porcelain") == ""


def _commit(host: Path, text: str) -> None:
    with as_host(), open(host / "file", "a") as file:
        file.write(f"{text}\n")
    git(host, "add", "file")
    git(host, "commit", "--quiet", "-m", text)


def _gitguard_fetch(host: Path, *more: str) -> str:
    with reachable_python() as python:
        done = subprocess.run(
            [python, "-c", "from gitguardfs.commands.gitguard import main; main()", "fetch", host,
             *more],
            cwd="/", env={**git_environment(), "PYTHONPATH": str(REPOSITORY)}, capture_output=True,
            text=True, timeout=LIMIT, check=False, user=HOST_UID, group=HOST_GID, extra_groups=[],
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
