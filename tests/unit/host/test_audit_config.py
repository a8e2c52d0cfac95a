"""Configuration by which git runs files of the agent: shown with git itself, found, and fixed."""

import shutil
import sys

import pytest

from gitguardfs.base.findings import Severity
from gitguardfs.base.walk import Unread
from gitguardfs.host.audit import git_config
from gitguardfs.host.audit.config_check import hidden
from gitguardfs.host.audit.git_config import ConfigEntry, Git, parse
from gitguardfs.host.audit.programs import Judge
from gitguardfs.host.audit.share import Share
from gitguardfs.names.rules import GuardRules, RuleSet
from tests.support import audit_world
from tests.support.audit_world import World, check_fixes, ways

world = audit_world.fixture


DANGERS = {
    "core.fsmonitor": ("./evil", ["status"]),
    "core.hooksPath": ("hooks", ["commit", "--allow-empty", "-qm", "x"]),
    "core.editor": ("./evil", ["commit", "--allow-empty"]),
    "core.sshCommand": ("./evil", ["ls-remote", "ssh://host/x"]),
    "sequence.editor": ("./evil", ["rebase", "-i", "--root"]),
    "filter.x.clean": ("./evil", ["add", "a.txt"]),
    "filter.x.process": ("./evil", ["add", "a.txt"]),
    "filter.x.smudge": (f"'{sys.executable}' -m evil", ["checkout", "other"]),
    "diff.external": ("./evil", ["diff"]),
    "diff.x.textconv": ("./evil", ["diff"]),
    "diff.x.command": ("./evil", ["diff"]),
    "merge.x.driver": ("./evil %A", ["merge", "-q", "other"]),
    "alias.x": ("!./evil", ["x"]),
    "alias.y": ("grep -O./evil one", ["y"]),
    "alias.z": ("difftool -y -x ./evil HEAD^", ["z"]),
    "alias.r": ("rebase --exec ./evil HEAD^", ["r"]),
    "gpg.program": ("./evil", ["commit", "-S", "--allow-empty", "-qm", "x"]),
    "credential.helper": ("!./evil", ["credential", "fill"]),
    "trailer.x.command": ("./evil", ["interpret-trailers", "--trailer", "x=1"]),
    "remote.o.uploadpack": ("./evil", ["ls-remote", "o"]),
}


def prepare(world: World) -> None:
    """Make files for which git uses filters and drivers, and a branch to merge."""
    world.git("config", "remote.o.url", str(world.project))
    (world.project / ".gitattributes").write_text("a.txt filter=x diff=x merge=x\n")
    (world.project / "a.txt").write_text("one\n")
    world.git("add", ".")
    world.git("commit", "-qm", "a")
    world.git("branch", "other")
    for branch, text in (("main", "two\n"), ("other", "three\n")):
        world.git("checkout", "-q", branch)
        (world.project / "a.txt").write_text(text)
        world.git("commit", "-qam", text)
    world.git("checkout", "-q", "main")


@pytest.mark.parametrize("key", DANGERS)
def test_a_program_of_the_agents_is_run_by_git_named_and_mended(world: World, key: str) -> None:
    prepare(world)
    assert not world.findings("git.config")
    value, command = DANGERS[key]
    name = "hooks/post-commit" if key == "core.hooksPath" else "evil"
    world.script(world.project / name, "cat\n" if key.startswith("filter") else "")
    (world.project / "evil.py").write_text(f"open({str(world.ran)!r}, 'w')\n")
    world.git("config", key, value)
    if command[0] in ("add", "diff"):
        (world.project / "a.txt").write_text("four\n")

    def runs() -> bool:
        world.git(*command, check=False, said="protocol=https\nhost=h\n\n")
        return world.has_run()

    assert runs(), "the attack itself does not work"
    world.git("reset", "-q", "--hard" if "merge" in command else "--mixed", check=False)
    world.has_run()
    check_fixes(world, "git.config", "high", f"{key.lower()} = ")
    assert not runs()


def test_a_configuration_of_ssh_in_the_work_tree(world: World) -> None:
    world.git("config", "core.sshCommand", "ssh -F ssh_config")
    (world.project / "ssh_config").write_text(f"ProxyCommand touch '{world.ran}'\n")
    world.git("ls-remote", "ssh://host.invalid/x", check=False)
    assert world.has_run()
    check_fixes(world, "git.config", "medium", "core.sshcommand")


