"""No program that a configuration names is run by what runs git on what an agent can write.

The trap is a repository, with the user's configuration, in which git has a program of every kind
to run. Each is a file of the work tree, which leaves a mark.
"""

import os
import pty
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import fetch_world
from tests.support.fetch_world import COMMAND, World
from tests.support.private_world import world as private_world

GITGUARD = COMMAND[:-1]
HOOKS = (
    "reference-transaction", "post-index-change", "pre-merge-commit", "commit-msg", "post-commit",
    "prepare-commit-msg", "pre-commit", "post-merge", "post-checkout", "post-rewrite", "update",
    "pre-auto-gc", "pre-receive", "post-receive", "proc-receive", "push-to-checkout",
)  # fmt: skip
SETTINGS = {
    "clean": "filter.clean.clean", "smudge": "filter.smudge.smudge",
    "process": "filter.process.process", "textconv": "diff.textconv.textconv",
    "command": "diff.command.command", "external": "diff.external",
    "driver": "merge.driver.driver", "fsmonitor": "core.fsmonitor", "pager": "core.pager",
    "editor": "core.editor", "sequence": "sequence.editor", "credential": "credential.helper",
    "askpass": "core.askPass", "gpg": "gpg.program", "gpg-ssh": "gpg.ssh.program",
    "ssh-key": "gpg.ssh.defaultKeyCommand", "ssh": "core.sshCommand", "proxy": "core.gitProxy",
    "upload-pack": "remote.origin.uploadpack", "pack-objects": "uploadpack.packObjectsHook",
    "alternates": "core.alternateRefsCommand", "trailer": "trailer.x.cmd",
    "configured-hook": "hook.trap.command",
}  # fmt: skip
"""By its name in tools/, the setting that makes git run a program."""
ALIASED = ("mine", "fetch", "update-ref", "config", "reset", "merge-tree", "commit-tree", "diff")
OTHERS = {
    "commit.gpgSign": "true", "log.showSignature": "true", "merge.renormalize": "true",
    "protocol.allow": "always", "remote.helper.url": "ext::{tools}/helper", "trailer.x.key": "X",
    "remote.origin.url": "{home}/agent/.git", "hook.trap.event": "reference-transaction",
    **{f"alias.{name}": "!{tools}/alias" for name in ALIASED},
}  # fmt: skip
ATTRIBUTES = """\
*.txt filter=clean
*.smudge filter=smudge
*.process filter=process
*.textconv diff=textconv merge=driver
*.command diff=command
"""
FILES = ("b.smudge", "c.process", "d.textconv", "e.command", "f.plain")
FIRST = dict.fromkeys(FILES, "first\n")
SIGNS = ("commit-tree", "-S", "-m", "x", "HEAD^{tree}")
PLAIN = {
    "clean": ["status"],
    "smudge": ["cat-file", "--filters", "HEAD:b.smudge"],
    "process": ["hash-object", "c.process"],
    "textconv": ["log", "--textconv", "-p", "--no-ext-diff"],
    "command": ["diff", "HEAD~"],
    "external": ["diff", "HEAD~"],
    "driver": ["merge-tree", "--write-tree", "HEAD", "other"],
    "fsmonitor": ["status"],
    "pager": ["log"],
    "editor": ["config", "--edit"],
    "sequence": ["rebase", "-i", "--autostash", "HEAD~"],
    "credential": ["credential", "fill"],
    "askpass": ["credential", "fill"],
    "gpg": [*SIGNS],
    "gpg-ssh": ["-c", "gpg.format=ssh", "-c", "user.signingKey=key::ssh-ed25519 AAAA", *SIGNS],
    "ssh-key": ["-c", "gpg.format=ssh", *SIGNS],
    "ssh": ["ls-remote", "ssh://localhost/x"],
    "proxy": ["ls-remote", "git://localhost/x"],
    "upload-pack": ["ls-remote", "origin"],
    "pack-objects": ["clone", "-q", "--no-local", ".", "{home}/clone"],
    "alternates": ["rev-list", "--alternate-refs"],
    "trailer": ["interpret-trailers", "--trailer", "X=y"],
    "helper": ["ls-remote", "helper"],
    "alias": ["mine"],
    "trace": ["version"],
    "reference-transaction": ["update-ref", "refs/x/y", "HEAD"],
    "post-index-change": ["read-tree", "HEAD"],
    "configured-hook": ["update-ref", "refs/x/y", "HEAD"],
}
"""By the mark, the command of git alone that leaves it."""
ENVIRONMENT = {
    "GIT_EXTERNAL_DIFF": ["diff", "HEAD~"], "GIT_PAGER": ["log"],
    "GIT_EDITOR": ["config", "--edit"], "GIT_SSH_COMMAND": ["ls-remote", "ssh://localhost/x"],
    "GIT_PROXY_COMMAND": ["ls-remote", "git://localhost/x"], "GIT_ASKPASS": ["credential", "fill"],
}  # fmt: skip
"""By the variable that names a program, the command of git alone that runs it."""


