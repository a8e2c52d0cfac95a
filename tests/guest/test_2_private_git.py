"""The agent's own git as users have it, by vm-mount, and what the human fetches of it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.guest.setting_up import AGENT, commit_on_host, gitguard_fetch, vm_mount
from tests.guest.world import GUARDS, Guard, World
from tests.support.mounting import until
from tests.support.repos import HOST_GID, HOST_UID, differences, git, metadata

PROJECT = "own-git"
EACH = pytest.mark.parametrize("each", GUARDS, ids=str)
NAMED = "git config user.name Agent && git config user.email agent@example.org"


@pytest.fixture(scope="module")
def private(guarded: World) -> Iterator[World]:
    for each in GUARDS:
        guarded.machine.run(vm_mount(each, git="private"), forked=True).ok()
    yield guarded
    for each in GUARDS:
        guarded.machine.run(vm_mount(each), forked=True).ok()


@EACH
def test_agent_and_human_commit_to_one_live_tree(private: World, each: Guard) -> None:
    machine, host = private.machine, private.at[each.tag] / PROJECT
    view = f"{each.view}/{PROJECT}"
    host.mkdir()
    os.chown(host, HOST_UID, HOST_GID)
    git(host, "init", "--quiet", "--template=", "--initial-branch=main")
    commit_on_host(host, "first")
    before = metadata(host)

    def agent(command: str) -> str:
        return machine.sh(command, cwd=view, uid=AGENT)

    assert agent("git status --porcelain") == "", "the first one is clean"
    assert "first" in agent("git log --oneline")
    agent(f"{NAMED} && echo more >>file && git commit --quiet -am 'of the agent'")
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


@EACH
def test_submodules_and_linked_work_trees_have_one_as_well(private: World, each: Guard) -> None:
    share = private.at[each.tag]
    host = share / "super"
    git(share, "clone", "--quiet", "demo", "super")
    local = ("-c", "protocol.file.allow=always")
    git(host, *local, "submodule", "--quiet", "add", str(share / "demo"), "sub")
    git(host, "commit", "--quiet", "-m", "submodule")
    git(host, "worktree", "add", "--quiet", "../beside")  # its path is that of the host
    git(share, "clone", "--quiet", "--shared", "demo", "borrowing")  # so are its objects
    places = (host, host / "sub", share / "beside", share / "borrowing")
    before = [metadata(place) for place in places]

    def agent(command: str, place: str) -> str:
        return private.machine.sh(command, cwd=f"{each.view}/{place}", uid=AGENT)

    assert agent("git status --porcelain", "super") == "", "the first one is clean"
    for place in ("super/sub", "super", "beside", "borrowing"):
        agent(f"{NAMED} && echo more >>README && git commit --quiet -am 'agent, {place}'", place)
        assert "first" in agent("git log --oneline && git submodule status", place)
    assert "sub" in agent("git show --stat", "super"), "the submodule's commit is recorded"
    for path, was in zip(places, before, strict=True):
        assert not differences(was, metadata(path)), path
        assert f"agent, {path.relative_to(share)}" in gitguard_fetch(path)
