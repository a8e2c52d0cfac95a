"""A pytest plugin that notes, in a file, how many tests there are and what came of each.

The runner reads the file while pytest runs. One JSON object a line: ``{"collected": N}``,
``{"started": ID}``, ``{"test": ID, "outcome": "passed", "seconds": S, "why": "..."}``, where
``why`` is the reason of a skip, and last ``{"status": N}``, the exit status. With pytest-xdist only
the process that collects the workers' reports writes.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

FILE = "GITGUARDFS_TEST_EVENTS"
"""Environment variable with the path of the file."""


def pytest_configure(config: pytest.Config) -> None:
    """Start to note, unless this is a worker of pytest-xdist."""
    if hasattr(config, "workerinput"):
        return
    config.pluginmanager.register(Notes())
    if config.pluginmanager.hasplugin("xdist"):
        config.pluginmanager.register(CollectedByWorkers())


def _note(**event: Any) -> None:
    with open(os.environ[FILE], "a") as file:
        file.write(json.dumps(event) + "\n")


class CollectedByWorkers:
    """A hook that exists with pytest-xdist only, whose controlling process collects nothing."""

    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        _note(collected=len(ids))


class Notes:
    """The hooks that note tests while they run."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._outcomes: dict[str, tuple[str, str]] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:
            _note(collected=len(session.items))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            _note(test=report.nodeid, outcome="failed", seconds=0.0, why="")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        _note(started=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up the phases of a test; a failure in any of them counts, once."""
        name = report.nodeid
        self._seconds[name] = self._seconds.get(name, 0.0) + report.duration
        if report.failed:
            self._outcomes[name] = ("failed", "")
        elif report.skipped:
            why = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
            self._outcomes.setdefault(name, ("skipped", why.removeprefix("Skipped: ")))
        # A worker that crashed reports neither a phase that there is nor a teardown.
        if report.when not in ("setup", "call"):
            outcome, why = self._outcomes.pop(name, ("passed", ""))
            _note(test=name, outcome=outcome, seconds=self._seconds.pop(name), why=why)

    @pytest.hookimpl(trylast=True)  # another hook may change the status
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        _note(status=int(session.exitstatus))
