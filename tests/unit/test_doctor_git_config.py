"""What of git's configuration on the host leads to what the agent can write; nothing is run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gitguardfs.guest import checks_git_config, checks_host, git_config
from gitguardfs.guest.checks import Result, Severity, Status
from gitguardfs.guest.checks_git_config import Judge, Searched
from gitguardfs.guest.git_config import Entry, Git, NotRead
from gitguardfs.guest.probes import User

ME = User(os.getuid(), os.getgid(), tuple(os.getgroups()), "me")
PATH = "/usr/local/bin:/usr/bin:/bin"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of the user who works with git on the host."""
    (tmp_path / "home").mkdir()
    monkeypatch.setattr(checks_git_config, "home_of", lambda _: str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def project(home: Path) -> Path:
    """A repository in the shared directory ``home/shared``."""
    git(home, "init", "--quiet", str(home / "shared/project"))
    return home / "shared/project"


def git(home: Path, *arguments: str) -> str:
    environment = {"PATH": PATH, "HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", *arguments]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, env=environment
    ).stdout


def examine(home: Path) -> Result:
    return checks_git_config.check(ME, str(home / "shared"), PATH)


def plant(project: Path) -> Path:
    """A configuration of the agent's in the work tree, and what tells that it was obeyed."""
    ran = project.parent.parent / "ran"
    (project / "evil.sh").write_text(f"#!/bin/sh\ntouch {ran}\n")
    (project / "evil.sh").chmod(0o755)
    (project / "evil").write_text(f"[core]\n\tfsmonitor = {project}/evil.sh\n")
    return ran


@pytest.mark.parametrize("where", ["repository", "user"])
def test_an_included_file_of_the_agents_is_found_and_not_obeyed(
    home: Path, project: Path, where: str
) -> None:
    ran = plant(project)
    assert examine(home).status is Status.OK
    at = ("-C", str(project)) if where == "repository" else ("-C", str(home))
    scope = () if where == "repository" else ("--global",)
    git(home, *at, "config", *scope, "include.path", str(project / "evil"))
    said = examine(home)
    assert said.status is Status.FINDING and said.severity is Severity.HIGH
    for what in (f"git reads {project}/evil", "include.path = ", "core.fsmonitor = "):
        assert what in said.detail
    assert not ran.exists(), "the doctor ran the agent's program"
    git(home, "-C", str(project), "status")
    assert ran.exists(), "the attack itself does not work"


@pytest.mark.parametrize(
    "condition", ["onbranch:other", "gitdir:/elsewhere/", "hasconfig:remote.*.url:x"]
)
def test_includes_whose_condition_is_not_met_now_are_followed(
    home: Path, project: Path, condition: str
) -> None:
    (home / "later").write_text("[include]\n\tpath = further\n")
    (home / "further").write_text("[core]\n\tsshCommand = ./tunnel\n")
    git(home, "-C", str(project), "config", f"includeIf.{condition}.path", "~/later")
    said = examine(home)
    assert said.status is Status.FINDING
    assert said.detail == f"core.sshcommand = ./tunnel (in {home}/further)"
    (home / "further").write_text("[core]\n\tsshCommand = ssh -v\n")
    assert examine(home).status is Status.OK
    git(home, "-C", str(project), "config", f"includeIf.{condition}.path", "../not-there-yet")
    assert "includeif." in examine(home).detail


def test_a_configuration_of_the_users_that_lies_in_the_share_is_found(
    home: Path, project: Path
) -> None:
    (home / "shared/dotfiles").write_text("[user]\n\tname = me\n")
    (home / ".gitconfig").symlink_to("shared/dotfiles")
    assert examine(home).detail == f"git reads {home}/.gitconfig"


