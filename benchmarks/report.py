"""The table, in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.figures import OURS, PLAIN, THEIRS, between, goals
from benchmarks.results import Part, Results
from benchmarks.rounds import Outcome

EMULATED = (
    "The guest is emulated (TCG), which makes Python look slower than it is on a real machine: "
    "interpreted code suffers most, and a request to the host costs less beside it."
)


def render(results: Results) -> str:
    """Return the whole report."""
    lines = [f"# Benchmark, {results.about.get('scale', '')}", ""]
    lines += [f"- {key}: {value}" for key, value in results.about.items()]
    lines += ["", "Medians; in brackets the least and the greatest ratio of a single round.", ""]
    if results.guest:
        lines += [EMULATED, ""]
    for part in results.parts:
        lines += [f"## {part.title}", "", *_goals(results, part), *_times(part)]
    lines += _requests(results.requests)
    lines += _starts(results.starts)
    lines += _memory(results.memory)
    return "\n".join(lines).rstrip() + "\n"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table, with an empty one at the end."""
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines] + [""]


def seconds(value: float) -> str:
    """Return a duration with three significant digits."""
    return f"{value:.2f} s" if value >= 10 else f"{value * 1000:.{0 if value >= 0.1 else 1}f} ms"


def _goals(results: Results, part: Part) -> list[str]:
    rows = [
        ["yes" if goal.met else "**no**", goal.wanted, goal.found]
        for goal in goals(part.outcomes, results.memory)
    ]
    return table(["reached", "goal", "found"], rows) if rows else []


def _times(part: Part) -> list[str]:
    if not part.outcomes:
        return []
    views = list(part.views)
    ratios = [(OURS, THEIRS), (OURS, "bindfs-mt"), (OURS, PLAIN), ("gitguardfs-0", THEIRS)]
    ratios = [pair for pair in ratios if set(pair) <= set(views)]
    header = ["work", *part.views.values(), *(f"{ours} : {theirs}" for ours, theirs in ratios)]
    rows = [
        [
            outcome.name,
            *(_median(outcome, key) for key in views),
            *(str(between(outcome, *pair) or "") for pair in ratios),
        ]
        for outcome in part.outcomes
    ]
    lines = table(header, rows)
    for outcome in part.outcomes:
        lines += [f"- {outcome.name} on {key}: {why}" for key, why in outcome.failures.items()]
    lines += [f"- left out: {name}" for name in part.left_out]
    return [*lines, ""]


def _median(outcome: Outcome, key: str) -> str:
    if key in outcome.failures:
        return "failed"
    found = outcome.seconds.get(key)
    return seconds(statistics.median(found)) if found else ""


def _requests(requests: Mapping[str, Mapping[str, float]]) -> list[str]:
    if not requests:
        return []
    keys = list(next(iter(requests.values())))
    rows = [
        [
            name,
            *(f"{by_view[key]:.1f} µs" for key in keys),
            f"{by_view[OURS] / by_view[THEIRS]:.2f}",
        ]
        for name, by_view in requests.items()
    ]
    title = "## One request, with a kernel that remembers nothing"
    return [title, "", *table(["request", *keys, f"{OURS} : {THEIRS}"], rows)]


def _starts(starts: Mapping[str, Sequence[float]]) -> list[str]:
    rows = [
        [key, seconds(statistics.median(all_)), seconds(min(all_)), seconds(max(all_))]
        for key, all_ in starts.items()
    ]
    header = ["view", "median", "least", "greatest"]
    return ["## Start to first answer", "", *table(header, rows)] if rows else []


def _memory(memory: Mapping[str, Mapping[str, float]]) -> list[str]:
    rows = [
        [
            key,
            f"{found['known']:,.0f}",
            f"{found['bytes_before'] / 1e6:.1f} MB",
            f"{found['bytes_after'] / 1e6:.1f} MB",
            f"{found['bytes_per_file']:.0f}",
            f"{found['descriptors']:.0f}",
        ]
        for key, found in memory.items()
    ]
    header = ["view", "known files", "memory before", "after", "bytes a file", "descriptors"]
    return ["## The daemon with many known files", "", *table(header, rows)] if rows else []
