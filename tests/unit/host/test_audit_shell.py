"""What a shell script runs in a roundabout way: shown with git, found, and ordinary hooks free."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitguardfs.host.audit.runs import Runs
from gitguardfs.host.audit.shell import Command, Script
from tests.support import audit_ways, audit_world
from tests.support.audit_precision import DOCUMENT, FILE, filled, judged, table
from tests.support.audit_world import World, check_fixes
from tests.unit.host.test_audit_hooks import commit_runs, hook

world = audit_world.fixture


# ------------------------------------------------------------------- planted ways and clean ones


@pytest.mark.parametrize("kind", audit_ways.RUN_BY_GIT)
def test_git_runs_what_the_agent_writes(world: World, kind: str) -> None:
    """The ways in the table are real: a commit runs the agent's file."""
    world.git("tag", "start")
    (world.project / "file").write_text("two\n")
    world.git("commit", "-qam", "two")
    for text in audit_ways.RUN_BY_GIT[kind]:
        world.script(world.project / FILE)
        words = {"project": str(world.project), "file": FILE, "name": "project"}
        once = '[ -z "$ONCE" ] || exit 0\nexport ONCE=1'
        hook(world, f"#!/bin/bash\n{once}\n{filled(text, words)}\n")
        assert commit_runs(world), text


def test_the_table_in_the_document_is_what_an_audit_finds(world: World) -> None:
    results = judged(world)
    planted = [found for way, found in results if not way.is_clean]
    clean = [(way, found) for way, found in results if way.is_clean]
    assert len(planted) >= 150 and len(clean) >= 30
    assert [way for way, found in clean if found in ("high", "medium")] == []
    assert table(results) in DOCUMENT.read_text(), "python -m tests.support.audit_precision"


@pytest.mark.parametrize(
    ("text", "command"),
    [('X=tools/x\n"$X" a', "line 3: … a"), ("true\nunknown a b", "line 3: unknown a b"),
     ('cat a |\n  sh', "line 3: sh"),
     ("x=`\ny\n`; sh $x", "line 4: sh …"),
     ("cat <<E\na\nE\n$x", "line 5: …"),
     ("echo 'x\n", "line 2: no '"), ("echo )", "line 2: )"), ("perl -e 1", "line 2: perl -e 1"),
     ("if (", "line 3: no )"), ("sh /opt/x", "line 2: sh /opt/x"), ("a; b; $c; $d", "line 2: …")],
)  # fmt: skip
def test_a_hook_that_is_not_wholly_understood_is_one_finding(
    world: World, text: str, command: str
) -> None:
    path = hook(world, f"#!/bin/sh\n{text}\n")
    (found,) = world.findings("git.hook")
    said = "runs commands that audit cannot follow: read it"
    assert found["detail"] == f"{path} {said} ({command})"
    check_fixes(world, "git.hook", "medium", "cannot follow")


def test_what_is_understood_comes_first(world: World) -> None:
    path = hook(world, '#!/bin/sh\n"$X"\ntools/x\n')
    (found,) = world.findings("git.hook")
    assert found["detail"] == f"{path} runs {world.project}/tools/x"
    (found,) = world.findings("git.hook", "--protect", "x")
    assert found["severity"] == "medium"


HUSKY = '#!/usr/bin/env sh\n. "$(dirname "$0")/h"\n'
HUSKY_9 = '#!/usr/bin/env sh\n. "${0%/*}/h"\n'


def test_of_gits_own_samples_those_are_free_that_run_nothing_unknown(world: World) -> None:
    samples = sorted((world.project / ".git/hooks").glob("*.sample"))
    assert len(samples) > 9
    for sample in samples:
        sample.rename(sample.with_suffix(""))
        sample.with_suffix("").chmod(0o755)
    found = world.findings("git.hook")
    assert {row["severity"] for row in found} == {"medium"} and len(found) < len(samples) / 1.5
    for name in ("pre-commit", "pre-push", "update", "commit-msg", "push-to-checkout"):
        assert f"/{name} " not in str(found)


