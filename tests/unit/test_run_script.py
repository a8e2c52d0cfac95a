"""tests/run.sh: mistakes are one line that says what to do, and nothing is left behind."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.mounting import REPOSITORY, area

SCRIPT = REPOSITORY / "tests/run.sh"
COPIES = Path("/var/tmp")
TOOLS = ("bash", "chmod", "cp", "dirname", "flock", "mktemp", "python3", "rm", "setpriv",
         "sha256sum", "test")  # fmt: skip
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as the tests do")


def run(script: Path, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([script, *arguments], capture_output=True, text=True, **more)


@pytest.mark.parametrize("wrong", ["nosuch", "lint unit", "", "--nosuch", "-k"])
def test_a_mistake_in_the_arguments_is_one_line(wrong: str) -> None:
    # Without root: if it were taken for right, nothing would be run.
    done = run(SCRIPT, "unit", wrong, user=65534 if os.geteuid() == 0 else None)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("tests/run.sh: no such ") and wrong in line and "--help" in line


@as_root
def test_without_root_it_says_what_to_type() -> None:
    done = run(SCRIPT, "unit", "--", "-k", "seal", user=65534)
    assert done.returncode == 1
    assert done.stderr == f"tests/run.sh: needs root: sudo {SCRIPT} unit -- -k seal\n"


@contextmanager
def checkout(place: Path) -> Iterator[Path]:
    """A checkout with this script alone, in which no virtual environment can be made."""
    (place / "tests").mkdir()
    shutil.copy(SCRIPT, place / "tests")
    (place / "venv.py").write_text("raise SystemExit('no venv here')\n")
    yield place / "tests/run.sh"


@pytest.fixture
def tools(tmp_path: Path) -> dict[str, str]:
    """An environment with the programs that the script needs, but with no package manager."""
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        (tmp_path / "bin" / tool).symlink_to(str(shutil.which(tool)))
    return {**os.environ, "PATH": str(tmp_path / "bin")}


@as_root
def test_without_installing_a_virtual_environment_has_to_be_there(tools: dict[str, str]) -> None:
    with area() as place, checkout(place) as script:
        done = run(script, "--no-install", "unit", env=tools)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "tests/run.sh: there is no .venv: run without --no-install\n"


@as_root
def test_what_cannot_be_installed_is_named(tools: dict[str, str]) -> None:
    with area() as place, checkout(place) as script:
        done = run(script, "unit", env=tools)
    assert done.returncode == 1 and "not installed: .venv\n" in done.stderr
    assert "--no-install" in done.stderr


@as_root
def test_a_private_checkout_is_copied_and_the_copy_removed(
    tmp_path: Path, tools: dict[str, str]
) -> None:
    """Copies that killed runs have left go as well; those that are in use stay."""
    tmp_path.chmod(0o700)
    (tmp_path / "checkout").mkdir()
    stale, held = (COPIES / f"gitguardfs-checkout-{what}{os.getpid()}" for what in ("old", "used"))
    stale.mkdir()
    held.mkdir()
    try:
        with checkout(tmp_path / "checkout") as script, subprocess.Popen(
            ["flock", "-s", held, "sh", "-c", "echo held; read line"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as other:  # fmt: skip
            assert other.stdout is not None and other.stdout.readline() == "held\n"
            done = run(script, "unit", env=tools)
            assert "running in a copy, " in done.stdout and done.returncode == 1
            (copy,) = [
                word for word in done.stdout.split() if word.startswith(f"{COPIES}/gitguardfs-")
            ]
            assert not Path(copy).exists() and not stale.exists() and held.exists()
            other.communicate("\n", timeout=60)
        refused = run(script, "--no-install", "unit", env=tools)
        assert refused.returncode == 1 and "without --no-install" in refused.stderr
    finally:
        shutil.rmtree(stale, ignore_errors=True)
        shutil.rmtree(held, ignore_errors=True)
