"""The results of a run, and their form as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.figures import OURS, PLAIN, THEIRS, Cost, between, cost_goals, goals
from benchmarks.rounds import Outcome


@dataclass
class Part:
    """Outcomes on one file system: the machine's, or one transport of the guest."""

    title: str
    views: dict[str, str]
    """Labels by key, in the order of columns."""
    outcomes: list[Outcome] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    by_depth: list[Outcome] = field(default_factory=list)
    """Single calls far below the top of the view; they take part in no goal."""
    local: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Work in directories of the guest's own: seconds by kind and view."""
    live: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Repeated metadata, without and with the host's word of changes: seconds by kind and view."""


@dataclass
class Results:
    """Everything that goes into the report."""

    about: dict[str, str]
    parts: list[Part] = field(default_factory=list)
    requests: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Microseconds by request and view."""
    costs: list[Cost] = field(default_factory=list)
    costs_notes: list[str] = field(default_factory=list)
    own_git: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Seconds by command and view."""
    starts: Mapping[str, list[float]] = field(default_factory=dict)
    memory: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    guest: bool = False

    @property
    def failed(self) -> bool:
        """Return whether a view gave a wrong result."""
        return any(
            outcome.failures for part in self.parts for outcome in (*part.outcomes, *part.by_depth)
        )


def to_json(results: Results) -> str:
    """Return all figures, with the ratios that the report shows."""
    whole: dict[str, Any] = asdict(results)
    for part, shown in zip(results.parts, whole["parts"], strict=True):
        shown["goals"] = [asdict(goal) for goal in goals(part.outcomes, results.memory)]
        for outcome, entry in zip(part.outcomes, shown["outcomes"], strict=True):
            pairs = ((OURS, THEIRS), (OURS, PLAIN), (OURS, "bindfs-mt"), ("gitguardfs-0", THEIRS))
            entry["ratios"] = {
                f"{ours}:{theirs}": asdict(found)
                for ours, theirs in pairs
                if (found := between(outcome, ours, theirs))
            }
    whole["cost_goals"] = [asdict(goal) for goal in cost_goals(results.costs)]
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"
