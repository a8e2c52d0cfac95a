"""The comparison inside the guest: ``python3 -m benchmarks.inside --help``.

Standard library only. The share is filled by the host; what is found goes to stdout as JSON,
and progress to stderr, which the host reads from a file on the share meanwhile.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from functools import partial
from pathlib import Path

from benchmarks import catalogue, depth, live, local_directories, views
from benchmarks.results import Part
from benchmarks.scale import SCALES
from benchmarks.session import compare

KEYS = ("plain", "bindfs", "gitguardfs")
LEFT_OUT = ("fio", "processes", "pytest", "cold")
"""Parts of names of workloads to leave out: those whose program the guest lacks, and those that
show little under emulation."""


def main() -> None:
    """Compare the views, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--title", required=True)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--scale", choices=SCALES, default="guest")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--only", action="append", default=[])
    given = parser.parse_args()
    workloads = [
        workload
        for workload in catalogue.everything()
        if catalogue.matches(workload.name, given.only)
        and not any(word in workload.name for word in LEFT_OUT)
    ]
    compared = [view for view in views.compared(("gitguardfs",)) if view.key in KEYS]
    part = Part(given.title, {view.key: view.label for view in compared})
    with tempfile.TemporaryDirectory(prefix="gitguardfs-bench-", dir="/var/tmp") as name:
        area = Path(name)
        if workloads:
            part = compare(
                given.title, given.source, area, compared, workloads, SCALES[given.scale],
                given.rounds, _say,
            )  # fmt: skip
        if catalogue.matches("cost by depth", given.only):
            part.by_depth = depth.compare(area, compared, given.rounds, _say, given.source)
        if catalogue.matches("local directories", given.only):
            (area / "local").mkdir()
            part.local = local_directories.measure(
                ("gitguardfs",),
                area / "local",
                given.source,
                local_directories.IN_THE_GUEST,
                given.rounds,
                _say,
            )
        if catalogue.matches(live.NAME, given.only):
            part.live = live.measure(
                ("gitguardfs",), area / "live", given.source, given.rounds, _say,
                partial(live.told_by, ("gitguard",)),
            )  # fmt: skip
    part.views["plain"] = "raw share"
    json.dump(asdict(part), sys.stdout)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