@pytest.mark.parametrize("text", [HUSKY, HUSKY_9])
def test_hooks_of_husky_once_they_are_protected(world: World, text: str) -> None:
    own = world.project / ".husky/_/pre-commit"
    own.parent.mkdir(parents=True)
    own.write_text(text)
    own.chmod(0o755)
    world.git("config", "core.hooksPath", ".husky/_")
    (found,) = world.findings("git.hook", "--protect", ".husky")
    assert found["severity"] == "medium", "they run what package.json says"
    assert not world.findings("git.config", "--protect", ".husky")


# ------------------------------------------------------------------------------- configuration


@pytest.mark.parametrize(
    "value",
    ['!"$(git rev-parse --show-toplevel)/x"', "!find . -name x -exec sh x \\;",
     "!run-parts .", "!sh < x", "!git -c alias.y='!sh x' y", "!cd . && ./x", "-c alias.y='!./x' y"],
)  # fmt: skip
def test_an_alias_that_runs_a_file_of_the_work_tree(world: World, value: str) -> None:
    world.script(world.project / "x")
    world.git("config", "alias.run", value)
    world.git("run", check=False)
    assert world.has_run()
    check_fixes(world, "git.config", "high", "alias.run = ")
    world.git("run", check=False)
    assert not world.has_run()


def test_an_alias_that_runs_a_file_of_unknown_name(world: World) -> None:
    world.script(world.project / "x")
    world.git("config", "alias.run", '!f() { cat "$1" | sh; }; f')
    world.git("run", "x")
    assert world.has_run()
    check_fixes(world, "git.config", "medium", "cannot follow: read it")
    for value in ('!git log "$1" | cat', "!f() { git log $1; }; f"):
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


def commands(text: str) -> list[Command]:
    script = Script(text)
    script.read()
    return script.commands


def test_words_stand_for_what_the_shell_makes_of_them() -> None:
    text = r"""a'b c'"d$x"\ e ~/$HOME "$PWD"/x `pwd` $(git rev-parse --show-cdup)/y $((1 + 2))"""
    (command,) = [one for one in commands(text) if one.words[0] not in ("pwd", "git")]
    assert command.words == ["ab cd\0 e", "~/~", "./x", ".", "./y", "\0"]


def test_a_here_document_ends_where_it_says() -> None:
    found = commands("cat <<A <<-'B' | sh\n./a $(b)\nA\n\t./c $(d)\n\tB\ne\n./f\n./g")
    assert [one.words[0] for one in found] == ["cat", "sh", "b", "e", "./f", "./g"]
    assert [one.line for one in found if one.words[0] in ("e", "./g")] == [6, 8]


def test_cd_holds_where_a_shell_would_let_it_hold() -> None:
    text = "a; (cd x; b); c; cd .; d; e=$(cd y && f); g; cd z\nh"
    found = commands(text)
    assert {one.words[0]: one.is_moved for one in found if len(one.words[0]) == 1} == {
        "a": False, "b": True, "c": False, "d": False, "f": True, "g": False, "h": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    "text",
    ["$(" * 5000, "'" * 5001, "eval " * 5000, "find -exec " * 900, "`" * 5001, "((" * 9000,
     "{ " * 9000,
     "case x in " * 9000, "<<E " * 3000, "a <<E\n" + "x\n" * 99999, "${" * 9000, "env " * 900,
     "(" * 9000,
     "a=(" * 9000, "[[ " * 9000, "\\" * 9001, '"' * 9001, "sh -c " * 900, "git -c " * 9000],
)  # fmt: skip
def test_text_without_end_is_read_to_its_end(text: str) -> None:
    Runs().read(text)
    assert "./x" in Runs().read(f"./x; {'true ' * 9}").files


@given(st.text("ab/.$(){}<>|&;\"'`\\ \n#=[]x!-~", max_size=60))
def test_any_text_is_read(text: str) -> None:
    Runs().read(text)
