"""Run tiers as processes and follow them by what their tests note."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.tiers import events
from tests.tiers.allotment import Lane
from tests.tiers.catalogue import ISOLATED, REPOSITORY, Tier

NO_TESTS = 5
"""pytest's exit status if the options leave no test of a tier."""
RESTARTS = 2
"""Workers of a tier that may crash; one more ends the tier."""
STOP_LIMIT = 40.0
"""Seconds that a tier has to unmount what it mounted after it was told to stop."""


def _workers(count: int) -> list[str]:
    """Options of pytest for isolated workers."""
    worker = shlex.join([sys.executable, str(ISOLATED), sys.executable])
    return [
        "--dist=loadfile",
        f"--tx={count}*popen//python={worker}",
        # A test that ends its worker is given to the next one, without end.
        f"--max-worker-restart={RESTARTS}",
    ]


@dataclass
class Run:
    """A tier that was started, and what is known of it so far."""

    tier: Tier
    lane: Lane
    work: Path
    """A directory of its own, for its logs and for what its tests make."""
    limit: float
    """Seconds after which it is taken to hang and is ended."""
    started: float = field(default_factory=time.monotonic)
    ended: float | None = None
    status: int | None = None
    processor_seconds: float = 0.0
    own_status: int | None = None
    """The exit status that pytest noted when all its tests had ended."""
    collected: int = 0
    running: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    why_skipped: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    durations: list[tuple[float, str]] = field(default_factory=list)
    is_selection: bool = False
    """Whether options of pytest may leave tests out."""
    is_stopped: bool = False
    """Whether it was told to end before it had."""
    is_hung: bool = False
    """Whether it was told to end because its limit was over."""
    _read: int = 0
    _process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.work / "log"

    @property
    def seconds(self) -> float:
        return (self.ended or time.monotonic()) - self.started

    @property
    def is_over(self) -> bool:
        return self.status is not None

    @property
    def is_failed(self) -> bool:
        return bool(self.fault)

    @property
    def fault(self) -> str:
        """Why a tier that is over has failed; "" if it has not, or is not over.

        A process can also end with 0 halfway: by a test, or by what a test started.
        """
        has_finished = not self.tier.is_pytest or self.own_status == self.status
        chosen_are_done = self.is_selection and has_finished and self.status in (0, NO_TESTS)
        if not self.is_over or (chosen_are_done and not self.is_hung):
            return ""
        found = [f"no end within {self.limit:.0f} seconds"] if self.is_hung else []
        if self.status:
            found.append(f"exit status {self.status}")
        elif not has_finished:
            found.append("pytest did not finish")
        done = self.outcomes.total()
        if not done and (self.tier.is_pytest or self.tier.count):
            found.append("nothing was tested")
        elif done < self.collected and not self.is_selection:
            found.append(f"{self.collected - done} tests did not run")
        return ", ".join(found)

    @property
    def has_tested(self) -> bool:
        return not self.tier.is_pytest or bool(self.outcomes.total())

    @property
    def fraction(self) -> float:
        """The part that is done: by the number of tests, or by the usual time if it has none."""
        if self.is_over:
            return 1.0
        if self.collected:
            return min(sum(self.outcomes.values()) / self.collected, 1.0)
        return min(self.seconds / self.tier.seconds, 0.9) if not self.tier.is_pytest else 0.0

    def start(self, options: list[str]) -> None:
        """Start it; ``options`` are pytest's."""
        self.is_selection = self.tier.is_pytest and bool(options)
        self.work.mkdir()
        command = list(self.tier.command)
        if self.tier.is_pytest:
            command += [f"--basetemp={self.work}/pytest"]
            # A test that hangs is shown by the stacks of its process before the limit is over.
            command += ["-o", f"faulthandler_timeout={self.limit / 2}", *options]
        if self.tier.has_workers:
            command += _workers(self.lane.workers)
        with open(self.log, "wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env={**os.environ, events.FILE: str(self.work / "events")},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # we pass on what the terminal sends, once
                preexec_fn=partial(os.sched_setaffinity, 0, self.lane.processors),
            )

    def look(self) -> list[str]:
        """Read what is new. Returns the tests that have failed since the last look."""
        known = len(self.failures)
        self._wait(os.WNOHANG)
        self._keep_limit()
        path = self.work / "events"
        if path.exists():
            with open(path) as file:
                file.seek(self._read)
                lines = file.read().split("\n")
            self._read += sum(len(line.encode()) + 1 for line in lines[:-1])
            for line in lines[:-1]:
                self._take(json.loads(line))
        if self.is_over and self.tier.count:
            said = self.log.read_text(errors="replace")
            self.outcomes["passed"] = len(re.findall(f"^{self.tier.count}$", said, re.MULTILINE))
        return self.failures[known:]

    def _take(self, event: dict[str, object]) -> None:
        if "collected" in event:
            self.collected = int(str(event["collected"]))
            return
        if "status" in event:
            self.own_status = int(str(event["status"]))
            return
        if "started" in event:
            self.running.append(str(event["started"]))
            return
        name, outcome = str(event["test"]), str(event["outcome"])
        self.running = [other for other in self.running if other != name]
        if name in self.failures:  # ended another worker, or failed in its last phase too
            return
        self.outcomes[outcome] += 1
        self.durations.append((float(str(event["seconds"])), name))
        if outcome == "failed":
            self.failures.append(name)
        elif outcome == "skipped":
            self.why_skipped[str(event["why"])] += 1

    def _wait(self, flags: int) -> None:
        if self._process is None or self.is_over:
            return
        pid, status, used = os.wait4(self._process.pid, flags)
        if pid:
            self.status = self._process.returncode = os.waitstatus_to_exitcode(status)
            self.ended = time.monotonic()
            self.processor_seconds = used.ru_utime + used.ru_stime
            if self.is_hung:
                self._kill_group(pid)

    def _keep_limit(self) -> None:
        """Tell it to end once its limit is over; STOP_LIMIT later, kill its process group."""
        if self._process is None or self.is_over or self.seconds < self.limit:
            return
        if not self.is_hung:
            self.is_hung = True
            self._tell_to_end(self._process.pid)
        elif self.seconds > self.limit + STOP_LIMIT:
            self._kill_group(self._process.pid)

    def stop(self) -> None:
        """Tell it to end in its own way."""
        if self._process is not None and not self.is_over:
            self.is_stopped = True
            self._tell_to_end(self._process.pid)

    def _tell_to_end(self, pid: int) -> None:
        os.kill(pid, signal.SIGINT if self.tier.is_pytest else signal.SIGTERM)

    def _kill_group(self, pid: int) -> None:
        with suppress(ProcessLookupError):  # nothing of it is left
            os.killpg(pid, signal.SIGKILL)