@pytest.mark.parametrize("where", ["repository", "user"])
def test_an_included_file_of_the_agents_is_run_by_git_named_and_mended(
    world: World, where: str
) -> None:
    evil = world.script(world.project / "evil")
    (world.project / "inc").write_text(f"[core]\n\tfsmonitor = {evil}\n")
    scope = ["--global"] if where == "user" else []
    world.git("config", *scope, "include.path", str(world.project / "inc"))
    world.git("status")
    assert world.has_run()
    check_fixes(world, "git.config", "high", "include.path = ")
    world.git("status")
    assert not world.has_run()


@pytest.mark.parametrize(
    "condition", ["onbranch:other", "gitdir:/elsewhere/", "hasconfig:remote.*.url:x"]
)
def test_includes_whose_condition_is_not_met_now_are_followed(world: World, condition: str) -> None:
    (world.home / "later").write_text("[include]\n\tpath = further\n")
    (world.home / "further").write_text("[core]\n\tsshCommand = ./tunnel\n")
    world.git("config", f"includeIf.{condition}.path", "~/later")
    (found,) = world.findings("git.config")
    assert found["detail"] == f"core.sshcommand = ./tunnel (in {world.home}/further)"
    check_fixes(world, "git.config", "high", "core.sshcommand")
    world.git("config", f"includeIf.{condition}.path", "../../not-there-yet")
    check_fixes(world, "git.config", "high", f"includeif.{condition}.path")


def test_an_include_is_relative_to_what_names_its_file(world: World) -> None:
    (world.home / "more").mkdir()
    (world.home / "more/file").write_text("[include]\n\tpath = share/evil\n")
    (world.home / "link").symlink_to("more/file")
    (world.share / "evil").write_text("[core]\n\tpager = ./x\n")
    world.git("config", "include.path", world.home / "link")
    assert world.git("config", "core.pager").strip() == "./x"
    check_fixes(world, "git.config", "high", f"include.path = share/evil (in {world.home}/link)")


def test_an_include_of_the_agents_is_not_read(world: World) -> None:
    (world.project / "inc").write_text("[include]\n\tpath = ~/own\n")
    (world.home / "own").write_text("[core]\n\tpager = ./x\n")
    world.git("config", "include.path", "../inc")
    assert [f["detail"].partition(" =")[0] for f in world.findings("git.config")] == [
        "include.path"
    ]


def test_a_configuration_of_the_users_that_lies_in_the_share_is_found(world: World) -> None:
    (world.home / ".gitconfig").rename(world.share / "dotfiles")
    (world.home / ".gitconfig").symlink_to("share/dotfiles")
    (found,) = world.findings("git.config")
    assert found["detail"] == f"git reads {world.home}/.gitconfig"


