"""One comparison, from the first mount to the last unmount; on this machine and in the guest."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import catalogue, fixtures, tree
from benchmarks.place import Place, Workload
from benchmarks.results import Part
from benchmarks.rounds import Say, measure
from benchmarks.scale import Scale
from benchmarks.views import PLAIN, View, mounted


def compare(
    title: str,
    source: Path,
    area: Path,
    views: Sequence[View],
    workloads: Sequence[Workload],
    scale: Scale,
    rounds: int,
    say: Say,
) -> Part:
    """Mount each view of ``source``, which is filled, below ``area`` and time the workloads."""
    part = Part(title, {view.key: view.label for view in views})
    chosen: list[Workload] = []
    for workload in workloads:
        if missing := catalogue.lacking(workload):
            part.left_out.append(f"{workload.name}: not installed: {', '.join(missing)}")
            say(f"left out: {part.left_out[-1]}")
        else:
            chosen.append(workload)
    outside = area / "outside"
    outside.mkdir()
    fixtures.make_outside(outside, scale)
    planned = tree.plan(scale.files)
    with ExitStack() as stack:
        places: list[Place] = []
        for view in views:
            path = source
            if view.key != PLAIN:
                daemon = mounted(view, source, area / view.key, area / f"{view.key}.log")
                path = stack.enter_context(daemon).path
            say(f"comparing every byte of the tree through {view.label}")
            tree.verify(planned, path / "tree")
            places.append(Place(path, source, view.key, outside, planned, scale))
        part.outcomes = measure(chosen, places, rounds, say)
        say("unmounting")
    return part
