"""Turns seconds into ratios, and ratios into goals that were met or missed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.rounds import Outcome

SLOWER_LIMIT = 1.05
MEAN_LIMIT = 0.6
WARM_LIMIT = 1.5
BYTES_LIMIT = 500
PROCESSOR_LIMIT = 1.5

OURS, THEIRS, PLAIN = "gitguardfs", "bindfs", "plain"


@dataclass(frozen=True)
class Ratio:
    """The ratio of two medians, and the least and greatest ratio of a single round."""

    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.middle:.2f} ({self.low:.2f}–{self.high:.2f})"


@dataclass(frozen=True)
class Goal:
    """One goal, and the figure that was reached."""

    wanted: str
    found: str
    met: bool


@dataclass
class Cost:
    """What one kind of request costs a daemon."""

    name: str
    calls: int | None = None
    """Python calls of gitguardfs."""
    calls_goal: int | None = None
    system_calls: dict[str, float] = field(default_factory=dict)
    """By view."""
    processor: dict[str, list[float]] = field(default_factory=dict)
    """By view, microseconds of processor time, one figure a round."""
    requests: dict[str, dict[str, float]] = field(default_factory=dict)
    """By view, the requests that the kernel sent for one of the client's calls."""
    own: tuple[str, ...] = ()
    """Those of them that the row is about."""


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Compare two series whose figures of one place are from one round.

    The shorter one took part in the first rounds only, and these are compared.
    """
    together = list(zip(ours, theirs, strict=False))
    rounds = [mine / other for mine, other in together]
    medians = [statistics.median(series) for series in zip(*together, strict=True)]
    return Ratio(medians[0] / medians[1], min(rounds), max(rounds))


def between(outcome: Outcome, ours: str, theirs: str) -> Ratio | None:
    """Return the ratio of two views in a workload, or None if one of them has no figures."""
    mine, other = outcome.seconds.get(ours), outcome.seconds.get(theirs)
    return ratio(mine, other) if mine and other else None


def geometric_mean(values: Sequence[float]) -> float:
    """Return the mean of ratios: twice as fast and half as fast give 1."""
    return math.exp(statistics.fmean(math.log(value) for value in values))


def goals(
    outcomes: Sequence[Outcome], memory: Mapping[str, Mapping[str, float]], ours: str = OURS
) -> list[Goal]:
    """Return every goal for which there are figures."""
    found: list[Goal] = []
    to_bindfs = {o.name: r for o in outcomes if (r := between(o, ours, THEIRS))}
    if to_bindfs:
        slower = {n: r for n, r in to_bindfs.items() if r.middle > SLOWER_LIMIT}
        words = ", ".join(f"{name} {found_.middle:.2f}" for name, found_ in slower.items())
        found.append(
            Goal(
                f"never slower than bindfs by more than {SLOWER_LIMIT - 1:.0%}",
                f"{len(slower)} of {len(to_bindfs)} are: {words}"
                if slower
                else f"none of {len(to_bindfs)} is",
                not slower,
            )
        )
        mean = geometric_mean([each.middle for each in to_bindfs.values()])
        wanted = f"geometric mean at most {MEAN_LIMIT} of bindfs's time"
        found.append(Goal(wanted, f"{mean:.2f}", mean <= MEAN_LIMIT))
    warm = {o.name: r for o in outcomes if o.warm and (r := between(o, ours, PLAIN))}
    if warm:
        wanted = f"warm metadata at most {WARM_LIMIT} times the plain directory"
        words = ", ".join(f"{name} {each.middle:.2f}" for name, each in warm.items())
        found.append(Goal(wanted, words, all(r.middle <= WARM_LIMIT for r in warm.values())))
    if ours in memory:
        each = memory[ours]["bytes_per_file"]
        wanted = f"at most {BYTES_LIMIT} bytes of daemon memory a known file"
        found.append(Goal(wanted, f"{each:.0f}", each <= BYTES_LIMIT))
    failed = [f"{o.name} on {key}" for o in outcomes for key in o.failures]
    if failed:
        found.append(Goal("every result is right", f"wrong: {', '.join(failed)}", False))
    return found


def cost_goals(costs: Sequence[Cost]) -> list[Goal]:
    """Return the goals for the cost of a request for which there are figures."""
    found: list[Goal] = []
    counted = [(c.name, c.calls, c.calls_goal) for c in costs if c.calls is not None]
    limited = [(name, calls, goal) for name, calls, goal in counted if goal is not None]
    if limited:
        words = ", ".join(f"{name} {goal}" for name, _, goal in limited)
        over = [f"{name} {calls}" for name, calls, goal in limited if calls > goal]
        found.append(_none_of(f"Python calls at most: {words}", over, len(limited)))
    times = {
        c.name: ratio(c.processor[OURS], c.processor[THEIRS]).middle
        for c in costs
        if {OURS, THEIRS} <= set(c.processor)
    }
    if times:
        over = [f"{name} {each:.2f}" for name, each in times.items() if each > PROCESSOR_LIMIT]
        wanted = f"processor time at most {PROCESSOR_LIMIT} times bindfs's"
        found.append(_none_of(wanted, over, len(times)))
    return found


def _none_of(wanted: str, over: Sequence[str], number: int) -> Goal:
    if not over:
        return Goal(wanted, f"all {number}", True)
    return Goal(wanted, f"{len(over)} of {number} take more: {', '.join(over)}", False)
