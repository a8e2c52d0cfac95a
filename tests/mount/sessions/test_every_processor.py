"""The marker every_processor: processes of a race run at the same time, whatever the tier has."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import isolated
from tests.support.mounting import REPOSITORY, Mounted, area, gitguardfs
from tests.support.processors import OF_THE_RUN, of_the_run

OF_THE_TIER = os.sched_getaffinity(0)
"""As this is read, before any test."""


@pytest.fixture(scope="module")
def earlier() -> Iterator[Mounted]:
    """A mount from before the test, as tests of a module share them."""
    with area() as place:
        (place / "source").mkdir()
        with gitguardfs(place / "source", place / "view") as mounted:
            yield mounted


def _given(earlier: Mounted) -> list[set[int]]:
    with gitguardfs(earlier.source, earlier.path.parent / "second") as later:
        pids = (os.getpid(), earlier.process.pid, later.process.pid)
        return [os.sched_getaffinity(pid) for pid in pids]


def test_an_ordinary_test_keeps_what_its_tier_has(earlier: Mounted) -> None:
    assert _given(earlier) == [OF_THE_TIER] * 3


@pytest.mark.every_processor
def test_a_marked_test_and_its_daemons_have_all(earlier: Mounted) -> None:
    assert _given(earlier) == [of_the_run()] * 3


def test_the_next_test_has_what_its_tier_has_again(earlier: Mounted) -> None:
    assert _given(earlier) == [OF_THE_TIER] * 3


def test_it_is_so_in_a_tier_that_has_one_processor(tmp_path: Path) -> None:
    """Also where this tier has all, so that the tests above compare nothing."""
    python = [sys.executable, isolated.__file__, sys.executable]
    done = subprocess.run(
        ["taskset", "--cpu-list", str(min(OF_THE_TIER)), *python, "-m", "pytest", __file__,
         "-k", "not one_processor", f"--basetemp={tmp_path}/inner"],
        env={**os.environ, OF_THE_RUN: ",".join(map(str, of_the_run()))},
        cwd=REPOSITORY, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout
