"""The marker every_processor: processes of a race run at the same time, whatever the tier has."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.mounting import Mounted, area, gitguardfs
from tests.support.processors import of_the_run


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
    assert _given(earlier) == [os.sched_getaffinity(os.getppid())] * 3


@pytest.mark.every_processor
def test_a_marked_test_and_its_daemons_have_all(earlier: Mounted) -> None:
    assert _given(earlier) == [of_the_run()] * 3


def test_the_next_test_has_what_its_tier_has_again(earlier: Mounted) -> None:
    assert _given(earlier) == [os.sched_getaffinity(os.getppid())] * 3
