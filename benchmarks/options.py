"""The options of a run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.scale import FULL, GUEST, QUICK, Scale

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
"""Results of complete runs; README shows the chart."""
PASSING = HERE.parent / "build/benchmarks"
"""Results of quick runs and of single workloads; ignored by git, and shown nowhere."""


@dataclass(frozen=True)
class Options:
    """Options of one run, validated."""

    scale: Scale
    rounds: int
    only: tuple[str, ...]
    guest: bool
    million: bool
    place: Path
    json: Path
    table: Path
    chart: Path


def parse(arguments: Sequence[str]) -> Options:
    """Read the command line. Exits with a message if it is wrong."""
    parser = argparse.ArgumentParser(prog="benchmarks/run.sh", description=__doc__)
    parser.description = (
        "Time everyday work on a plain directory, through bindfs and through gitguardfs, side "
        "by side; write a table, figures as JSON and a chart. Needs root. A complete run takes "
        "some 25 minutes, --quick 4."
    )
    parser.epilog = (
        "Examples: sudo ./benchmarks/run.sh --quick --only find; --only cost for what one request "
        "costs in calls and processor time, by kind and by depth (some 3 minutes; with --guest by "
        "depth, over the shares). docs/performance.md has the figures of the last complete run, "
        "and what they mean."
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="a smaller tree and three rounds")
    add("--only", action="append", default=[], metavar="NAME",
        help="only what has NAME in its name: a workload, cost of a request, cost by depth, "
        "requests, start-up, million, own git, local directories or live changes; "
        "repeatable")  # fmt: skip
    add("--rounds", type=int, metavar="N", help="interleaved rounds (5, with --quick 3)")
    add("--guest", action="store_true",
        help="in a QEMU guest, over 9p and virtiofs, instead of here")  # fmt: skip
    add("--no-million", action="store_true", help="leave the daemon's memory out")
    add("--place", type=Path, default=Path("/var/tmp"), metavar="DIR",
        help="where to make the tree (/var/tmp); its file system is measured on")  # fmt: skip
    add("--json", type=Path, metavar="FILE", help="where the figures go")
    add("--results", type=Path, metavar="DIR",
        help="where results.json, results.md and chart.svg go (benchmarks/results; with --quick "
        "or --only build/benchmarks)")  # fmt: skip
    given = parser.parse_args(arguments)
    if given.rounds is not None and given.rounds < 1:
        parser.error("--rounds: at least 1")
    if not given.place.is_dir():
        parser.error(f"--place: no directory: {given.place}")
    if any(not word for word in given.only):
        parser.error("--only: what?")
    scale = GUEST if given.guest else QUICK if given.quick else FULL
    results = given.results or (PASSING if given.quick or given.only else RESULTS)
    prefix = "guest-" if given.guest else ""
    return Options(
        scale=scale,
        rounds=given.rounds or scale.rounds,
        only=tuple(given.only),
        guest=given.guest,
        million=not given.no_million and not given.guest,
        place=given.place.resolve(),
        json=given.json or results / f"{prefix}results.json",
        table=results / f"{prefix}results.md",
        chart=results / f"{prefix}chart.svg",
    )
