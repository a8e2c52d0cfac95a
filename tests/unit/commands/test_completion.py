"""Completion by click's own scripts, with the values that our options take."""

from __future__ import annotations

import os
import subprocess
import sys

import click
import pytest

from gitguardfs.base.installation import PACKAGE_PARENT
from gitguardfs.commands.gitguard import COMMANDS
from gitguardfs.commands.run import DIRECTORIES, FILES
from gitguardfs.host.egress.presets import PRESETS
from tests.support.commands import every_command

GIT = ["deny", "list", "readonly", "hide", "private", "off"]
FREE = {"GLOB", "N", "PERMS", "SECONDS", "ALIGNMENT", "TAG", "UID:GID", "MIB", "NAME", "SIZE",
        "URL", "MAIL", "LINE", "HOST", "FIELD", "OPTS", "MAP", "USER", "GROUP", "USER:@GROUP",
        "BRANCH", "BRANCH...", "COMMIT", "PORT[:GUEST_PORT", "COMMAND...",
        "-- COMMAND..."}  # fmt: skip
"""Metavars of values that only the user knows."""


def completed(line: str, **variables: str) -> str:
    program, *words = line.split(" ")
    code = f"from gitguardfs.commands.{program.replace('-', '_')} import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/",
        env={**os.environ, "PYTHONPATH": PACKAGE_PARENT,
             f"_{program.replace('-', '_').upper()}_COMPLETE": "bash_complete",
             "COMP_WORDS": line, "COMP_CWORD": str(len(words)), **variables},
    )  # fmt: skip
    return done.stdout


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("gitguardfs --git ", GIT),
        ("gitguardfs --git re", ["readonly"]),
        ("gitguardfs --resolved", ["--resolved-symlink-deletion"]),
        ("gitguard ", list(COMMANDS)),
        ("gitguard vm s", ["secret", "ssh", "ssh-config", "status", "stop"]),
        ("gitguard vm up --allow ", list(PRESETS)),
        ("gitguard share --for ", ["qemu", "libvirt", "utm"]),
        ("vm-mount --style s", ["systemd"]),
    ],
)
def test_words_are_completed(line: str, expected: list[str]) -> None:
    assert completed(line).splitlines() == [f"plain,{word}" for word in expected]


@pytest.mark.parametrize(
    ("line", "kind"),
    [("gitguardfs ", "dir"), ("gitguard share a", "dir"), ("vm-mount --map-mount ", "dir"),
     ("gitguardfs --audit-log ", "file"), ("gitguard vm up --image ", "file")],
)  # fmt: skip
def test_the_shell_completes_directories_and_files(line: str, kind: str) -> None:
    assert completed(line) == f"{kind},{line.split(' ')[-1]}\n"


def test_every_value_can_be_completed_or_only_the_user_knows_it() -> None:
    for one in every_command():
        for param in one.command.params:
            if isinstance(param, click.Option) and (param.is_flag or param.count):
                continue
            if isinstance(param.type, click.Choice | click.Path):
                continue
            metavar = (param.metavar or (param.name or "").upper()).strip("[]")
            assert "|" in metavar or metavar in {*DIRECTORIES, *FILES, *FREE}, (
                one.words, param.opts,
            )  # fmt: skip
