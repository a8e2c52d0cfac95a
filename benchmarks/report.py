"""The table, in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from benchmarks import local_directories
from benchmarks.figures import OURS, PLAIN, THEIRS, Cost, Goal, between, cost_goals, goals, ratio
from benchmarks.results import Part, Results
from benchmarks.rounds import Outcome

EMULATED = (
    "The guest is emulated (TCG), which makes Python look slower than it is on a real machine: "
    "interpreted code suffers most, and a request to the host costs less beside it."
)

COSTS = (
    "Python calls are of one request; so are system calls, without reading it, answering and "
    "waiting. Processor time is the daemon's, in itself and in the kernel, for one request and "
    "those that the kernel sends with it."
)
BY_DEPTH = (
    "One call in a directory so far below the top, more than a second after the last, so that the "
    "kernel asks again."
)


def render(results: Results) -> str:
    """Return the whole report."""
    lines = [f"# Benchmark, {results.about.get('scale', '')}", ""]
    lines += [f"- {key}: {value}" for key, value in results.about.items()]
    lines += ["", "Medians; in brackets the least and the greatest ratio of a single round.", ""]
    if results.guest:
        lines += [EMULATED, ""]
    for part in results.parts:
        if part.outcomes or part.left_out:
            reached = _goals(goals(part.outcomes, results.memory))
            lines += [f"## {part.title}", "", *reached, *_times(part)]
        lines += _by_depth(part) + _local(part) + _live(part)
    lines += _costs(results.costs, results.costs_notes)
    lines += _requests(results.requests)
    lines += _own_git(results.own_git)
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


def milliseconds(value: float) -> str:
    """Return a duration in milliseconds with three significant digits, or microseconds at least."""
    value *= 1000
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:.{digits}f} ms"


def _goals(reached: Sequence[Goal]) -> list[str]:
    rows = [["yes" if goal.met else "**no**", goal.wanted, goal.found] for goal in reached]
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


def _by_depth(part: Part) -> list[str]:
    if not part.by_depth:
        return []
    rows = [
        [
            outcome.name,
            *(
                "failed" if key in outcome.failures
                else milliseconds(statistics.median(outcome.seconds[key]))
                for key in part.views
                if key in outcome.seconds or key in outcome.failures
            ),
            str(between(outcome, OURS, THEIRS) or ""),
        ]
        for outcome in part.by_depth
    ]  # fmt: skip
    first = part.by_depth[0]
    labels = [
        label for key, label in part.views.items() if key in first.seconds or key in first.failures
    ]
    lines = [f"## {part.title}: cost by depth", "", BY_DEPTH, ""]
    lines += table(["call", *labels, f"{OURS} : {THEIRS}"], rows)
    for outcome in part.by_depth:
        lines += [f"- {outcome.name} on {key}: {why}" for key, why in outcome.failures.items()]
    return [*lines, ""]


def _costs(costs: Sequence[Cost], notes: Sequence[str]) -> list[str]:
    if not costs:
        return []
    has_system_calls = any(cost.system_calls for cost in costs)
    header = ["request", "Python calls", "goal"]
    if has_system_calls:
        header += [f"system calls {THEIRS}", OURS, "sent with it"]
    header += [f"processor time {THEIRS}", OURS, f"{OURS} : {THEIRS}"]
    rows = []
    for cost in costs:
        row = [cost.name, _number(cost.calls), _number(cost.calls_goal)]
        if has_system_calls:
            row += [_number(cost.system_calls.get(key)) for key in (THEIRS, OURS)]
            row.append(_sent(cost))
        for key in (THEIRS, OURS):
            each = cost.processor.get(key)
            row.append(f"{statistics.median(each):.1f} µs" if each else "")
        both = [cost.processor.get(key) for key in (OURS, THEIRS)]
        row.append(str(ratio(both[0], both[1])) if both[0] and both[1] else "")
        rows.append(row)
    lines = ["## Cost of a request", "", COSTS, ""]
    lines += [*_goals(cost_goals(costs)), *table(header, rows)]
    return [*lines, *(f"- {why}" for why in notes), ""]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _sent(cost: Cost) -> str:
    """Return the requests that came with the row's own; of both programs only if they differ."""
    words = {
        key: ", ".join(
            name if number <= 1.1 else f"{number:g} {name}"
            for name, number in cost.requests.get(key, {}).items()
            if name not in cost.own
        )
        for key in (THEIRS, OURS)
    }
    if words[THEIRS] == words[OURS]:
        return words[OURS]
    return "; ".join(f"{key}: {each or 'none'}" for key, each in words.items())


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


def _own_git(own_git: Mapping[str, Mapping[str, float]]) -> list[str]:
    keys = (PLAIN, "private", "readonly")
    rows = [
        [name, *(seconds(by_view[key]) if key in by_view else "" for key in keys)]
        for name, by_view in own_git.items()
    ]
    title = "## git on the agent's own repository"
    return [title, "", *table(["command", *keys], rows)] if rows else []


def _local(part: Part) -> list[str]:
    rows = [
        [
            name,
            *(seconds(by_view[key]) for key in local_directories.VIEWS),
            *(f"{by_view[OURS] / by_view[key]:.2f}" for key in local_directories.VIEWS[:-1]),
        ]
        for name, by_view in part.local.items()
    ]
    ratios = [f"{OURS} : {key}" for key in local_directories.VIEWS[:-1]]
    title = f"## Directories of the guest's own, {part.title}"
    return [title, "", *table(["work", *local_directories.VIEWS, *ratios], rows)] if rows else []


def _live(part: Part) -> list[str]:
    views = list(next(iter(part.live.values()), {}))
    rows = [
        [
            name,
            *(seconds(by_view[key]) for key in views),
            *(f"{by_view[key] / by_view[PLAIN]:.2f}" for key in views[1:]),
        ]
        for name, by_view in part.live.items()
    ]
    title = f"## Repeated metadata without and with live changes, {part.title}"
    header = ["work", *views, *(f"{key} : {PLAIN}" for key in views[1:])]
    return [title, "", *table(header, rows)] if rows else []


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
