"""The command ``gitguard audit``; the commands that it prints work."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gitguardfs.base.errors import GitguardExit
from gitguardfs.base.findings import Row, Severity, Status
from gitguardfs.base.quote import shell_printable
from gitguardfs.host.audit import fixes
from gitguardfs.host.audit.git_config import ConfigEntry, Git
from gitguardfs.host.audit.search import ordered
from gitguardfs.names.rules import GuardRules, RuleSet, Verdict
from tests.support import audit_world
from tests.support.audit_world import World

NOBODY = 65534


@pytest.fixture
def world() -> Iterator[World]:
    """A world that other users may enter."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    yield audit_world.new(directory.resolve() / "home")
    shutil.rmtree(directory)


def run(
    world: World, *arguments: str | Path, at: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from gitguardfs.commands.gitguard import main; main()", "audit",
         *map(str, arguments)],
        capture_output=True, text=True, env={**os.environ, "HOME": str(world.home)}, cwd=at,
    )  # fmt: skip


def test_exit_codes_and_words(world: World) -> None:
    done = run(world, world.share)
    assert done.returncode == GitguardExit.OK, done.stdout
    assert done.stdout.splitlines()[-1].endswith("no findings, no notes") and not done.stderr
    (world.project / ".githooks").mkdir()
    assert run(world, world.share).returncode == GitguardExit.OK
    assert run(world, world.share, "--fail-on", "low").returncode == GitguardExit.FINDINGS
    world.git("config", "core.pager", "./x\x1b[31m")
    done = run(world, world.share)
    assert done.returncode == GitguardExit.FINDINGS
    assert "[high]" in done.stdout and "core.pager = ./x\\x1b[31m" in done.stdout
    assert "\x1b" not in done.stdout
    assert run(world, at=world.share).stdout == run(world, "--project", world.share).stdout
    assert str(world.share) in run(world, at=world.share).stdout
    for path in (world.share / "nothing", world.project / "file"):
        done = run(world, path)
        assert done.returncode == GitguardExit.USAGE
        assert done.stderr == f"gitguard: no such directory: {path}\n"


def test_a_link_to_the_directory_and_one_within_a_work_tree(world: World) -> None:
    world.git("config", "core.hooksPath", "sub/hooks")
    (world.project / "sub").mkdir()
    (world.home / "link").symlink_to(world.project / "sub")
    (found,) = world.findings("git.config", at=world.home / "link")
    assert "core.hookspath = sub/hooks" in found["detail"]


def test_the_directory_may_itself_be_a_bare_repository(world: World) -> None:
    world.git("init", "-q", "--bare", world.home / "bare")
    world.git("config", "--file", world.home / "bare/config", "core.pager", "x")
    assert world.findings("git.bare", at=world.home / "bare")


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user, which only root can")
def test_root_becomes_the_owner_and_what_the_owner_cannot_read_is_a_finding(world: World) -> None:
    closed = world.project / "closed"
    closed.mkdir(mode=0o700)
    other = world.share / "other"
    world.git("init", "-q", other)
    world.git("config", "core.pager", "./x", at=other)
    (world.project / ".git/config").chmod(0o600)
    os.chown(world.share, NOBODY, NOBODY)
    rows = json.loads(run(world, world.share, "--json").stdout)
    unread = {row["detail"] for row in rows if row["id"] == "audit.read"}
    assert unread == {
        f"{closed}: Permission denied",
        f"{world.project}/.git/config: Permission denied",
    }
    assert [row["detail"] for row in rows if row["id"] == "git.config"] == [
        f"core.pager = ./x (in {other}/.git/config)"
    ]
    owners = [row for row in rows if row["id"] == "git.owner"]
    assert len(owners) == 2 and {row["status"] for row in owners} == {"note"}


def test_results_come_once_and_the_worst_first() -> None:
    row = Row("git.config", "fine", "bad")
    low, high = row.finding("a", "", Severity.LOW), row.finding("b", "")
    found = [one for one in ordered([low, high, low], True) if one.id == "git.config"]
    assert found == [high, low]
    assert {one.status for one in ordered([], has_repository=True)} == {Status.OK}


