"""The order and the processors of the tests' tiers."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support import isolated
from tests.support.mounting import REPOSITORY
from tests.tiers import allotment, estimate, report
from tests.tiers.catalogue import QUICK, TIERS, Tier

SHORT = [tier for tier in TIERS if tier.is_short]
LONG = [tier for tier in TIERS if not tier.is_short]
MACHINES = [tier for tier in LONG if tier.image]
IN_PROCESSES = [tier for tier in LONG if not tier.image]
CHOICES = {
    "all": TIERS,
    "quick": [tier for tier in TIERS if tier.name in QUICK],
    "short": SHORT,
    "one short": SHORT[:1],
    "one machine": MACHINES[:1],
    "no machine": [*SHORT, *IN_PROCESSES],
    "a machine and a short one": [*MACHINES[:1], *SHORT[:1]],
}
choices = pytest.mark.parametrize("chosen", CHOICES.values(), ids=CHOICES)
NUMBERS = {"one": {3}, "two": {0, 1}, "with gaps": {1, 4, 6}, "many": set(range(64))}
numbers = pytest.mark.parametrize("numbered", NUMBERS.values(), ids=NUMBERS)


@choices
@numbers
def test_each_tier_has_a_lane_and_each_lane_processors(
    chosen: list[Tier], numbered: set[int]
) -> None:
    lanes = allotment.lanes(chosen, numbered)
    for tier in chosen:
        assert [lane for lane in lanes if lane.is_short == tier.is_short]
    for lane in lanes:
        assert lane.processors and lane.processors <= numbered
    assert len({lane.number for lane in lanes}) == len(lanes)


def test_beside_virtual_machines_each_long_tier_has_a_processor_of_its_own() -> None:
    *long, short = allotment.lanes(TIERS, {4, 7})
    assert [lane.processors for lane in long] == [{4}, {7}]
    assert short.is_short and short.processors == {4, 7}


def test_without_virtual_machines_one_long_tier_uses_all() -> None:
    long, short = allotment.lanes([*IN_PROCESSES, *SHORT], {0, 1})
    assert (long.is_short, short.is_short) == (False, True)
    assert long.processors == short.processors == {0, 1}


@pytest.mark.parametrize("count", [1, 2, len(LONG)])
def test_no_more_run_at_a_time_than_there_are_processors(count: int) -> None:
    lanes = allotment.lanes(TIERS, set(range(count)))
    assert len([lane for lane in lanes if not lane.is_short]) == count


def test_with_more_processors_than_tiers_none_is_bound() -> None:
    lanes = allotment.lanes(TIERS, set(range(64)))
    assert len(lanes) == len(LONG) + 1
    assert {lane.processors for lane in lanes} == {frozenset(range(64))}


def test_long_tiers_start_before_shorter_ones() -> None:
    seconds = [tier.seconds for tier in LONG]
    assert seconds == sorted(seconds, reverse=True)


def test_the_estimates_agree_with_the_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "missing_images", lambda chosen: [])
    usage = subprocess.run(
        [REPOSITORY / "tests/run.sh", "--help"], capture_output=True, text=True, check=True
    )
    words = usage.stdout.split()
    everything = [tier for tier in TIERS if tier.name not in ("vm-faults", "vm-docker")]
    assert f"about {estimate.of(everything)} on two" in " ".join(words)
    assert f"--quick {estimate.of(CHOICES['quick'])}." in " ".join(words)


@pytest.mark.parametrize(
    ("processors", "gigabytes", "count"),
    [
        (1, 24, 2),  # beside a virtual machine, on a machine with two
        (2, 24, 2),
        (2, 1, 2),
        (6, 24, 6),
        (6, 3, 3),
        (64, 256, 8),
    ],
)
def test_workers_are_bound_by_processors_memory_and_a_number(
    processors: int, gigabytes: int, count: int
) -> None:
    assert allotment.workers(processors, gigabytes << 30) == count


def test_a_lane_of_many_processors_has_eight_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {"SC_PHYS_PAGES": 1 << 24, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", pages.__getitem__)
    assert {lane.workers for lane in allotment.lanes(TIERS, set(range(64)))} == {8}
    assert {lane.workers for lane in allotment.lanes(TIERS, {4, 7})} == {2}
    monkeypatch.setitem(pages, "SC_PHYS_PAGES", 1 << 20)
    assert {lane.workers for lane in allotment.lanes(TIERS, set(range(64)))} == {4}


def test_the_plan_names_the_workers() -> None:
    assert "Workers for each of mount, unit, adapter: 5" in report.plan(TIERS, [], False, 5)
    assert "Workers" not in report.plan(SHORT, [], False, 5)


@pytest.mark.parametrize("tier", TIERS, ids=lambda tier: tier.name)
def test_a_machine_four_times_slower_stays_below_the_limits(
    tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another run is beside it, and if it has to make its image first."""
    monkeypatch.setattr(estimate, "missing_images", lambda chosen: [])
    made = estimate.limit(tier)
    monkeypatch.setattr(estimate, "missing_images", lambda chosen: [t.name for t in chosen])
    assert estimate.limit(tier) - made >= 4 * estimate.IMAGE_SECONDS
    assert made >= 4 * 2 * tier.seconds + 4 * 120


BOUND = """
import os, subprocess, sys
from tests.support import processors
every = os.sched_getaffinity(0)
processors.name_those_of_the_run()
def child():
    return subprocess.Popen(["sleep", "600"], user=65534).pid
def given():
    return [os.sched_getaffinity(pid) for pid in (os.getpid(), *pids)]
os.sched_setaffinity(0, {min(every)})
pids = [1, child()]
with processors.all_in_use():
    pids.append(child())
    assert given() == [every] * 4, given()
assert given() == [{min(every)}] * 4, given()
try:
    with processors.all_in_use():
        raise InterruptedError
except InterruptedError:
    assert given() == [{min(every)}] * 4, given()
"""
STORM = """
import os, subprocess, sys
from tests.support import processors
every = os.sched_getaffinity(0)
processors.name_those_of_the_run()
os.sched_setaffinity(0, {min(every)})
storm = "while :; do true & true & wait; done"
storms = [subprocess.Popen(["sh", "-c", storm]) for _ in range(3)]
for _ in range(150):
    with processors.all_in_use():
        assert [os.sched_getaffinity(each.pid) for each in storms] == [every] * 3
    assert [os.sched_getaffinity(each.pid) for each in storms] == [{min(every)}] * 3
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for namespaces")
def test_a_race_can_use_all_processors_of_the_run_in_every_process() -> None:
    """Also a process that was started while one processor had to do."""
    _run_isolated(BOUND)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for namespaces")
def test_processes_that_come_and_go_meanwhile_disturb_nothing() -> None:
    _run_isolated(STORM)


def _run_isolated(code: str) -> None:
    done = subprocess.run(
        [sys.executable, isolated.__file__, sys.executable, "-c", code],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