class Trap:
    """Programs in a work tree, and a configuration of the repository and the user that runs them.

    The repository's comes by an include, from a file of the work tree.
    """

    def __init__(self, home: Path, tree: Path) -> None:
        """Set the trap in the repository of ``tree``."""
        self.home, self.tree, self.tools = home, tree, tree / "tools"
        self.marks = home / "marks"
        self.marks.mkdir()
        self.marks.chmod(0o1777)
        self.tools.mkdir(exist_ok=True)
        for name in (*SETTINGS, "alias", "helper", *ENVIRONMENT):
            self._program(self.tools / name, name)
        hooks = tree / ".git/hooks"
        hooks.mkdir(exist_ok=True)
        for name in HOOKS:
            self._program(hooks / name, name)
        settings = {key: str(self.tools / name) for name, key in SETTINGS.items()}
        settings["merge.driver.driver"] += " %A"
        places = {"tools": self.tools, "home": home}
        settings |= {key: value.format(**places) for key, value in OTHERS.items()}
        self.users = home / "users"
        self.users.write_text("[user]\n\tname = Human\n\temail = human@example.org\n")
        for key, value in settings.items():
            for file in (self.users, self.tools / "config"):
                subprocess.run(["git", "config", "--file", file, key, value], check=True)
        with self.users.open("a") as users:
            users.write(f"[trace2]\n\tnormalTarget = {self.marks}/trace\n")
        with (tree / ".git/config").open("a") as config:
            config.write("[include]\n\tpath = ../tools/config\n")
        lent = home / "lent.git"
        subprocess.run(["git", "init", "-q", "--bare", lent], check=True)
        (tree / ".git/objects/info/alternates").write_text(f"{lent}/objects\n")
        # git reads a file anew that is not older than the index.
        os.utime(tree / ".git/index", (1, 1))

    def _program(self, path: Path, name: str) -> None:
        end = "cat" if name in ("clean", "smudge", "process", "pager") else ""
        path.write_text(f"#!/bin/sh\n: >{self.marks}/{name}\n{end}\n")
        path.chmod(0o755)

    def left(self) -> set[str]:
        return set(os.listdir(self.marks))

    @property
    def environment(self) -> dict[str, str]:
        names = {name: str(self.tools / name) for name in ENVIRONMENT}
        return {**names, "GIT_CONFIG_GLOBAL": str(self.users), "HOME": str(self.home)}

    def spring(self, words: list[str], *variables: str) -> set[str]:
        """Run git alone; return the marks that it leaves."""
        for mark in self.left():
            (self.marks / mark).unlink()
        own = {key: value for key, value in self.environment.items() if key not in ENVIRONMENT}
        named = {name: str(self.tools / name) for name in variables}
        ours, theirs = pty.openpty()  # git starts a pager for a terminal only
        given = b"protocol=https\nhost=example.org\n\n"
        subprocess.run(
            ["git", *(word.format(home=self.home) if "{home}" in word else word for word in words)],
            cwd=self.tree, input=given, stdout=theirs, stderr=subprocess.DEVNULL, timeout=60,
            env={"PATH": os.environ["PATH"], "GIT_TERMINAL_PROMPT": "0", **own, **named},
        )  # fmt: skip
        os.close(ours)
        os.close(theirs)
        return self.left()


@pytest.fixture
def world() -> Iterator[World]:
    with fetch_world.world() as made:
        made.commit(FIRST, made.host, "third")
        made.git(made.agent, "pull", "-q", "--ff-only", "host", "main")
        yield made


def agents(world: World, files: dict[str, str]) -> None:
    """Publish a commit of the agent's, with attributes by which git asks each kind of program."""
    world.commit({".gitattributes": ATTRIBUTES, **files})
    world.publish()


CHANGED = dict.fromkeys(("a.txt", *FILES), "changed\n")


