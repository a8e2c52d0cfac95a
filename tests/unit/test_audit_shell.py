"""What a shell script runs in a roundabout way: shown with git, found, and ordinary hooks free."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gitguardfs.audit.shell import Reader, Run
from tests.support import audit_world
from tests.support.audit_world import World, check_fixes
from tests.unit.test_audit_hooks import LFS, PRE_COMMIT, but_python, commit_runs, hook


@pytest.fixture
def world(tmp_path: Path) -> World:
    return audit_world.new(tmp_path / "home")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('root=$(git rev-parse --show-toplevel); exec "$root/tools/x"', "tools/x"),
        ('root="$(git rev-parse --show-toplevel)"\nif true; then\n  sh "${root}/tools/x"\nfi',
         "tools/x"),
        ('root=`git rev-parse --show-toplevel`\ntools="$root/tools"\n"$tools"/x a', "tools/x"),
        ("export d=tools\n$d/x", "tools/x"),
        ('top="$(cd "$(dirname "$0")/../.." && pwd)"\n"$top/tools/x"', "tools/x"),
        ('d="$(pwd)"; . "$d/tools/x"', "tools/x"),
        ("for x in tools/*; do sh $x; done", "files of {project}/tools"),
        ('exec "$(git rev-parse --show-toplevel)"/"tools/$(basename x)"',
         "files of {project}/tools"),
        ('"tools/$(basename x)"', "files of {project}/tools"),
        ("find . -name 'x*' -exec sh {} \\;", "files of {project}"),
        ("find tools -type f -exec {} ';'", "files of {project}/tools"),
        ("find / -maxdepth 0 -exec sh tools/x {} +", "tools/x"),
        ("find tools -type f | xargs -n 1 sh", "files of {project}/tools"),
        ("find tools -type f | xargs -I % sh %", "files of {project}/tools"),
        ("run-parts tools", "files of {project}/tools"),
        ('run-parts --regex x -- "$(git rev-parse --show-toplevel)/tools"',
         "project/tools"),
        ('eval "$(cat tools/x)"', "tools/x"),
        ('eval "`cat tools/x`"', "tools/x"),
        ('sh -c "$(grep -v nothing tools/x)"', "tools/x"),
        ('code=$(cat tools/x); eval "$code"', "tools/x"),
        ('code=$(cat tools/x)\necho "$code" | sh', "tools/x"),
        ("eval '. tools/x'", "tools/x"),
        ("cat tools/x | sh", "tools/x"),
        ("cat tools/x |\n  sed s/a/a/ |\n  sh -s a", "tools/x"),
        ("sed s/a/a/ tools/x | exec sh", "tools/x"),
        ("sh < tools/x", "tools/x"),
        ("sh < x", "project/x"),
        ("cat x | sh", "project/x"),
        ("sed s/a/a/ < tools/x | sh", "tools/x"),
        ("bash <(cat tools/x)", "tools/x"),
        ('bash <<< "$(cat tools/x)"', "tools/x"),
        ("source /dev/stdin < tools/x", "tools/x"),
        ("cd tools && ./x", "project/tools/x"),
        ("cd tools\n./x", "project/tools/x"),
        ("cd tools || exit\nsh x", "project/tools/x"),
        ("(cd / && true); tools/x", "project/tools/x"),
    ],
)  # fmt: skip
def test_a_hook_that_runs_a_file_of_the_work_tree_in_a_roundabout_way(
    world: World, text: str, said: str
) -> None:
    hook(world, f"#!/bin/bash\n{text}\n")
    check_fixes(world, "git.hook", "high", f"runs {said}".format(project=world.project) if
                said.startswith("files") else said)  # fmt: skip
    hook(world, f"#!/bin/bash\n{text}\n")
    world.script(world.project / "tools/x")
    world.script(world.project / "x")
    assert commit_runs(world)
    check_fixes(world, "git.hook", "high", said.format(project=world.project))
    assert not commit_runs(world)


def test_a_tool_that_find_starts(world: World) -> None:
    world.script(world.home / "bin/make", ". ./Makefile\n")
    (world.project / "Makefile").write_text("true\n")
    hook(world, "#!/bin/sh\nfind Makefile -execdir make \\;\n")
    assert commit_runs(world)
    check_fixes(world, "git.hook", "medium", "runs make")


@pytest.mark.parametrize(
    "setting",
    ["alias.x='!./evil' x", "'alias.x=!sh evil' x", 'alias.x="!cat evil | sh" x',
     "core.hooksPath=hooks commit --allow-empty -m y", "core.fsmonitor=./evil status"],
)  # fmt: skip
def test_a_hook_that_passes_git_a_setting(world: World, setting: str) -> None:
    hook(world, f'#!/bin/sh\n[ -z "$ONCE" ] || exit\nexport ONCE=1\ngit -c {setting}\n')
    check_fixes(world, "git.hook", "high", "for git to what the agent can write")
    hook(world, f'#!/bin/sh\n[ -z "$ONCE" ] || exit\nexport ONCE=1\ngit -c {setting}\n')
    world.script(world.project / "evil")
    world.script(world.project / "hooks/post-commit")
    assert commit_runs(world)


@pytest.mark.parametrize(
    "line",
    ['cat "$FILE" | sh', "sh < $FILE", 'eval "$(cat $FILE)"', "ls tools/* | xargs sh",
     'run-parts "$(dirname "$FILE")"'],
)  # fmt: skip
def test_a_hook_that_runs_a_file_of_unknown_name(world: World, line: str) -> None:
    evil = world.script(world.project / "tools/x")
    text = f'#!/bin/sh\n: "${{FILE:={evil}}}"\n\n{line}\n'
    hook(world, text)
    assert commit_runs(world)
    path = world.project / ".git/hooks/post-commit"
    (found,) = world.findings("git.hook")
    assert found["detail"] == (
        f"{path}, line 4, runs a file that this could not follow: read it yourself"
    )
    check_fixes(world, "git.hook", "low", "could not follow")
    assert not commit_runs(world)


@pytest.mark.parametrize(
    "text",
    ["cd /tmp && ./x", "cd kept\n./x", "cat /etc/profile | sh", ". <(true)",
     'cat "$1" | sort | uniq -c', 'python3 -Ic "x" < "$1"', "perl -ne print < a",
     "cat a | node -e 1",
     'eval "$(ssh-agent -s)"', "curl -s https://example.org | sh", "while read a; do b; done < a",
     "find . -name a -exec grep b {} +", "find . -exec sh -c 'grep b \"$1\"' _ {} \\;",
     "git ls-files | xargs grep a", "git diff --name-only | xargs -n 1 sh -c 'wc -l $0'",
     "run-parts /etc/hooks.d", "run-parts kept",
     'top=$(git rev-parse --show-toplevel)\ncp a "$top/b"',
     'top=$(git rev-parse --show-toplevel)\ncd "$top" || exit 1', "sh <<'END'\ntrue\nEND",
     "git -c core.hooksPath=/dev/null commit", "git -c color.ui=always log", "echo 'cat a | sh'",
     'for x in a b; do echo "$x/y"; done', "x=a/b\necho $x", 'cat <<END\ncat a | sh\nEND',
     "cat kept | sh", 'root=$(git rev-parse --show-toplevel); exec "$root/kept"',
     'dir=$(git rev-parse --git-dir); exec "$dir/hooks/own"', "sed -i s/a/b/ x; sort x | tee y",
     'exec "$(dirname "$0")/own"', 'here="$(cd "$(dirname "$0")" && pwd)"; "$here/own"',
     'exec < /dev/tty', "npm_config_x=a/b true", "alias x='cat a'"],
)  # fmt: skip
def test_hooks_that_only_look_like_these(world: World, text: str) -> None:
    hook(world, f"#!/bin/bash\n{text}\n")
    assert not world.findings("git.hook", "--protect", "kept")


def test_a_script_of_another_language_is_not_read_as_a_shells(world: World) -> None:
    hook(world, "#!/usr/bin/env node\nx(`sh < a`)\n")
    assert not world.findings("git.hook")


LEFTHOOK = """#!/bin/sh
start_lefthook()
{
  dir="$(git rev-parse --show-toplevel)"
  arch=$(uname -m | sed 's/aarch64/arm64/')
  if lefthook -h >/dev/null 2>&1
  then
    eval lefthook $@
  elif test -f "$dir/node_modules/lefthook/bin/index.js"
  then
    "$dir/node_modules/lefthook/bin/index.js" "$@"
  elif test -f "$dir/node_modules/lefthook-${arch}/bin/lefthook"
  then
    eval "\\"$dir/node_modules/lefthook-${arch}/bin/lefthook\\" $@"
  elif yarn lefthook -h >/dev/null 2>&1
  then
    yarn lefthook "$@"
  fi
}
start_lefthook run "pre-commit" "$@"
"""
"""A hook that does what lefthook's own does."""
HUSKY = '#!/usr/bin/env sh\n. "$(dirname "$0")/h"\n'
HUSKY_9 = '#!/usr/bin/env sh\n. "${0%/*}/h"\n'


