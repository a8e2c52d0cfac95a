"""Completion by click's own scripts, with the values that our options take."""

import os
import subprocess
import sys

import pytest

from gitguardfs.base.installation import PACKAGE_PARENT
from gitguardfs.commands.gitguard import COMMANDS
from gitguardfs.host.egress.presets import PRESETS

GIT = ["deny", "list", "readonly", "hide", "private", "off"]


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
        ("gitguard vm up --agent c", ["claude", "codex"]),
        ("gitguard share --for ", ["qemu", "libvirt", "utm"]),
        ("vm-mount --style s", ["systemd"]),
    ],
)
def test_words_are_completed(line: str, expected: list[str]) -> None:
    assert completed(line).splitlines() == [f"plain,{word}" for word in expected]


@pytest.mark.parametrize(
    ("line", "kind"),
    [("gitguardfs ", "dir"), ("gitguard share a", "dir"), ("vm-mount --map-mount ", "dir"),
     ("gitguardfs --audit-log ", "file"), ("gitguard vm up --image ", "file"),
     ("gitguard vm up --agent ~/m", "file")],
)  # fmt: skip
def test_the_shell_completes_directories_and_files(line: str, kind: str) -> None:
    assert completed(line) == f"{kind},{line.split(' ')[-1]}\n"
