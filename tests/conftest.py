"""Rules for all tiers: nothing is skipped in CI, nothing stays mounted."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mounting import AREAS

# Started in a shell's background, we ignore SIGINT, and so would all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup(1): we go on to, but they do not
    signal.signal(signal.SIGHUP, lambda *_: None)

IN_CI = os.environ.get("CI") == "true"
_skipped: list[str] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The mount tier needs root; without it a user's run skips it and CI fails."""
    if os.geteuid() == 0:
        return
    for item in items:
        if "tests/mount/" in str(item.path):
            item.add_marker(pytest.mark.skip(reason="needs root, for real mounts"))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        _skipped.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if IN_CI and _skipped:
        print(f"\nin CI nothing may be skipped: {', '.join(_skipped)}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session", autouse=True)
def nothing_stays_mounted() -> Iterator[None]:
    """A test that leaves a mount behind is a failure of the run."""
    yield
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    left = [line.split()[4] for line in lines if any(area in line for area in AREAS)]
    assert not left, f"still mounted: {left}"