def test_gits_own_samples_are_free(world: World) -> None:
    samples = sorted((world.project / ".git/hooks").glob("*.sample"))
    assert len(samples) > 9
    for sample in samples:
        sample.rename(sample.with_suffix(""))
        sample.with_suffix("").chmod(0o755)
    assert not world.findings("git.hook")


@pytest.mark.parametrize(
    ("text", "config"),
    [(LEFTHOOK, "lefthook.yml"), (PRE_COMMIT.format(python="/nowhere/python"),
     ".pre-commit-config.yaml"), (LFS, "x")],
)  # fmt: skip
def test_hooks_of_well_known_helpers_are_free(world: World, text: str, config: str) -> None:
    (world.project / config).write_text("")
    (world.project / "node_modules").mkdir()
    for name in ("pre-commit", "post-checkout", "post-merge"):
        hook(world, text, name)
    assert not but_python(world.findings("git.hook"))


@pytest.mark.parametrize("text", [HUSKY, HUSKY_9])
def test_hooks_of_husky_are_free_once_they_are_protected(world: World, text: str) -> None:
    own = world.project / ".husky/_/pre-commit"
    own.parent.mkdir(parents=True)
    own.write_text(text)
    own.chmod(0o755)
    world.git("config", "core.hooksPath", ".husky/_")
    assert not world.findings("git.hook", "--protect", ".husky")
    assert not world.findings("git.config", "--protect", ".husky")


# ------------------------------------------------------------------------------- configuration


@pytest.mark.parametrize(
    "value",
    ['!root=$(git rev-parse --show-toplevel); "$root/x"', "!find . -name x -exec sh {} \\;",
     "!run-parts .", '!eval "$(cat x)"', "!cat x | sh", "!sh < x", "!git -c alias.y='!sh x' y",
     "!cd . && ./x", "-c alias.y='!./x' y", "!find . -name x | xargs sh"],
)  # fmt: skip
def test_an_alias_that_runs_a_file_of_the_work_tree(world: World, value: str) -> None:
    world.script(world.project / "x")
    world.git("config", "alias.run", value)
    world.git("run", check=False)
    assert world.has_run()
    check_fixes(world, "git.config", "high", "alias.run = ")
    world.git("run", check=False)
    assert not world.has_run()


def test_a_filter_that_runs_a_file_of_the_work_tree(world: World) -> None:
    world.script(world.project / "x")
    (world.project / ".gitattributes").write_text("a.txt filter=f\n")
    (world.project / "a.txt").write_text("")
    world.git("config", "filter.f.clean", "cat >&2; sed s/a/a/ x | sh")
    world.git("add", "a.txt")
    assert world.has_run()
    check_fixes(world, "git.config", "high", "filter.f.clean")


def test_an_alias_that_runs_a_file_of_unknown_name(world: World) -> None:
    world.script(world.project / "x")
    world.git("config", "alias.run", '!f() { cat "$1" | sh; }; f')
    world.git("run", "x")
    assert world.has_run()
    check_fixes(world, "git.config", "low", "could not follow: read it yourself")
    for value in ('!git log "$1" | cat', "!cat /etc/profile | sh", '!eval "$(ssh-agent)"'):
        world.git("config", "alias.run", value)
        assert not world.findings("git.config")


@pytest.mark.parametrize("name", [".allowed", "keys/allowed"])
def test_signers_that_the_agent_can_add_itself_to(world: World, name: str) -> None:
    for who in ("me", "agent"):
        key = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(world.home / who))
        subprocess.run(key, check=True)
    allowed = world.project / name
    allowed.parent.mkdir(exist_ok=True)
    allowed.write_text(f"me@example.org {(world.home / 'me.pub').read_text()}")
    world.git("config", "gpg.format", "ssh")
    assert not world.findings("git.config")
    world.git("config", "gpg.ssh.allowedSignersFile", name)
    signing = ("-c", f"user.signingKey={world.home}/agent.pub", "commit", "-S", "--allow-empty")

    world.git(*signing, "-qm", "x")
    assert world.git("log", "-1", "--format=%G?").strip() != "G"
    with allowed.open("a") as file:
        file.write(f"me@example.org {(world.home / 'agent.pub').read_text()}")
    assert world.git("log", "-1", "--format=%G?").strip() == "G"
    assert f"--protect={Path(name).name}" in world.findings("git.config")[0]["hint"]
    check_fixes(world, "git.config", "medium", "gpg.ssh.allowedsignersfile = ")
    assert world.git("log", "-1", "--format=%G?").strip() != "G"
    world.git("config", "gpg.ssh.allowedSignersFile", "~/allowed")
    assert not world.findings("git.config")


# ------------------------------------------------------------------------------------- the reader


def test_a_variable_stands_for_each_of_its_values() -> None:
    reader = Reader("/hooks")
    assert reader.read("x=a/b; x=/c") == []
    assert {run.path for run in reader.read("$x/d")} == {"a/b/d", "/c/d"}
    assert [run.path for run in reader.read('"${0%/*}/own" && ~/own; $HOME/own; "$UNKNOWN/x"')] == [
        "/hooks/own", "~/own", "~/own"
    ]  # fmt: skip


def test_cd_holds_where_a_shell_would_let_it_hold() -> None:
    reader = Reader()
    assert [run.path for run in reader.read("(cd a && ./x); ./x; cd b; ./x")] == ["a/x", "x", "b/x"]
    assert [run.path for run in reader.read("./x")] == ["x"]
    reader.read("cd a")
    assert [run.path for run in reader.read('./x; "$PWD/y"; cd .. && ./x')] == ["a/x", "a/y", "x"]
    reader.read("cd /")
    assert [run.path for run in reader.read("./x")] == ["x"]


def test_text_without_end_is_read_to_its_end() -> None:
    assert Run("x", "./x") in Reader().read('"a $(./x')
    for text in (
        "$(" * 5000,
        "'" * 5001,
        "eval " * 5000,
        "x=a " + "x=$x$x$x$x " * 14,
        "find -exec " * 900,
    ):
        Reader().read(text)


def test_a_variable_longer_than_any_path_is_not_followed() -> None:
    reader = Reader()
    reader.read("x0=a " + " ".join(f"x{n + 1}=$x{n}$x{n}$x{n}$x{n}" for n in range(9)))
    assert reader.read("$x1/y") == [Run("aaaa/y", "aaaa/y")]
    assert reader.read("$x9/y") == []
