"""For all tiers with virtual machines: what the machine must have, and the times they print."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def skip_below(
    directory: str, items: Iterable[pytest.Item], programs: Sequence[str], why_root: str
) -> None:
    """Skip the tests of a directory where their machine cannot be had; in CI that is a failure."""
    missing = [program for program in programs if shutil.which(program) is None]
    reason = f"not installed: {', '.join(missing)}" if missing else ""
    if os.geteuid() != 0:
        reason = f"needs root, {why_root}"
    for item in items:
        if reason and str(item.path).startswith(directory):
            item.add_marker(pytest.mark.skip(reason=reason))


def show_phases(terminalreporter: Any, phases: Sequence[tuple[str, float]]) -> None:
    """Print what took how many seconds in the machine."""
    if phases:
        terminalreporter.section("guest: seconds of each phase")
        for name, seconds in phases:
            terminalreporter.line(f"{seconds:7.1f}  {name}")