def test_hooks_in_the_work_tree_are_found_in_every_kind_of_repository(
    home: Path, project: Path
) -> None:
    share = home / "shared"
    git(home, "-C", str(project), "-c", "user.name=a", "-c", "user.email=b", "commit", "-qm", "x",
        "--allow-empty")  # fmt: skip
    git(home, "-C", str(project), "worktree", "add", "-q", str(share / "tree"))
    git(home, "init", "-q", "--separate-git-dir", str(home / "apart"), str(share / "pointer"))
    git(home, "init", "-q", "--bare", str(share / "bare"))
    git(home, "init", "-q", str(share / ".hidden/deep"))
    assert examine(home).status is Status.OK, examine(home)
    for place in ("pointer", ".hidden/deep", "project"):
        git(home, "-C", str(share / place), "config", "core.hooksPath", "hooks")
        said = examine(home)
        assert said.status is Status.FINDING, place
        git(home, "-C", str(share / place), "config", "--unset", "core.hooksPath")
    git(home, "--git-dir", str(share / "bare"), "config", "core.hooksPath", str(project / "hooks"))
    assert examine(home).detail.endswith(f"hooks (in {share}/bare/config)")
    git(home, "--git-dir", str(share / "bare"), "config", "core.hooksPath", "hooks")
    assert examine(home).status is Status.OK


def test_the_repository_around_the_shared_directory_is_read(home: Path) -> None:
    git(home, "init", "-q", str(home))
    (home / "shared").mkdir()
    git(home, "-C", str(home), "config", "core.hooksPath", "shared/hooks")
    assert "core.hookspath = shared/hooks" in examine(home).detail


def test_a_repository_that_was_not_read_is_a_finding(home: Path, project: Path) -> None:
    (project / ".git/config").unlink()
    said = examine(home)
    assert said.status is Status.FINDING
    assert "project/.git: " in said.detail and "is not among the files" in said.detail
    (project / ".git/config").write_text("[core\n")
    assert "project/.git: " in examine(home).detail


def test_what_is_no_repository_is_none_and_leads_nowhere(home: Path) -> None:
    (home / "shared/empty/.git").mkdir(parents=True)
    (home / "shared/stale").mkdir()
    (home / "shared/stale/.git").write_text("gitdir: /nowhere\n")
    assert examine(home).status is Status.OK


def test_a_search_that_does_not_get_through_says_so(home: Path) -> None:
    for number in range(9):
        (home / f"shared/{number}").mkdir(parents=True)
    ours = Git("git", str(home))
    assert checks_git_config.search(ours, str(home / "shared"))["complete"]
    assert not checks_git_config.search(ours, str(home / "shared"), entries=8)["complete"]
    assert not checks_git_config.search(ours, str(home / "shared"), seconds=-1.0)["complete"]


@pytest.mark.parametrize("script", ["kill -9 $$", "exec sleep 20", "echo x; exit 0", "exit 3"])
def test_git_that_gives_no_answer_is_a_finding(
    home: Path, project: Path, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "git").write_text(f"#!/bin/sh\n{script}\n")
    (home / "git").chmod(0o755)
    monkeypatch.setattr(git_config, "SECONDS", 0.5)
    for directory in (str(home / "shared"), None):
        said = checks_git_config.check(ME, directory, f"{home}:{PATH}")
        assert said.status is Status.FINDING and "could not be checked" in said.detail


# ----------------------------------------------------------------------------------- verdicts

SHARED = "/home/me/shared"
JUDGE = Judge(Git("git", "/home/me"), SHARED)


def leads(key: str, value: str | None, origin: str = f"{SHARED}/p/.git/config") -> bool:
    entry = Entry("local", origin, key, value)
    return list(JUDGE.problems([entry], f"{SHARED}/p")) != []


@pytest.mark.parametrize(
    "key",
    ["core.fsmonitor", "core.sshcommand", "core.editor", "core.pager", "sequence.editor",
     "pager.log", "diff.external", "diff.X y.textconv", "diff.a.command", "difftool.a.cmd",
     "mergetool.a.cmd", "merge.a.b.driver", "filter.lfs.clean", "filter.a.smudge",
     "filter.a.process", "credential.helper", "credential.https://a.b/c.helper", "gpg.program",
     "gpg.ssh.program", "gpg.ssh.defaultkeycommand", "core.askpass", "interactive.difffilter",
     "uploadpack.packobjectshook", "trailer.a.command", "hook.a.command"],
)  # fmt: skip
def test_every_key_that_names_a_program_is_judged(key: str) -> None:
    for value in ("./x", "tools/x -a", f"{SHARED}/p/x", "~/shared/p/x", "A=1 ../x", "sh x",
                  "git log | ./x", "sh -c 'tools/x'", "bash /home/me/shared/p/x", "python3 x.py",
                  '"$(git rev-parse --show-toplevel)/x"', "!f() { ./x; }; f"):  # fmt: skip
        assert leads(key, value), value
    for value in (None, "", "true", "x", "less -R", "/usr/bin/x --y", "git-lfs clean -- %f",
                  "~/bin/x", "vim -c 'set a'", "!git credential-cache", "env A=b less",
                  f"{SHARED}/p/.git/x", "python3 /usr/bin/x", "ssh -i ~/.ssh/id"):  # fmt: skip
        assert not leads(key, value), value