def test_the_users_other_configuration_is_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (world.home / ".config/git").mkdir(parents=True)
    (world.home / ".config/git/config").write_text("[core]\n\tpager = ./a\n")
    assert "core.pager = ./a" in world.findings("git.config")[0]["detail"]
    (world.home / "xdg/git").mkdir(parents=True)
    (world.home / "xdg/git/config").write_text("[core]\n\tpager = ./b\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(world.home / "xdg"))
    assert "core.pager = ./b" in world.findings("git.config")[0]["detail"]


@pytest.mark.parametrize("value", [" ", "a b", "x\x1b\ny", "'", "[a]"])
def test_odd_directories_of_hooks_are_named_and_mended(world: World, value: str) -> None:
    world.git("config", "core.hooksPath", value)
    world.script(world.project / value / "post-commit")
    world.git("commit", "--allow-empty", "-qm", "x")
    assert world.has_run()
    check_fixes(world, "git.config", "high", "core.hookspath")


def test_every_kind_of_repository_is_read(world: World) -> None:
    world.git("worktree", "add", "-q", world.share / "tree")
    world.git("init", "-q", "--separate-git-dir", world.home / "apart", world.share / "pointer")
    world.git("init", "-q", "--bare", world.share / "bare")
    world.git("init", "-q", world.share / ".hidden/deep")
    world.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", world.project, "sub")
    assert not world.findings("git.config")
    for place in ("pointer", ".hidden/deep", "project", "project/sub"):
        world.git("config", "core.hooksPath", "hooks", at=world.share / place)
        assert world.findings("git.config"), place
        world.git("config", "--unset", "core.hooksPath", at=world.share / place)
    world.git("config", "extensions.worktreeConfig", "true")
    own = {"tree": "project/.git/worktrees/tree", "project": "project/.git"}
    for place, directory in own.items():
        world.git("config", "--worktree", "core.pager", "./x", at=world.share / place)
        (found,) = world.findings("git.config")
        assert found["detail"].endswith(f"(in {world.share}/{directory}/config.worktree)")
        world.git("config", "--worktree", "--unset", "core.pager", at=world.share / place)
    bare = f"--git-dir={world.share}/bare"
    world.git(bare, "config", "core.hooksPath", world.project / "x")
    assert world.findings("git.config")[0]["detail"].endswith(f"(in {world.share}/bare/config)")


def test_the_repository_around_the_shared_directory_is_read(world: World) -> None:
    world.git("init", "-q", at=world.home)
    world.git("config", "core.hooksPath", "share/hooks", at=world.home)
    assert "core.hookspath = share/hooks" in world.findings("git.config")[0]["detail"]


def test_what_cannot_be_parsed_is_a_finding(world: World) -> None:
    (world.project / ".git/config").write_text("[core\n")
    (found,) = world.findings("audit.read")
    assert f"{world.project}/.git/config: " in found["detail"] and found["severity"] == "medium"
    (world.project / ".git/config").write_bytes(b"#" * (1 << 20) + b"\n")
    assert "longer than" in world.findings("audit.read")[0]["detail"]


@pytest.mark.parametrize("script", ["kill -9 $$", "exec sleep 20", "echo x; exit 0", "exit 3"])
def test_git_that_gives_no_answer_is_a_finding(
    world: World, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (world.home / "git").write_text(f"#!/bin/sh\n{script}\n")
    (world.home / "git").chmod(0o755)
    monkeypatch.setattr(git_config, "SECONDS", 0.5)
    monkeypatch.setattr(shutil, "which", lambda *_, **__: str(world.home / "git"))
    assert [f["detail"].split(": ")[0] for f in world.findings("audit.read")] == [
        f"{world.project}/.git/config", "the user's configuration",
    ]  # fmt: skip


# ------------------------------------------------------------------------------- credentials


@pytest.mark.parametrize(
    ("key", "value", "secret"),
    [
        ("remote.origin.url", "https://me:s3cretword@example.org/x.git", "s3cretword"),
        ("remote.origin.url", "https://me:pass@s3cretword@example.org/x.git", "s3cretword"),
        ("branch.main.remote", "https://me:s3cretword@example.org/x.git", "s3cretword"),
        ("lfs.url", "https://me:s3cretword@example.org/x.git", "s3cretword"),
        ("remote.origin.pushurl", f"https://ghp_{'a' * 36}@example.org/x", "ghp_a"),
        ("remote.pushDefault", f"https://ghp_{'b' * 36}@example.org/x", "ghp_b"),
        ("submodule.x.url", "https://me:s3cretword@example.org/x.git", "s3cretword"),
        ("http.https://a.b/.extraHeader", "Authorization: Basic czNjcmV0", "czNjcmV0"),
    ],
)
def test_credentials_are_found_not_shown_and_taken_out(
    world: World, key: str, value: str, secret: str
) -> None:
    world.git("config", key, value)
    assert secret in (world.project / ".git/config").read_text()
    (found,) = world.findings("git.credentials")
    assert secret not in str(found)
    check_fixes(world, "git.credentials", "medium", key.lower().partition("://")[0][:12])
    assert secret not in (world.project / ".git/config").read_text()


def test_a_password_in_a_rewritten_address_is_found_and_not_shown(world: World) -> None:
    world.git("config", "url.https://me:s3cretword@h/.insteadOf", "https://h/")
    (found,) = world.findings("git.credentials")
    assert "s3cretword" not in str(found)


def test_addresses_without_a_password_are_free() -> None:
    for url in ("https://me@h/x", "ssh://git@h/x", "git@h:x/y", "https://h/x", "/a@b:c/d"):
        assert hidden(url) == url
    assert hidden("https://me:pw@h/x") == "https://***@h/x"


# --------------------------------------------------------------- addresses that are commands


def _fetches(world: World, *options: str) -> bool:
    world.git(*options, "fetch", check=False)
    return world.has_run()


@pytest.mark.parametrize(
    ("key", "value"),
    [("branch.main.remote", "ext::./x"), ("url.ext::./x .insteadOf", "foo:"),
     ("remote.origin.url", "ext::./x")],
)  # fmt: skip
def test_an_address_that_runs_what_the_agent_writes(world: World, key: str, value: str) -> None:
    world.script(world.project / "x")
    world.git("config", "remote.origin.url", "foo:bar")
    world.git("config", "branch.main.remote", "origin")
    world.git("config", "branch.main.merge", "refs/heads/main")
    world.git("config", key, value)
    assert not _fetches(world) and _fetches(world, "-c", "protocol.ext.allow=user")
    said = f"{key.replace('insteadOf', 'insteadof')} = {value}"
    (found,) = world.findings("git.config")
    assert "only if protocol.ext.allow, or protocol.allow, is user or always" in found["detail"]
    check_fixes(world, "git.config", "high", said)
    assert not _fetches(world, "-c", "protocol.ext.allow=user")


def test_an_address_of_a_submodule_that_is_a_command(world: World) -> None:
    evil = world.script(world.share / "evil")
    modules = world.project / ".gitmodules"
    modules.write_text(f'[submodule "s"]\n\tpath = s\n\turl = ext::sh -c {evil}\n')
    head = world.git("rev-parse", "HEAD").strip()
    world.git("update-index", "--add", "--cacheinfo", f"160000,{head},s")
    for allowed, runs in (("", False), ("user", False), ("always", True)):
        option = ("-c", f"protocol.ext.allow={allowed}") if allowed else ()
        world.git(*option, "submodule", "update", "--init", check=False)
        assert world.has_run() == runs, allowed
    check_fixes(world, "git.config", "medium", "submodule.s.url = ext::sh -c")
    found = [row for row in world.findings("tree.submodules") if "ext::" in row["detail"]]
    assert found[0]["detail"].endswith("only if protocol.ext.allow, or protocol.allow, is always")
    check_fixes(world, "tree.submodules", "medium", "submodule.s.url = ext::sh -c")


def test_an_ordinary_address_in_gitmodules_is_low(world: World) -> None:
    modules = world.project / ".gitmodules"
    modules.write_text('[submodule "s"]\n\turl = https://example.org/s\n\tupdate = merge\n'
                       '[remote "ext"]\n\turl = ext::./x\n')  # fmt: skip
    assert [row["severity"] for row in world.findings("tree.submodules")] == ["low"]
    modules.write_text("[core\n")
    assert [row["severity"] for row in world.findings("tree.submodules")] == ["low"]
    modules.write_bytes(b"#" * (1 << 20) + b"\n")
    assert "longer than" in world.findings("audit.read")[0]["detail"]


# ------------------------------------------------------------------- settings of the environment


@pytest.mark.parametrize("name", ["GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"])
def test_a_file_that_the_environment_names_is_read(
    world: World, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, config = world.home / ".gitconfig", world.home / "own"
    config.write_text(f"{own.read_text()}[core]\n\tpager = ./x\n")
    monkeypatch.setenv(name, str(config))
    assert world.findings("git.config")[0]["detail"] == f"core.pager = ./x (in {config})"
    check_fixes(world, "git.config", "high", "core.pager")


@pytest.mark.parametrize("name", ["GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"])
def test_a_file_that_the_environment_names_and_the_agent_could_make(
    world: World, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value, said in (("own", "git takes that from the directory in which it is started"),
                        (f"{world.share}/own", "the agent can make that file")):  # fmt: skip
        monkeypatch.setenv(name, value)
        (found,) = world.findings("git.config")
        assert found["detail"] == f"{name}={value}: {said}" and found["hint"] == f"unset {name}"
    (world.share / "own").write_text("# nothing yet\n")
    (found,) = world.findings("git.config")
    assert found["detail"].endswith("/own: the agent can make that file")
    monkeypatch.setenv(name, f"{world.home}/nothing")
    assert not world.findings("git.config")


def test_a_configuration_that_the_agent_could_make_where_git_looks_for_the_users(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "which the agent can make or write"
    for name in (".gitconfig", ".config/git/config"):
        path = world.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        found = world.findings("git.config", at=world.home)
        assert f"git reads {path}, {said}" in [row["detail"] for row in found]
        path.write_text(f"[core]\n\tfsmonitor = {world.script(world.project / 'evil')}\n")
        world.git("status")
        assert world.has_run()
        path.write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(world.share / "cfg"))
    (last,) = world.findings("git.config")
    assert last["detail"] == f"git reads {world.share}/cfg/git/config, {said}"


@pytest.mark.parametrize("name", git_config.VARIABLES)
def test_programs_in_the_environment(
    world: World, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "/usr/bin/true")
    assert not world.findings("git.config")
    monkeypatch.setenv(name, f"{world.project}/evil")
    (found,) = world.findings("git.config")
    assert found["severity"] == "high" and found["hint"] == f"unset {name}"
    assert found["detail"] == f"{name}={world.project}/evil: git runs what the agent can write"


@pytest.mark.parametrize("path", ["", ".", "bin", "./bin", "{share}/project/bin"])
def test_programs_are_looked_for_where_the_agent_writes(
    world: World, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"/usr/bin:{world.home}/bin:/bin")
    assert not world.findings("git.config")
    monkeypatch.setenv("PATH", f"/usr/bin:{path.format(share=world.share)}:/bin")
    (found,) = world.findings("git.config")
    assert "git looks for programs where the agent can write" in found["detail"]


def test_values_in_the_environment_count_as_gits_do(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.git("config", "--global", "--unset", "safe.bareRepository")
    assert world.findings("host.bare")
    for name, value in (("COUNT", "2"), ("KEY_0", "safe.bareRepository"), ("VALUE_0", "explicit"),
                        ("KEY_1", "core.pager"), ("VALUE_1", "./x"),
                        ("PARAMETERS", "'core.editor'='./y'")):  # fmt: skip
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    assert not world.findings("host.bare")
    found = world.findings("git.config")
    assert [row["detail"] for row in found] == [
        "core.editor = ./y (in the environment)", "core.pager = ./x (in the environment)"
    ]  # fmt: skip
    assert all(row["hint"].startswith("remove it from the environment") for row in found)
    monkeypatch.setenv("GIT_CONFIG_PARAMETERS", "core.editor=")
    assert "the user's configuration: " in world.findings("audit.read")[0]["detail"]


# ----------------------------------------------------------------------------------- verdicts

SHARED = "/home/me/shared"
GIT = Git("git", "/home/me")
JUDGE = Judge(GIT, Share(SHARED, RuleSet(GuardRules(protect=("kept",)))))


def leads(key: str, value: str | None, origin: str = f"{SHARED}/p/.git/config") -> bool:
    severity = JUDGE.severity(ConfigEntry(origin, key, value), f"{SHARED}/p")
    return severity is (Severity.MEDIUM if key == "submodule.a.url" else Severity.HIGH)


@pytest.mark.parametrize(
    "key",
    ["core.fsmonitor", "core.sshcommand", "core.editor", "core.pager", "sequence.editor",
     "pager.log", "diff.external", "diff.X y.textconv", "diff.a.command", "difftool.a.cmd",
     "mergetool.a.cmd", "merge.a.b.driver", "filter.lfs.clean", "filter.a.smudge",
     "filter.a.process", "credential.helper", "credential.https://a.b/c.helper", "gpg.program",
     "gpg.ssh.program", "gpg.ssh.defaultkeycommand", "core.askpass", "interactive.difffilter",
     "uploadpack.packobjectshook", "gc.recentobjectshook", "trailer.a.command", "hook.a.command",
     "lfs.customtransfer.a.path", "lfs.extension.a.clean"],
)  # fmt: skip
def test_every_key_that_names_a_program_is_judged(key: str) -> None:
    for value in ("./x", "tools/x -a", f"{SHARED}/p/x", "~/shared/p/x", "A=1 ../x", "sh x",
                  "git log | ./x", "sh -c 'tools/x'", "bash /home/me/shared/p/x", "python3 x.py",
                  '"$(git rev-parse --show-toplevel)/x"', "!f() { ./x; }; f",
                  "npx npm-merge-driver merge %A", "env A=b make x"):  # fmt: skip
        assert leads(key, value), value
    for value in (None, "", "true", "x", "less -R", "/usr/bin/x --y", "git-lfs clean -- %f",
                  "~/bin/x", "vim -c 'set a'", "!git credential-cache", "env A=b less",
                  f"{SHARED}/p/.git/x", "python3 /usr/bin/x", "ssh -i ~/.ssh/id",
                  ".git/hooks/fsmonitor-watchman", "./kept",
                  f"{SHARED}/p/kept", "sh kept", "kept/x"):  # fmt: skip
        assert not leads(key, value), value


@pytest.mark.parametrize(
    ("value", "expected"),
    [("!./x", True), ("!tools/x", True), ("!.git/x && tools/x", True), ("!. x", True),
     ("!python3 -m http.server", True), ("!python3 -Im http.server", False), ("!sh -e x", True),
     ("!sh -c x", False), ("!/bin/sh /x", False), ("!tools/sh /x", True),
     ("!PATH=bin:$PATH x", True), ("!PATH=$HOME/bin:/bin x", False), ("cherry-pick -x", False),
     ("diff -Oorder", False), ("bisect run tools/x", True), ("log -c -p", False),
     ("-c core.sshCommand='./x' fetch", True), ("!git push origin $1", False),
     ("log origin/main..HEAD", False), ("-c color.ui=always log", False), ("!ls a", False),
     ("!make x", False)],
)  # fmt: skip
def test_an_alias_is_a_command_only_after_its_mark(value: str, expected: bool) -> None:
    assert leads("alias.x", value) is expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(".husky", True), ("./hooks", True), (f"{SHARED}/hooks", True), ("~/shared/p/hooks", True),
     (".git/hooks", False), ("../../hooks", False), ("/usr/share/hooks", False),
     ("~/hooks", False), (".GIT/hooks", False), ("", False), ("kept/x", False)],
)  # fmt: skip
def test_hooks_count_when_the_agent_could_write_them(value: str, expected: bool) -> None:
    assert leads("core.hookspath", value) is expected


def test_other_keys_lead_nowhere_and_other_ways_do() -> None:
    for key, value in (("user.name", "./x"), ("remote.origin.url", "../other"),
                       ("branch.a/b.merge", "refs/heads/a"), ("submodule.a.update", "merge"),
                       ("remote.a.url", "ext::ssh h %S x"), ("branch.a.remote", "origin"),
                       ("url.https://h/.insteadof", "ext::./x"),
                       ("include.path", "~/x"), ("include.path", "other")):  # fmt: skip
        assert not leads(key, value), key
    for key, value in (("remote.a.url", "ext::./x %S"), ("submodule.a.update", "!./x"),
                       ("remote.a.pushurl", "ext::./x"), ("remote.pushdefault", "ext::./x"),
                       ("branch.a/b.pushremote", "ext::./x"), ("submodule.a.url", "ext::ssh h"),
                       ("url.ext::./x .pushinsteadof", "foo:"),
                       ("include.path", "../x"), ("includeif.gitdir:/a.path", "~/shared/x"),
                       ("init.templatedir", "~/shared/t")):  # fmt: skip
        assert leads(key, value), key


def test_for_the_user_what_is_relative_counts() -> None:
    for key, value, expected in (("core.hookspath", ".husky", True), ("core.editor", "./x", True),
                                 ("core.hookspath", "~/hooks", False),
                                 ("core.editor", "vim", False)):  # fmt: skip
        entry = ConfigEntry("/home/me/.gitconfig", key, value)
        assert (JUDGE.severity(entry, None) is Severity.HIGH) is expected


def test_a_listing_is_read_with_names_that_hold_anything() -> None:
    listing = b"file:/p/.git/config\0a.b\nline\nline\0file:/h/\xff\nx\0c.d\0"
    first, second = parse(listing)
    assert first == ConfigEntry("/p/.git/config", "a.b", "line\nline")
    assert second == ConfigEntry("/h/\udcff\nx", "c.d", None)
    for broken in (b"file:x\0a", b"file:x\0", b"x"):
        with pytest.raises(Unread):
            parse(broken)


def test_a_bare_repository_is_trusted_unless_all_values_say_otherwise(world: World) -> None:
    def said() -> list[str]:
        return [row["detail"] for row in world.findings("host.bare")]

    assert not said()
    world.git("config", "--global", "--unset", "safe.bareRepository")
    assert said() == ["safe.bareRepository is not set"]
    world.git("config", "safe.bareRepository", "explicit")
    assert said(), "git uses it in no repository"
    commands, _ = ways(world.findings("host.bare")[0])
    audit_world.carry_out(world, commands[0])
    assert not said()
    world.git("config", "--global", "--add", "safe.bareRepository", "all")
    assert said() == ["safe.bareRepository is all"]
