"""Runs the benchmarks that the options ask for, and writes the results."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NoReturn

from benchmarks import (
    about,
    catalogue,
    chart,
    cost,
    daemons,
    depth,
    fixtures,
    live,
    local_directories,
    own_git,
    report,
    requests,
    views,
)
from benchmarks import tree as trees
from benchmarks.options import Options, parse
from benchmarks.results import Part, Results, to_json
from benchmarks.session import compare
from benchmarks.work_reading import collect
from gitguardfs.base import installation

EXTRAS = (
    "cost of a request",
    "cost by depth",
    "requests",
    "start-up",
    "million",
    "own git",
    "local directories",
    live.NAME,
)
"""What is measured besides workloads."""
PROGRAMS = ("bindfs", "fio", "rg", "gcc", "make", "tar", "git")
GITGUARDFS = (sys.executable, "-m", "gitguardfs")

_begun = time.monotonic()


def say(text: str) -> None:
    """Print one line of progress."""
    print(f"[{time.monotonic() - _begun:6.1f}] {text}", file=sys.stderr, flush=True)


def main() -> int:
    """Measure and report. Returns 1 if a view gave a wrong result."""
    options = parse(sys.argv[1:])
    if os.geteuid() != 0:
        sys.exit("benchmarks: needs root, to mount and to drop caches")
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        sys.exit(f"benchmarks: not installed: {', '.join(missing)} (run.sh installs them)")
    signal.signal(signal.SIGTERM, _stop)
    try:
        results = _guest(options) if options.guest else _here(options)
    except KeyboardInterrupt:
        sys.exit("benchmarks: interrupted; everything is unmounted and removed")
    _write(options, results)
    return int(results.failed)


def _stop(*_: object) -> NoReturn:
    raise KeyboardInterrupt


@contextmanager
def area(place: Path) -> Iterator[Path]:
    """Make a directory for everything that a run makes, and remove it at the end."""
    path = Path(tempfile.mkdtemp(prefix="gitguardfs-bench-", dir=place))
    path.chmod(0o755)
    try:
        yield path
    finally:
        say(f"removing {path}")
        # Do not delete files of what is still mounted below it.
        subprocess.run(["rm", "-rf", "--one-file-system", path], check=False)


def _guest(options: Options) -> Results:
    from benchmarks import guest

    return guest.run(options, say)


def _here(options: Options) -> Results:
    scale = options.scale
    workloads = [w for w in catalogue.everything() if catalogue.matches(w.name, options.only)]
    extras = [name for name in EXTRAS if catalogue.matches(name, options.only)]
    if not workloads and not extras:
        names = [*(workload.name for workload in catalogue.everything()), *EXTRAS]
        sys.exit(f"benchmarks: --only matches nothing of: {', '.join(names)}")
    results = Results(about.describe(scale, options.rounds, options.place))
    compared = views.compared(GITGUARDFS)
    with area(options.place) as work:
        if workloads:
            source = work / "source"
            source.mkdir()
            say(f"making a tree of {scale.files:,} files in {source}")
            fixtures.make_source(source, scale)
            if catalogue.matches("pytest collection", options.only):
                collect(source / "suite", compiled=False)
            title = results.about["file system"]
            results.parts.append(
                compare(title, source, work, compared, workloads, scale, options.rounds, say)
            )
        mounting = [view for view in compared if view.key in ("bindfs", "gitguardfs")]
        if not results.parts:
            title = results.about["file system"]
            results.parts.append(Part(title, {view.key: view.label for view in compared}))
        if "cost by depth" in extras:
            results.parts[0].by_depth = depth.compare(
                work, [view for view in compared if view.key in depth.VIEWS], options.rounds, say
            )
        if "cost of a request" in extras:
            results.costs, results.costs_notes = cost.measure(
                views.lasting(GITGUARDFS), mounting, work, scale.requests, options.rounds, say
            )
        if "requests" in extras:
            forgetful = views.forgetful(GITGUARDFS)
            results.requests = requests.measure(forgetful, work, scale.requests, say)
        if "start-up" in extras:
            results.starts = daemons.starts(mounting, work, say)
        if "million" in extras and options.million:
            results.memory = daemons.memory(mounting, work, scale.known, say)
        if "own git" in extras:
            results.own_git = own_git.measure(GITGUARDFS, work, scale.files, options.rounds, say)
        if "local directories" in extras:
            (work / "local").mkdir()
            (work / "shared").mkdir()
            results.parts[0].local = local_directories.measure(
                GITGUARDFS,
                work / "local",
                work / "shared",
                local_directories.PACKAGES,
                options.rounds,
                say,
            )
        if live.NAME in extras:
            source = work / "live-source"
            trees.write(trees.plan(scale.files), source / "tree")
            live.add_types(source)
            told = partial(live.told_here, installation.command(program="gitguard"), source)
            results.parts[0].live = live.measure(
                GITGUARDFS, work / "live", source, options.rounds, say, told
            )
    results.about["took"] = f"{time.monotonic() - _begun:.0f} s"
    return results


def _write(options: Options, results: Results) -> None:
    text = report.render(results)
    outputs = [(options.json, to_json(results)), (options.table, text)]
    if any(part.outcomes for part in results.parts):
        outputs.append((options.chart, chart.render(results.parts)))
    for path, content in outputs:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        say(f"written: {path}")
    print(text, end="")


if __name__ == "__main__":
    sys.exit(main())
