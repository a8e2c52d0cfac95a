"""Work trees of the agent's git in directories of the guest's own: ``--local=deps``."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.view.test_private_git import World, made
from tests.support.mounting import LIMIT, REPOSITORY, until
from tests.support.people import AGENT, as_user, reachable_python
from tests.support.repos import (
    HOST_GID,
    HOST_UID,
    as_host,
    differences,
    git,
    git_environment,
    metadata,
)

PLACES = (".claude/worktrees/a", ".claude/worktrees/b", ".worktrees/c", "worktrees/d")
WORK = """
    name=$(basename "$0")
    git worktree add --quiet -b "$name" "$0"
    cd "$0"
    for number in 1 2 3; do
        echo "$number" >>"src/made-by-$name"
        git add . && git commit --quiet -m "$number"
    done
    git init --quiet nested
    git rebase --quiet --exec true host/main
    test -z "$(git status --porcelain)"
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with made("--local=deps", f"--local-store={tmp_path}/local") as ready:
        yield ready


def start(world: World, place: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["bash", "-euc", WORK, place], cwd=world.view, env=world.environment(), text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        user=AGENT, group=AGENT, extra_groups=[],
    )  # fmt: skip


def fetch(project: Path) -> None:
    """Run ``gitguard fetch`` as the human."""
    with reachable_python() as python:
        done = subprocess.run(
            [python, "-c", "from gitguardfs.commands.gitguard import main; main()", "fetch"],
            cwd=project, env={**git_environment(), "PYTHONPATH": str(REPOSITORY)},
            capture_output=True, text=True, timeout=LIMIT, user=HOST_UID, group=HOST_GID,
            extra_groups=[],
        )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_four_agents_work_at_once_and_the_human_gets_the_branch_of_each(world: World) -> None:
    before = metadata(world.project)
    entries = set(os.listdir(world.project))
    agents = [start(world, place) for place in PLACES]
    for agent in agents:
        said, _ = agent.communicate(timeout=LIMIT)
        assert agent.returncode == 0, said
        assert "gitguard:" not in said, "each commit is published"
    assert world.agent("status", "--porcelain", "--ignore-submodules") == ""
    assert not differences(before, metadata(world.project))
    assert set(os.listdir(world.project)) - entries == {".claude", ".gitguard"}
    assert os.listdir(world.project / ".claude") == []
    fetch(world.project)
    for place in PLACES:
        name = Path(place).name
        tip = world.agent("rev-parse", "HEAD", place=place).strip()
        assert git(world.project, "rev-parse", f"agent/{name}").strip() == tip
        assert git(world.project, "show", f"agent/{name}:src/made-by-{name}") == "1\n2\n3\n"
        world.agent("worktree", "remove", "--force", "--force", place)
    world.agent("worktree", "prune")
    assert world.agent("worktree", "list").count("\n") == 1
    assert not os.path.lexists(world.view / "worktrees/d")


def test_elsewhere_in_the_tree_they_are_refused(world: World) -> None:
    before = metadata(world.project)
    for place in ("topic", "src/worktrees/topic", ".claude/topic"):
        said = world.agent("worktree", "add", place, fails=True)
        assert "Permission denied" in said
    assert not differences(before, metadata(world.project))


def test_a_directory_of_sources_that_has_the_name_stays_on_the_share(world: World) -> None:
    with as_host():
        for place in ("worktrees", ".claude/worktrees/of-the-host"):
            (world.project / place).mkdir(parents=True)
            (world.project / place / "list.py").write_text("")
    until((world.view / "worktrees/list.py").exists, "it is shown")
    as_user((world.view / "worktrees/new.py").write_text, "")
    as_user((world.view / "src/worktrees").mkdir)
    as_user((world.view / "src/worktrees/new.py").write_text, "")
    assert (world.project / "worktrees/new.py").exists()
    assert (world.project / "src/worktrees/new.py").exists()
    assert os.listdir(world.view / ".claude") == []
    world.agent("worktree", "add", "--quiet", ".claude/worktrees/topic")
    assert os.listdir(world.view / ".claude/worktrees") == ["topic"]
    assert os.listdir(world.project / ".claude/worktrees") == ["of-the-host"]