def test_it_says_what_it_looked_at(world: World) -> None:
    def scope(at: Path) -> tuple[str, str]:
        (found,) = [row for row in world.audit(at=at) if row["id"] == "audit.scope"]
        return found["status"], found["detail"]

    sub, empty = world.project / "sub", world.home / "empty"
    sub.mkdir()
    empty.mkdir()
    assert scope(world.share) == ("ok", f"1 repository in {world.share}")
    world.git("init", "-q", "--bare", world.share / "bare")
    assert scope(world.share) == ("ok", f"2 repositories in {world.share}")
    said = f"0 repositories in {sub}; {sub} lies in the repository {world.project}"
    assert scope(sub) == ("ok", said)
    assert scope(empty) == ("note", f"0 repositories in {empty}")
    notes = {row["id"] for row in world.audit(at=empty) if row["status"] == "note"}
    assert {"git.owner", "git.hook", "git.directory"} <= notes
    assert world.audit(at=empty)[0]["hint"]


@pytest.mark.parametrize("command", [["audit"], ["audit", "--json"], ["share"], ["doctor"],
                                     ["vm", "status"]])  # fmt: skip
def test_names_that_the_terminal_cannot_show(world: World, command: list[str]) -> None:
    place = world.share / "日本"
    world.git("init", "-q", place)
    world.git("config", "core.pager", "./語", at=place)
    code = "from gitguardfs.commands.gitguard import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *command, str(place)], capture_output=True, timeout=60,
        cwd=place, env={**world.environment(), "PYTHONIOENCODING": "latin-1",
                        "XDG_RUNTIME_DIR": str(world.home)},
    )  # fmt: skip
    assert b"Traceback" not in done.stderr and b"Unicode" not in done.stderr
    assert done.returncode in (0, 1, 2, 3)
    if command == ["audit"]:
        assert b"\\u65e5\\u672c" in done.stdout and done.returncode == 1


# ------------------------------------------------------------ what can be carried out

WORDS = st.text(st.characters(exclude_characters="\0"), max_size=30)
ANY = WORDS | st.binary(max_size=20).filter(lambda b: 0 not in b).map(os.fsdecode)


def encodable(text: str) -> bool:
    try:
        return os.fsdecode(os.fsencode(text)) == text
    except UnicodeEncodeError:
        return False


@given(st.lists(ANY.filter(encodable), max_size=8))
@settings(deadline=None, max_examples=60)
def test_a_printed_command_is_what_was_meant(words: list[str]) -> None:
    line = shell_printable(["printf", "%s\\0", *words, "end"])
    assert line.isprintable()
    done = subprocess.run(["bash", "-c", line], capture_output=True, check=True)
    assert done.stdout.split(b"\0")[:-1] == [*map(os.fsencode, words), b"end"]


@given(ANY.filter(lambda name: encodable(name) and name and "/" not in name), ANY)
@settings(deadline=None, max_examples=60)
def test_a_printed_rule_is_for_that_name_alone(name: str, other: str) -> None:
    words = audit_world.words(fixes.rule("--protect", name).removeprefix(audit_world.GUARD))
    option, _, pattern = words[0].partition("=")
    assert len(words) == 1 and option == "--protect"
    guard = RuleSet(GuardRules(protect=(pattern,)))
    assert guard.verdict_of_name(os.fsencode(name))[0] >= Verdict.READONLY
    if name.isascii() and other.isascii() and name.lower() != other.lower() and other:
        assert (
            guard.verdict_of_name(os.fsencode(other))[0] is Verdict.ALLOW or ".git" in other.lower()
        )


@given(
    st.text(st.characters(codec="utf-8", exclude_characters="\0\n\r"), max_size=12),
    st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=20),
    st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=12),
)
@settings(deadline=None, max_examples=40)
def test_one_value_is_taken_out_of_a_configuration(about: str, value: str, name: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, f"x{name}")
        for one in (value, f"{value}x", f"x{value}"):
            subprocess.run(
                ["git", "config", "--file", path, "--add", f"filter.{about}.clean", one], check=True
            )
        git = Git("git", "/")

        def values() -> list[str | None]:
            content = Path(path).read_bytes()
            return [e.value for e in git.entries_of(content, path)]

        assert values() == [value, f"{value}x", f"x{value}"]
        way = fixes.unset(ConfigEntry(path, f"filter.{about}.clean", value))
        assert way.isprintable()
        subprocess.run(["bash", "-c", way], check=True)
        assert values() == [f"{value}x", f"x{value}"]
