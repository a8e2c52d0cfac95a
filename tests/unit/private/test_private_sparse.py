"""What the human commits later below a directory of the guest's own is no change of the agent's."""

import os

import pytest

from tests.support.private_world import world

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a store for others is root's")
HIDDEN = "node_modules/a/index.js"


@pytest.mark.parametrize("how", ["sync", "merge", "rebase", "switch"])
def test_files_that_come_later_are_not_taken_for_deleted(how: str) -> None:
    with world() as project:
        project.prepare(project.daemon("node_modules"))
        project.show()
        if how in ("merge", "rebase"):
            (project.view / "b").write_text("mine\n")
            project.agent("commit", "--quiet", "--all", "--message", "mine")
        project.host("switch", "--quiet", *(["topic"] if how == "switch" else ["main"]))
        project.commit("vendored", {HIDDEN: "1\n", "dir/c": "human's\n"})
        (project.view / "dir/c").write_text("human's\n" if how == "sync" else "1\n")
        project.prepare(project.daemon("node_modules"))
        if how == "sync":
            project.agent("sync")
        else:
            project.agent("fetch", "--quiet", "host")
            target = "topic" if how == "switch" else "host/main"
            project.agent(how, "--quiet", target)
        if how == "switch":
            project.agent("merge", "--quiet", "host/topic")
        assert project.agent("status", "--porcelain") == ""
        assert not (project.view / "node_modules").exists()
        (project.view / "b").write_text("again\n")
        project.agent("commit", "--quiet", "--all", "--message", "more")
        assert project.agent("diff", "--name-only", "HEAD~").split() == ["b"]
        assert HIDDEN in project.agent("ls-tree", "-r", "--name-only", "HEAD").split()


@pytest.mark.parametrize("whose", ["host", "agent"])
def test_a_sparse_checkout_that_was_switched_off_takes_no_files(whose: str) -> None:
    """Its patterns stay in the repository, and its settings in config.worktree."""
    with world() as project:
        if whose == "host":
            project.host("sparse-checkout", "set", "other")
            project.host("sparse-checkout", "disable")
        project.prepare(project.daemon("node_modules"))
        project.show()
        if whose == "agent":
            project.agent("sparse-checkout", "set", "other")
            project.agent("sparse-checkout", "disable")
        project.commit("vendored", {HIDDEN: "1\n", "dir/c": "human's\n"})
        (project.view / "dir/c").write_text("human's\n")
        project.prepare(project.daemon("node_modules"))
        project.agent("sync")
        project.agent("switch", "--quiet", "--create", "mine", "HEAD~")
        project.agent("switch", "--quiet", "main")
        assert project.agent("ls-files", "-t", "dir", "node_modules").split("\n") == [
            "H dir/c", f"S {HIDDEN}",
        ]  # fmt: skip
        assert project.agent("status", "--porcelain") == ""