def test_the_trap_is_real(world: World) -> None:
    world.git(world.host, "branch", "other")
    world.commit(CHANGED | {".gitattributes": ATTRIBUTES}, world.host)
    world.git(world.host, "checkout", "-q", "other")
    world.commit(dict.fromkeys(CHANGED, "other\n"), world.host)
    world.git(world.host, "checkout", "-q", "main")
    trap = Trap(world.home, world.host)
    version = re.search(r"(\d+)\.(\d+)", world.git(world.host, "version"))
    assert version is not None
    has_hooks = (int(version[1]), int(version[2])) >= (2, 54)
    for mark, words in PLAIN.items():
        assert mark in trap.spring(words) or (mark == "configured-hook" and not has_hooks), mark
    for name, words in ENVIRONMENT.items():
        assert name in trap.spring(words, name), name


@pytest.mark.parametrize("case", ["fast-forward", "merged", "conflict", "up to date"])
def test_fetch_and_merge(world: World, case: str) -> None:
    agents(world, {"a.txt": "x\n", "d.textconv": "agent's\n"} if case != "up to date" else {})
    if case == "up to date":
        world.git(world.host, "pull", "-q", "--ff-only", ".gitguard/agent.bundle", "main")
    if case in ("merged", "conflict"):
        world.commit({"f.plain" if case == "merged" else "d.textconv": "human's\n"}, world.host)
        (world.agent / "f.plain").write_text("human's\n" if case == "merged" else "first\n")
    world.share_files()
    world.git(world.host, "update-index", "-q", "--refresh", check=False)
    trap = Trap(world.home, world.host)
    for words in ([], [".", "main"], ["--json"], ["--merge", "main", "--json"], ["--drop"]):
        done = world.fetch(*words, **trap.environment)
        assert done.returncode == (case == "conflict" and "--merge" in words), done.stderr
        assert trap.left() == set(), words
        if "--merge" in words:
            assert f'"outcome": "{case}"' in done.stdout
    assert {"clean", "process", "fsmonitor"} <= trap.spring(["status"])
    assert world.git(world.host, "diff", "--cached", "--name-only") == ""


def test_fetch_in_a_work_tree_of_its_own(world: World) -> None:
    world.git(world.host, "worktree", "add", "-q", "../topic")
    agents(world, {"a.txt": "x\n"})
    trap = Trap(world.home, world.host)
    topic = world.home / "topic"
    shutil.copytree(world.host / ".gitguard", topic / ".gitguard")
    shutil.copy(world.agent / ".gitattributes", topic)
    os.utime(world.host / ".git/worktrees/topic/index", (1, 1))
    done = world.fetch("--merge", "main", at=topic, **trap.environment)
    assert done.returncode == 0, done.stderr
    assert trap.left() == set()


def test_audit(world: World) -> None:
    trap = Trap(world.home, world.host)
    for words in (["audit", "."], ["audit", "--json", "."]):
        done = subprocess.run(
            [*GITGUARD, *words], cwd=world.host, capture_output=True, text=True,
            env={**world.environment(), **trap.environment}, timeout=100,
        )  # fmt: skip
        assert done.returncode == 1 and "git.config" in done.stdout, done.stderr
        assert trap.left() == set()


@pytest.mark.skipif(os.geteuid() != 0, reason="a store for others is root's")
def test_the_agents_repository_and_what_it_publishes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent's own git runs no program of the human's either: its configuration has none."""
    with private_world() as project:
        project.commit("more", {".gitattributes": ATTRIBUTES, "a.txt": "1\n", **FIRST})
        trap = Trap(project.area, project.project)
        (project.project / ".git/objects/info/alternates").unlink()  # it leads out of the share
        for name, value in trap.environment.items():
            monkeypatch.setenv(name, value)
        project.prepare()
        project.show()
        (project.view / "a.txt").write_text("2\n")
        project.agent("commit", "-qam", "mine")
        project.agent("switch", "-q", "-c", "mine", "HEAD~")
        own = {"core.hooksPath": "/dev/null", "alias.update-ref": ""}
        quiet = [word for key, value in own.items() for word in ("-c", f"{key}={value}")]
        project.host(*quiet, "update-ref", "refs/heads/new", "HEAD~")
        project.prepare()
        project.agent("sync", check=False)
        assert "host/new" in project.agent("branch", "-r")
        assert (project.view / ".gitguard/agent.bundle").exists()
        assert trap.left() == set()
