"""quickstart.sh guards a share: what it says of the source."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mounting import REPOSITORY, area

GUARD = """
source "$1/quickstart.sh"
GITGUARDFS=$1/launcher PREFIX=$1
guard_share "${@:2}"
"""


@pytest.fixture
def here() -> Iterator[Path]:
    """An area with the script, which runs the code of this checkout and not an installed one."""
    with area() as made:
        for name in ("common.sh", "quickstart.sh"):
            script = (REPOSITORY / "guest-setup" / name).read_text()
            (made / name).write_text(script.replace('\nmain "$@"', ""))
        launcher = made / "launcher"
        launcher.write_text(
            f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(REPOSITORY)!r})\n"
            "from gitguardfs.commands.gitguardfs import main\nmain()\n"
        )
        launcher.chmod(0o755)
        (made / "lib").symlink_to(REPOSITORY)
        (made / "source").mkdir()
        yield made
        subprocess.run(["umount", made / "view"], check=False, capture_output=True)


def guard(here: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-euc", GUARD, "quickstart.sh", here, *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_missing_source_is_what_is_complained_about(here: Path) -> None:
    done = guard(here, here / "absent", here / "view")
    assert done.returncode == 1
    assert done.stderr.startswith(f"quickstart.sh: {here}/absent is no directory: mount the share")
    assert not (here / "view").exists()


@pytest.mark.parametrize("options", [[], ["--seal"]])
def test_a_source_that_stays_open_is_not_called_closed(here: Path, options: list[str]) -> None:
    (here / "source/.git").mkdir()
    done = guard(here, here / "source", here / "view", *options)
    assert done.returncode == 0, done.stderr
    assert f"{here}/source is guarded at {here}/view" in done.stdout
    is_open = os.path.exists(here / "source/.git")
    assert is_open == (options == [])
    assert ("is not sealed: whoever may enter it reaches .git" in done.stderr) == is_open


def test_a_view_over_its_own_source_closes_it(here: Path) -> None:
    (here / "view").mkdir()
    done = guard(here, here / "view", here / "view")
    assert (done.returncode, done.stderr) == (0, "")
