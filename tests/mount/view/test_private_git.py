"""The agent's own repository on a live tree: ``--git=private``, by git itself."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.mounting import LIMIT, REPOSITORY, Mounted, area, bound, gitguardfs, until
from tests.support.people import AGENT, as_user
from tests.support.repos import (
    HOST_GID,
    HOST_UID,
    MAP,
    SECRET,
    as_host,
    differences,
    git,
    make_project,
    metadata,
)


@dataclass
class World:
    """A project of the host's, and the agent's view of it."""

    here: Path
    mounted: Mounted

    @property
    def project(self) -> Path:
        return self.here / "host/project"

    @property
    def view(self) -> Path:
        return self.mounted.path / "project"

    def agent(
        self, *arguments: str, place: str = ".", uid: int = AGENT, fails: bool = False
    ) -> str:
        """Run git in the view, as an agent does; return what it prints."""
        done = subprocess.run(
            ["git", *arguments], cwd=self.view / place, env=self.environment(),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT, check=False,
            user=uid, group=uid, extra_groups=[],
        )  # fmt: skip
        said = done.stdout + done.stderr
        assert (done.returncode != 0) == fails, f"git {arguments}: {done.returncode}\n{said}"
        return said

    def environment(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self.here / "home"), "LC_ALL": "C.UTF-8"}

    def commit(self, text: str, message: str, place: str = ".") -> None:
        """Change a file and commit it, as the agent."""
        name = "file" if place == "nested" else "README.md"
        as_user((self.view / place / name).write_text, text)
        self.agent("commit", "--quiet", "-am", message, place=place)

    def host_commits(self, text: str, message: str) -> None:
        with as_host():
            (self.project / "src/main.py").write_text(text)
        git(self.project, "commit", "--quiet", "-am", message)


@pytest.fixture
def world() -> Iterator[World]:
    """The share is a mount, and sealed, as users have it; the host's side is beside it."""
    with made() as ready:
        yield ready


@contextmanager
def made(*more: str) -> Iterator[World]:
    """Show a project with the agent's own git, and with more options."""
    with area() as here:
        (here / "host").mkdir(mode=0o755)
        os.chown(here / "host", HOST_UID, HOST_GID)
        make_project(here / "host/project")
        (here / "home").mkdir()
        os.chown(here / "home", AGENT, AGENT)
        (here / "home/.gitconfig").write_text("[user]\nname = Agent\nemail = agent@example.org\n")
        options = ["--map", MAP, "--git", "private", "--private-store", str(here / "store"), *more]
        options += ["--protect", "*.lock"]  # as those of package managers
        with (
            bound(here / "host", here / "source") as source,
            gitguardfs(source, here / "view", "--seal", *options) as mounted,
        ):
            yield World(here, mounted)


def test_the_first_status_is_clean_and_the_history_is_there(world: World) -> None:
    before = metadata(world.project)
    assert world.agent("status", "--porcelain", "--ignore-submodules") == ""
    assert "first" in world.agent("log", "--oneline")
    assert "Host" in world.agent("blame", "README.md")
    assert world.agent("branch", "--show-current") == "main\n"
    assert "host/main" in world.agent("status", "-sb")
    assert SECRET not in world.agent("config", "--list", "--show-origin")
    assert not differences(before, metadata(world.project))


@pytest.mark.parametrize("place", ["nested", "linked", "split", "../beside", "module"])
def test_each_kind_of_repository_has_one(world: World, place: str) -> None:
    if place == "../beside":  # by its gitfile the way leads through the share's root
        git(world.project, "worktree", "add", "--quiet", "--detach", place)
        (world.project / place / ".git").write_text("gitdir: ../project/.git/worktrees/beside\n")
    elif place == "module":
        with as_host():
            (world.project / ".git/modules").mkdir()
        git(world.project, "clone", "--quiet", "--separate-git-dir=.git/modules/module", ".", place)
        (world.project / place / ".git").write_text("gitdir: ../.git/modules/module\n")
    before = metadata(world.project)
    world.agent("status", place=place)
    if place != "split":
        assert "first" in world.agent("log", "--oneline", place=place)
    world.agent("status")  # which enters submodules
    world.commit("# Changed\n", "in the project")
    assert not differences(before, metadata(world.project))


def test_what_the_agent_commits_reaches_the_host_as_a_bundle(world: World) -> None:
    before = metadata(world.project)
    world.commit("# Changed\n", "the agent's")
    bundle = world.project / ".gitguard/agent.bundle"
    until(bundle.exists, "the bundle is there")
    assert "refs/heads/main" in git(world.project, "bundle", "list-heads", str(bundle))
    assert world.agent("status", "--porcelain", "--ignore-submodules") == ""
    assert not differences(before, metadata(world.project))
    assert git(world.project, "status", "--porcelain", "--", ".gitguard") == ""
    commit = world.agent("rev-parse", "HEAD").strip()
    git(world.project, "fetch", "--quiet", str(bundle), "main:refs/remotes/agent/main")
    assert git(world.project, "rev-parse", "agent/main").strip() == commit


def test_sync_in_another_work_tree_learns_what_the_human_has_committed(world: World) -> None:
    other = world.here / "home/topic"
    world.agent("worktree", "add", "--quiet", "-b", "topic", str(other))
    world.agent("-C", str(other), "branch", "--set-upstream-to=host/main")
    world.host_commits("print('more')\n", "the human's")

    def is_told() -> bool:  # nothing but this opens the view's .git
        world.agent("-C", str(other), "sync", fails=True, place="../../home")
        return "behind 1" in world.agent("-C", str(other), "status", "-sb", place="../../home")

    until(is_told, "the agent is told")


def test_root_resets_by_the_views_path_and_is_not_misled(world: World) -> None:
    world.agent("status")
    text = as_user((world.view / ".git").read_text)
    agents = Path(text.removeprefix("gitdir: ").strip())
    (world.here / "planted").mkdir()
    (world.here / "planted/.git").write_text(text)
    os.chown(world.here / "planted/.git", AGENT, AGENT)
    for path in (world.here / "planted", "."):
        assert _private(world, "reset", path).returncode != 0, path
        assert agents.exists()
    done = _private(world, "reset", world.view)
    assert done.returncode == 0, done.stderr
    assert not agents.exists()


def _private(world: World, what: str, path: Path | str) -> subprocess.CompletedProcess[str]:
    code = "from gitguardfs.commands.gitguard import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, "private", what, path, "-y", "--store", world.here / "store"],
        cwd=world.here, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True,
        text=True, timeout=LIMIT, check=False,
    )  # fmt: skip


def test_nothing_of_the_hosts_own_can_be_reached(world: World) -> None:
    git(world.project, "stash", "list")
    for path in (".git/config", ".git/HEAD", ".git/../.git/config"):
        with pytest.raises(NotADirectoryError):
            as_user((world.view / path).read_bytes)
    assert as_user((world.view / ".git").read_text).startswith("gitdir: ")
    with pytest.raises(PermissionError):
        as_user((world.view / ".git").write_text, "gitdir: elsewhere\n")
