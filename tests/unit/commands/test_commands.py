"""For all commands: their help and their exit codes."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator

import click
import pytest

from gitguardfs.base.errors import Exit
from gitguardfs.base.installation import PACKAGE_PARENT
from gitguardfs.commands.gitguard import COMMANDS, group
from gitguardfs.commands.run import of_gitguard
from gitguardfs.commands.run import run as run_command

PROGRAMS = {
    "gitguardfs": "gitguardfs.commands.gitguardfs",
    "gitguard": "gitguardfs.commands.gitguard",
    "vm-mount": "gitguardfs.commands.vm_mount",
}
WIDTH = 80


def run(
    program: str, *arguments: str, python: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    code = f"from {PROGRAMS[program]} import main; main()"
    return subprocess.run(
        [python, "-c", code, *arguments], capture_output=True, text=True, cwd="/",
        env={**os.environ, "COLUMNS": str(WIDTH), "PYTHONPATH": PACKAGE_PARENT},
    )  # fmt: skip


@pytest.mark.parametrize(
    "command",
    [[program] for program in PROGRAMS] + [["gitguard", name] for name in COMMANDS],
    ids=" ".join,
)
def test_help_is_whole_once_and_no_wider_than_a_terminal(command: list[str]) -> None:
    done = run(*command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    usage, *lines = done.stdout.splitlines()
    assert usage.startswith(f"Usage: {' '.join(command)} ")
    assert [line for line in lines if re.search(r"\w\.\.\.", line)] == []
    headings = [line.strip() for line in lines if re.match(r" {0,2}[A-Z][^:]*:( |$)", line)]
    assert len(headings) == len(set(headings))
    assert [line for line in lines if len(line) > WIDTH] == []


@pytest.mark.parametrize(
    "arguments",
    [["bogus"], ["--bogus"], ["share"], ["share", "/", "--bogus"], ["units", "--check"],
     ["share", "/dev/null/none"], ["doctor", "--bogus"], ["doctor", ""],
     ["audit", "/", "--protect", "a/b"], ["audit", "/", "--hide", ""],
     ["share", "a", "--project", "b"], ["private", "reset"], ["private", "reset", "--project", ""],
     ["fetch", "/nonexistent"], ["audit", "/nonexistent"], ["doctor", "/nonexistent"],
     ["doctor", "/", "--user", "no-such-user"], ["doctor", "--host", "/nonexistent"],
     ["fetch", "--expect", "1234567890"]],
    ids=" ".join,
)  # fmt: skip
def test_wrong_usage_of_gitguard_is_2(arguments: list[str]) -> None:
    done = run("gitguard", *arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr


WITHOUT_PROJECT = {
    *("units", "private list", "local list", "local prune", "local move", "vm images list"),
    *("vm images prune", "vm list", "changes-in", "watch"),
}
"""Commands of gitguard that are not about one project."""


def _leaves(words: list[str], command: click.Command) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield " ".join(words), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        if (found := command.get_command(context, name)) is not None:
            yield from _leaves([*words, name], found)


def test_one_word_says_in_all_commands_where_the_project_is() -> None:
    for name, command in _leaves([], group):
        options = {text for one in command.params for text in one.opts}
        assert ("--project" in options) == (name not in WITHOUT_PROJECT), name
        named = {one.metavar for one in command.params if isinstance(one, click.Argument)}
        assert not named & {"DIR", "[DIR]", "DIRECTORY", "[DIRECTORY]", "[REPO]", "[MOUNTPOINT]"}


def has_click(python: str) -> bool:
    return subprocess.run([python, "-c", "import click"], stderr=subprocess.DEVNULL).returncode == 0


@pytest.fixture(params=[sys.executable, "/usr/bin/python3"], ids=["newest click", "the system's"])
def python(request: pytest.FixtureRequest) -> str:
    """A Python with its own click; before 8.2 click takes some wrong usage for a wish for help."""
    found = str(request.param)
    if not has_click(found):
        pytest.skip(f"{found} has no click (python3-click)")
    return found


@pytest.mark.parametrize("words", [[], ["krun"], ["vm"]], ids=" ".join)
def test_a_group_without_a_command_shows_its_help_and_is_2(words: list[str], python: str) -> None:
    done = run("gitguard", *words, python=python)
    assert (done.returncode, done.stderr) == (2, "")
    assert "Commands:" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["/a", "/b"], "/a is no command: gitguard mounts nothing (gitguardfs SOURCE MOUNTPOINT"),
        (["/a", "/b", "-o", "rw"], "fuse.gitguardfs)"),  # by mount -t fuse.gitguard
        (["krun", "/a"], "gitguard krun: no such command: '/a'"),
        (["vm", "./a"], "gitguard vm: no such command: './a'"),
        (["shar"], "gitguard: no such command: 'shar'. Did you mean 'share'? (see gitguard"),
        (["vm", "stpo"], "gitguard vm: no such command: 'stpo'. Did you mean 'stop'?"),
        (["vm", "lst"], "gitguard vm: no such command: 'lst'. Did you mean 'list'? ("),
        (["vm", "delet"], "gitguard vm: no such command: 'delet'. Did you mean 'delete'? ("),
        (["vm", "frobnicate"], "no such command: 'frobnicate' (see gitguard vm --help)"),
        (["ls"], "gitguard: no such command: 'ls' (see gitguard --help)"),
    ],
)
def test_what_is_no_command_of_a_group_is_wrong_usage(
    words: list[str], said: str, python: str
) -> None:
    done = run("gitguard", *words, python=python)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "command"),
    [("vm start", "vm up"), ("vm shell", "vm ssh"), ("vm down", "vm stop"), ("vm ls", "vm list"),
     ("vm rm", "vm reset"), ("vm delete", "vm reset"), ("vm secret rm", "vm secret remove"),
     ("vm images ls", "vm images list"), ("private delete", "private remove"),
     ("local ls", "local list")],
)  # fmt: skip
def test_names_that_similar_programs_use_lead_to_ours(words: str, command: str) -> None:
    done = run("gitguard", *words.split(), "--help")
    assert done.stdout.startswith(f"Usage: gitguard {command} "), done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["vm-mount", "--tag", ""], ["vm-mount", "--map-mount", ""],
        ["gitguard", "share", ""], ["gitguard", "share", "/", "--disk", ""],
        ["gitguard", "units", "t", "-m", "", "-mm", "/v"], ["gitguard", "lima", "--output", ""],
        ["gitguard", "krun", "run", "--project", ""], ["gitguard", "vm", "status", "--project", ""],
        ["gitguard", "doctor", ""], ["gitguard", "audit", ""], ["gitguard", "fetch", ""],
        ["gitguard", "share", "--project", ""], ["gitguard", "fetch", "--project", "", "main"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_an_empty_value_is_not_taken_for_one_that_was_left_out(words: list[str]) -> None:
    """A script's variable may be unset, and the default may be another directory."""
    program, *arguments = words
    done = run(program, *arguments)
    assert done.returncode == (1 if program == "vm-mount" else 2)
    assert "it is empty" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "wrong", "offered"),
    [
        ("gitguardfs", "--protct", ["--protect"]),
        ("vm-mount", "--tga", ["--tag"]),
        ("vm-mount", "--map", []),  # neither --tag nor --map-mount is meant
        ("gitguard share", "--bogus", []),
    ],
)
def test_only_an_option_that_is_nearly_the_same_is_offered(
    command: str, wrong: str, offered: list[str], python: str
) -> None:
    done = run(*command.split(), wrong, "x", python=python)
    said = done.stderr.removesuffix(f" (see {command} --help)\n")
    assert re.findall(r"--[a-z-]+", said) == [wrong, *offered]


