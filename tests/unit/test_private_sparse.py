"""What the human commits later below a directory of the guest's own is no change of the agent's."""

from __future__ import annotations

import os

import pytest

from gitguardfs.guard.local_names import LocalNames
from gitguardfs.private.repositories import PrivateRepositories
from tests.support.private_world import world

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a store for others is root's")
HIDDEN = "node_modules/a/index.js"


@pytest.mark.parametrize("how", ["sync", "merge", "rebase", "switch"])
def test_files_that_come_later_are_not_taken_for_deleted(how: str) -> None:
    with world() as project:
        local = LocalNames(("node_modules",))
        project.prepare(PrivateRepositories(str(project.store), "projects", project.root, local))
        project.show()
        if how in ("merge", "rebase"):
            (project.view / "b").write_text("mine\n")
            project.agent("commit", "--quiet", "--all", "--message", "mine")
        project.host("switch", "--quiet", *(["topic"] if how == "switch" else ["main"]))
        project.commit("vendored", {HIDDEN: "1\n", "dir/c": "human's\n"})
        (project.view / "dir/c").write_text("human's\n" if how == "sync" else "1\n")
        project.prepare(PrivateRepositories(str(project.store), "projects", project.root, local))
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
