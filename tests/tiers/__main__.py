"""Run tiers side by side: ``python -m tests.tiers [--durations] TIER... [-- PYTEST-OPTIONS]``.

tests/run.sh has installed what the tiers need and has isolated this process, so that it leaves
nothing when it is killed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.support import processors
from tests.support.mounting import AREA
from tests.tiers import allotment, report
from tests.tiers.allotment import Lane
from tests.tiers.catalogue import TIERS, Tier
from tests.tiers.running import STOP_LIMIT, Run

PREFIX = "ggfs-tests-"
"""Not the name of the program: tests find its processes by their command lines."""
PLACE = "/var/tmp"
"""Every user can reach it, and it is on a disk: a tmpfs is no stand-in for one."""


class Stopped(Exception):
    """A signal asked to end."""


def main(arguments: list[str]) -> int:
    """Run the chosen tiers. Returns 0, 1 if anything failed, 130 if it was stopped."""
    options: list[str] = []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, options = arguments[:at], arguments[at + 1 :]
    durations = "--durations" in arguments
    named = [name for name in arguments if name != "--durations"]
    in_ci = os.environ.get("CI") == "true"
    chosen, left_out = _sort_out([tier for tier in TIERS if tier.name in named])
    print(report.plan(chosen, left_out, bool(options)), flush=True)
    if left_out and in_ci:
        print("in CI no tier may be left out")
        return 1
    if not chosen:
        print("nothing is left to run")
        return 1
    _remove_stale()
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=PLACE, ignore_cleanup_errors=True) as name:
        place = Path(name)
        place.chmod(0o755)
        lock = os.open(place, os.O_RDONLY)  # held until the end, also by what is started
        fcntl.flock(lock, fcntl.LOCK_SH)
        os.environ[AREA] = name
        processors.name_those_of_the_run()
        status = _run(chosen, place, options, durations)
        os.close(lock)
        _make_removable(place)
    return status


def _sort_out(tiers: Sequence[Tier]) -> tuple[list[Tier], list[tuple[Tier, str]]]:
    lacks = [(tier, tier.lacks()) for tier in tiers]
    return [tier for tier, why in lacks if not why], [(tier, why) for tier, why in lacks if why]


def _remove_stale() -> None:
    """Remove what runs that were killed have left: files only, since mounts went with them."""
    for path in Path(PLACE).glob(f"{PREFIX}*"):
        lock = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        finally:
            os.close(lock)
        _make_removable(path)
        shutil.rmtree(path, ignore_errors=True)


def _make_removable(path: Path) -> None:
    subprocess.run(["chattr", "-R", "-i", "-a", path], capture_output=True, check=False)


def _run(chosen: list[Tier], place: Path, options: list[str], durations: bool) -> int:
    started = time.monotonic()
    lanes = allotment.lanes(chosen, processors.of_the_run())
    runs: list[Run] = []
    waiting = list(chosen)
    progress = report.Progress(runs, waiting)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    try:
        while waiting or not all(run.is_over for run in runs):
            _start_next(runs, waiting, lanes, place, options)
            _look(runs, progress)
            time.sleep(0.2)
        stopped = False
    except Stopped:
        stopped = True
        progress.say("stopping ...")
        _end(runs)
    if durations:
        print(report.slowest(runs))
        print(*(report.phases(run) for run in runs if run.tier.image), sep="\n")
    print(report.table(runs, waiting, time.monotonic() - started), flush=True)
    if stopped:
        return 130
    return 1 if any(run.is_failed for run in runs) else 0


def _stop(*_: object) -> None:
    raise Stopped


def _start_next(
    runs: list[Run], waiting: list[Tier], lanes: Sequence[Lane], place: Path, options: list[str]
) -> None:
    """Start the next tier in each lane in which none is running."""
    busy = {run.lane for run in runs if not run.is_over}
    for lane in lanes:
        tier = next((tier for tier in waiting if tier.is_short == lane.is_short), None)
        if tier is not None and lane not in busy:
            waiting.remove(tier)
            runs.append(Run(tier, lane, place / tier.name))
            runs[-1].start(options)


def _look(runs: list[Run], progress: report.Progress) -> None:
    for run in runs:
        was_over = run.is_over
        for name in run.look():
            if len(run.failures) <= report.MOST:
                progress.say(f"FAILED {name}")
        if run.is_over and not was_over:
            progress.say(report.ending(run))
            if run.is_failed:
                progress.say(report.details(run))
    progress.show()


def _end(runs: list[Run]) -> None:
    """Let the tiers end by themselves; those that do not are killed when this process ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for run in runs:
        run.stop()
    deadline = time.monotonic() + STOP_LIMIT
    while time.monotonic() < deadline and not all(run.is_over for run in runs):
        for run in runs:
            run.look()
        time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
