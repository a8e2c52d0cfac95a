"""Run tiers side by side: ``python -m tests.tiers [--durations] TIER... [-- PYTEST-OPTIONS]``.

tests/run.sh has installed what the tiers need and has isolated this process, so that it leaves
nothing when it is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.guest import image as images
from tests.support import leftovers, processors
from tests.support.mounting import AREA
from tests.tiers import allotment, estimate, report
from tests.tiers.allotment import Lane
from tests.tiers.catalogue import TIERS, Tier
from tests.tiers.running import STOP_LIMIT, Run

PREFIX = "ggfs-tests-"
"""Not the name of the program: tests find its processes by their command lines."""
PLACE = "/var/tmp"
"""Every user can reach it, and it is on a disk: a tmpfs is no stand-in for one."""


class Stop:
    """Whether a signal has asked to end: noted only, so that it interrupts nothing halfway.

    One Ctrl-C arrives three times: from the terminal, and from both processes that isolate this.
    """

    def __init__(self) -> None:
        self.is_asked = False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # nohup(1)
            signal.signal(number, self._ask)

    def _ask(self, *_: object) -> None:
        self.is_asked = True


def main(arguments: list[str]) -> int:
    """Run the chosen tiers. Returns 0, 1 if anything failed, 130 if it was stopped."""
    stop = Stop()
    sys.stdout.reconfigure(errors="backslashreplace")  # a test's output has any character
    options: list[str] = []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, options = arguments[:at], arguments[at + 1 :]
    durations = "--durations" in arguments
    named = [name for name in arguments if name != "--durations"]
    in_ci = os.environ.get("CI") == "true"
    chosen, left_out = _sort_out([tier for tier in TIERS if tier.name in named])
    lanes = allotment.lanes(chosen, os.sched_getaffinity(0))
    print(report.plan(chosen, left_out, bool(options), lanes[0].workers), flush=True)
    if left_out and in_ci:
        print("in CI no tier may be left out")
        return 1
    if not chosen:
        print("nothing is left to run")
        return 1
    leftovers.remove_stale(images.NEW, images.CACHE)
    with leftovers.directory(PREFIX, PLACE) as place:
        place.chmod(0o755)
        # ext4 then puts each directory of a test elsewhere on the disk. Side by side, their new
        # files would have to pass over the inodes of removed ones, which ext4 leaves for seconds.
        subprocess.run(["chattr", "+T", place], capture_output=True, check=False)
        os.environ[AREA] = str(place)
        processors.name_those_of_the_run()
        return _run(chosen, left_out, lanes, place, options, durations, stop)


def _sort_out(tiers: Sequence[Tier]) -> tuple[list[Tier], list[tuple[Tier, str]]]:
    lacks = [(tier, tier.lacks()) for tier in tiers]
    return [tier for tier, why in lacks if not why], [(tier, why) for tier, why in lacks if why]


def _run(
    chosen: list[Tier],
    left_out: list[tuple[Tier, str]],
    lanes: Sequence[Lane],
    place: Path,
    options: list[str],
    durations: bool,
    stop: Stop,
) -> int:
    started = time.monotonic()
    runs: list[Run] = []
    waiting = list(chosen)
    progress = report.Progress(runs, waiting)
    while not stop.is_asked and (waiting or not all(run.is_over for run in runs)):
        _start_next(runs, waiting, lanes, place, options)
        _look(runs, progress)
        time.sleep(0.2)
    if stop.is_asked:
        progress.say("stopping ...")
        _end(runs)
    if durations:
        print(report.slowest(runs))
        print(*(report.phases(run) for run in runs if run.tier.image), sep="\n")
    print(report.table(runs, waiting, left_out, time.monotonic() - started), flush=True)
    if stop.is_asked:
        return 130
    if not any(run.has_tested for run in runs):
        print(*map(report.details, runs), "nothing was tested", sep="\n")
        return 1
    return int(any(run.is_failed for run in runs))


def _start_next(
    runs: list[Run], waiting: list[Tier], lanes: Sequence[Lane], place: Path, options: list[str]
) -> None:
    """Start the next tier in each lane in which none is running."""
    busy = {run.lane for run in runs if not run.is_over}
    for lane in lanes:
        tier = next((tier for tier in waiting if tier.is_short == lane.is_short), None)
        if tier is not None and lane not in busy:
            waiting.remove(tier)
            runs.append(Run(tier, lane, place / tier.name, estimate.limit(tier)))
            runs[-1].start(options)


def _look(runs: list[Run], progress: report.Progress) -> None:
    for run in runs:
        was_over, was_hung = run.is_over, run.is_hung
        for name in run.look():
            if len(run.failures) <= report.MOST:
                progress.say(f"FAILED {name}")
        if run.is_hung and not was_hung:
            progress.say(report.hanging(run))
        if run.is_over and not was_over:
            progress.say(report.ending(run))
            if run.is_failed:
                progress.say(report.details(run))
    progress.show()


def _end(runs: list[Run]) -> None:
    """Let the tiers end by themselves; those that do not are killed when this process ends."""
    for run in runs:
        run.stop()
    deadline = time.monotonic() + STOP_LIMIT
    while time.monotonic() < deadline and not all(run.is_over for run in runs):
        for run in runs:
            run.look()
        time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
