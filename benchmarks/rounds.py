"""Interleaved rounds: every workload on every view in turn, in an order that rotates.

A machine that gets slower meanwhile slows all views alike, so the ratios hold.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.place import Place, Workload

FORGOTTEN = 1.2
"""Seconds after which the kernel has forgotten a view's names; the timeouts are of 1 s."""

Say = Callable[[str], None]

_runs = itertools.count()


@dataclass
class Outcome:
    """The times of one workload on each view."""

    name: str
    warm: bool = False
    seconds: dict[str, list[float]] = field(default_factory=dict)
    """By view, one figure a round."""
    failures: dict[str, str] = field(default_factory=dict)
    """By view, what was wrong; that view is not timed any more."""


def measure(
    workloads: Sequence[Workload], places: Sequence[Place], rounds: int, say: Say
) -> list[Outcome]:
    """Time all workloads. A first round may warm up; it does not count.

    A view that takes part in fewer rounds takes part in the first ones.
    """
    scale = places[0].scale
    outcomes = [Outcome(workload.name, workload.warm) for workload in workloads]
    used: dict[str, float] = {}
    for number in range(0 if scale.warms_up else 1, rounds + 1):
        present = [
            place
            for place in places
            if place.key not in scale.fewer_rounds or 1 <= number <= scale.fewer_rounds[place.key]
        ]
        title = f"round {number} of {rounds}" if number else "warming up"
        for index, (workload, outcome) in enumerate(zip(workloads, outcomes, strict=True)):
            runs = [
                replace(place, run=f"run{next(_runs)}")
                for place in rotated(present, number + index)
                if place.key not in outcome.failures
            ]
            taken = []
            for place, result in zip(runs, run_each(workload, runs, used), strict=True):
                if isinstance(result, Exception):
                    outcome.failures[place.key] = f"{type(result).__name__}: {result}"
                    outcome.seconds.pop(place.key, None)
                    taken.append(f"{place.key} FAILED: {result}")
                    continue
                if number:
                    outcome.seconds.setdefault(place.key, []).append(result)
                taken.append(f"{place.key} {result * 1000:.0f}")
            say(f"{title}: {workload.name:28} {'  '.join(taken)}")
    return outcomes


def rotated(places: Sequence[Place], by: int) -> list[Place]:
    """Return the places, starting with another one each time."""
    start = by % len(places)
    return [*places[start:], *places[:start]]


def run_each(
    workload: Workload, places: Sequence[Place], used: dict[str, float]
) -> Iterator[float | Exception]:
    """Run a workload once on each place; yield the seconds, or what went wrong.

    What the runs work on is made first for all of them.
    ``used`` has the time of each view's last use (time.monotonic), and is kept up to date.
    """
    prepared = [_prepared(workload, place) for place in places]
    for place, failure in zip(places, prepared, strict=True):
        if workload.settled:
            time.sleep(max(0.0, used.get(place.key, 0) + FORGOTTEN - time.monotonic()))
        try:
            yield failure or once(workload, place)
        except Exception as error:
            yield error
        finally:
            used[place.key] = time.monotonic()
            _put_aside(place.truth)


def _put_aside(directory: Path) -> None:
    """Move a directory away that has been worked in; all of them go at the end of the run.

    To remove it now would keep the disk busy while the next one is timed.
    """
    if directory.exists():
        kept = directory.parent / "done"
        kept.mkdir(exist_ok=True)
        directory.rename(kept / f"{directory.name}-{time.monotonic_ns()}")


def _prepared(workload: Workload, place: Place) -> Exception | None:
    try:
        place.truth.mkdir()
        workload.prepare(place)
    except Exception as error:
        return error
    return None


def once(workload: Workload, place: Place) -> float:
    """Run a prepared workload once and check its result. Returns seconds."""
    if workload.writes or workload.cold:
        os.sync()
    if workload.cold:
        drop_caches()
    started = time.perf_counter()
    own = workload.run(place)
    taken = time.perf_counter() - started
    workload.check(place)
    return taken if own is None else own


def drop_caches() -> None:
    """Make the kernel forget files, names and attributes. Root only."""
    with open("/proc/sys/vm/drop_caches", "w") as switch:
        switch.write("3\n")
