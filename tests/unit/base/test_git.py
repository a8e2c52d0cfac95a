"""Limits of git that base/git runs, shown with programs that git starts by an alias."""

from __future__ import annotations

import os
import shlex
import shutil
import sys

import pytest

from gitguardfs.base import git
from gitguardfs.base.git import MIB, Limits


def run_in_git(code: str, limits: Limits) -> git.Answer:
    """Have git start Python."""
    program = shutil.which("git")
    assert program is not None
    alias = f"alias.python=!exec {shlex.join([sys.executable, '-c', code])}"
    environment = {**git.NO_CONFIG, "PATH": os.environ["PATH"]}
    return git.run(program, ["python"], environment, limits, settings=(alias,))


@pytest.mark.skipif(sys.platform != "linux", reason="a limit of Linux")
def test_its_memory_is_limited() -> None:
    take = f"print(len(bytes({300 * MIB})))"
    assert run_in_git(take, Limits(60.0)).text == str(300 * MIB)
    assert "MemoryError" in run_in_git(take, Limits(60.0, memory=100 * MIB)).error


def test_its_output_is_limited() -> None:
    write = f"import sys; sys.stdout.write('x' * {2 * MIB})"
    assert len(run_in_git(write, Limits(60.0)).output) == 2 * MIB
    assert run_in_git(write, Limits(60.0, file=MIB)).code != 0


def test_it_and_its_children_end_in_time() -> None:
    with pytest.raises(TimeoutError):
        run_in_git("import time; time.sleep(60)", Limits(0.5))