@pytest.mark.parametrize("wrong", ["--image", "--hardened=3"])
def test_an_option_without_its_value_names_the_help_of_its_command(wrong: str, python: str) -> None:
    done = run("gitguard", "vm", "up", wrong, python=python)
    assert done.returncode == 2 and done.stderr.endswith(" (see gitguard vm up --help)\n")


@pytest.mark.parametrize(("code_of", "expected"), [(int, 2), (of_gitguard, 3)])
def test_a_bug_is_neither_a_finding_nor_wrong_usage(
    code_of: Callable[[Exit], int],
    expected: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["broken"])

    @click.command()
    def broken() -> None:
        raise RuntimeError("no such luck")

    with pytest.raises(SystemExit) as ended:
        run_command(broken, "broken", code_of)
    assert ended.value.code == expected
    said = capsys.readouterr().err
    assert "Traceback" in said and "RuntimeError: no such luck" in said


@pytest.mark.parametrize(("program", "code"), [("gitguard", 3), ("vm-mount", 2)])
def test_a_closed_pipe_is_neither_a_finding_nor_wrong_usage(program: str, code: int) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    text = f"from {PROGRAMS[program]} import main; main()"
    try:
        done = subprocess.run([sys.executable, "-c", text, "--help"], stdout=writing,
                              stderr=subprocess.PIPE, text=True, check=False)  # fmt: skip
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (code, "")
