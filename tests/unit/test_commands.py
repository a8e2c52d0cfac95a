"""What all commands have in common: help that can be read, exit codes."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from gitguardfs.gitguard import COMMANDS
from gitguardfs.program import HOLDER

PROGRAMS = {
    "gitguardfs": "gitguardfs.cli",
    "gitguard": "gitguardfs.gitguard",
    "vm-mount": "gitguardfs.guest.vm_mount",
}
WIDTH = 80


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = f"from {PROGRAMS[program]} import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd="/",
        env={**os.environ, "COLUMNS": str(WIDTH), "PYTHONPATH": HOLDER},
    )  # fmt: skip


@pytest.mark.parametrize(
    "command",
    [[program] for program in PROGRAMS] + [["gitguard", name] for name in COMMANDS],
    ids=" ".join,
)
def test_help_has_no_cut_sentence_and_no_section_twice(command: list[str]) -> None:
    done = run(*command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    usage, *lines = done.stdout.splitlines()
    assert usage.startswith(f"Usage: {' '.join(command)} ")
    assert [line for line in lines if re.search(r"\w\.\.\.", line)] == []
    headings = [line.strip() for line in lines if re.match(r" {0,2}[A-Z][^:]*:( |$)", line)]
    assert len(headings) == len(set(headings))


def test_the_list_of_subcommands_is_whole_sentences() -> None:
    said = run("gitguard", "--help").stdout
    for name, one in COMMANDS.items():
        assert re.search(rf"(?m)^  {name} +{re.escape(one.summary)}$", said)


@pytest.mark.parametrize(
    "arguments",
    [["bogus"], ["--bogus"], ["share"], ["share", "/", "--bogus"], ["units", "--check"],
     ["share", "/nonexistent"], ["doctor", "--bogus"]],
    ids=" ".join,
)  # fmt: skip
def test_wrong_usage_of_gitguard_is_2(arguments: list[str]) -> None:
    done = run("gitguard", *arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr


def test_gitguard_alone_shows_its_help_and_is_2() -> None:
    done = run("gitguard")
    assert done.returncode == 2
    assert "Commands:" in done.stdout + done.stderr


@pytest.mark.parametrize("program", ["gitguardfs", "vm-mount"])
def test_wrong_usage_of_what_mounts_is_1_as_in_mount(program: str) -> None:
    done = run(program, "--bogus")
    assert done.returncode == 1 and done.stderr.startswith(f"{program}: ")