@pytest.mark.parametrize(
    ("value", "expected"),
    [("!./x", True), ("!tools/x", True), ("log -c core.fsmonitor=./x", True),
     ("-c core.sshCommand='./x' fetch", True), ("!git push origin $1", False),
     ("log origin/main..HEAD", False), ("-c color.ui=always log", False), ("!ls a", False)],
)  # fmt: skip
def test_an_alias_is_a_command_only_after_its_mark(value: str, expected: bool) -> None:
    assert leads("alias.x", value) is expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(".husky", True), ("./hooks", True), (f"{SHARED}/hooks", True), ("~/shared/p/hooks", True),
     (".git/hooks", False), ("../../hooks", False), ("/usr/share/hooks", False),
     ("~/hooks", False), (".GIT/hooks", False), ("", False)],
)  # fmt: skip
def test_hooks_count_when_the_agent_could_write_them(value: str, expected: bool) -> None:
    assert leads("core.hookspath", value) is expected


def test_other_keys_lead_nowhere_and_other_ways_do() -> None:
    for key, value in (("user.name", "./x"), ("remote.origin.url", "../other"),
                       ("branch.a/b.merge", "refs/heads/a"), ("submodule.a.update", "merge"),
                       ("include.path", "~/x"), ("include.path", "other")):  # fmt: skip
        assert not leads(key, value), key
    for key, value in (("remote.a.url", "ext::./x %S"), ("submodule.a.update", "!./x"),
                       ("include.path", "../x"), ("includeif.gitdir:/a.path", "~/shared/x"),
                       ("init.templatedir", "~/shared/t")):  # fmt: skip
        assert leads(key, value), key


def test_without_a_directory_what_is_relative_counts() -> None:
    judge = Judge(Git("git", "/home/me"), None)
    for key, value, expected in (("core.hookspath", ".husky", True), ("core.editor", "./x", True),
                                 ("core.hookspath", "~/hooks", False),
                                 ("core.editor", "vim", False)):  # fmt: skip
        said = list(judge.problems([Entry("global", "/home/me/.gitconfig", key, value)], None))
        assert (said != []) is expected


def test_what_was_not_looked_at_is_a_finding() -> None:
    def said(**searched: Any) -> Result:
        return checks_git_config.judge(Searched(**searched))

    assert said().status is Status.OK
    partly = said(names=70, complete=False)
    assert partly.status is Status.FINDING and "first 70 names" in partly.detail
    unread = said(unread=[f"/p/{n}" for n in range(9)])
    assert unread.status is Status.FINDING and "/p/4 and 4 more" in unread.detail
    assert said(problems=["x"], complete=False).detail == "x"


def test_a_listing_is_read_with_names_that_hold_anything() -> None:
    listing = b"local\0file:.git/config\0a.b\nline\nline\0global\0file:/h/\xff\nx\0c.d\0"
    first, second = git_config.parse(listing, "/p")
    assert first == Entry("local", "/p/.git/config", "a.b", "line\nline")
    assert second == Entry("global", "/h/\udcff\nx", "c.d", None)
    for broken in (b"local\0file:x\0a", b"local\0file:x\0", b"x"):
        with pytest.raises(NotRead):
            git_config.parse(broken, "/p")


def test_bare_repositories_that_are_trusted_are_a_finding_of_low_severity(
    home: Path, project: Path
) -> None:
    def said() -> Result:
        return checks_host._bare(checks_host.HostCase(ME, str(home / "shared"), PATH))

    assert said().severity is Severity.LOW
    git(home, "-C", str(project), "config", "safe.bareRepository", "explicit")
    assert said().severity is Severity.LOW, "git heeds it in no repository"
    git(home, "config", "--global", "safe.bareRepository", "explicit")
    assert said().status is Status.OK
