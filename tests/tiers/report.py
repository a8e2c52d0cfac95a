"""The text that a run prints: the plan, the progress, the table at the end."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence

from tests.guest import image as images
from tests.tiers import estimate
from tests.tiers.catalogue import Tier
from tests.tiers.running import Run

MOST = 20
"""Failed tests that are named at once, and at the end; one fault can fail them all."""
EVERY = 20.0
"""Seconds between two lines of progress in a log; on a terminal it is one second."""


def minutes(seconds: float) -> str:
    """Return minutes and seconds, as ``3:05``."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def plan(
    chosen: Sequence[Tier],
    left_out: Sequence[tuple[Tier, str]],
    is_selection: bool,
    workers: int,
) -> str:
    """Return what is about to run, how long it takes, and in how many workers a tier.

    With ``is_selection`` options of pytest may leave tests out.
    """
    about = "at most" if is_selection else "about"
    missing = estimate.missing_images(chosen)
    distributed = [tier.name for tier in chosen if tier.has_workers]
    lines = [f"This takes {about} {estimate.of(chosen)} on two processors. The tiers:"]
    lines += [f"  {tier.name:<14} {tier.about}" for tier in chosen]
    if distributed:
        lines.append(f"Workers for each of {', '.join(distributed)}: {workers}")
    if missing:
        lines.append(
            f"Images to make first, which are kept in {images.CACHE}: {', '.join(missing)}"
        )
    lines += [f"Left out: {tier.name} ({why})" for tier, why in left_out]
    return "\n".join(lines)


class Progress:
    """One line that is rewritten on a terminal, or a line every EVERY seconds in a log."""

    def __init__(self, runs: Sequence[Run], waiting: Sequence[Tier]) -> None:
        self._runs = runs
        self._waiting = waiting
        self._started = time.monotonic()
        self._shown = self._started
        self._on_terminal = sys.stdout.isatty()

    def say(self, text: str) -> None:
        """Print a line of its own."""
        self._clear()
        print(text, flush=True)

    def show(self) -> None:
        """Print how far all tiers are, if it is time to."""
        now = time.monotonic()
        if now - self._shown < (1.0 if self._on_terminal else EVERY):
            return
        self._shown = now
        text = self._text(now)
        if self._on_terminal:
            self._clear()
            print(text[: shutil.get_terminal_size().columns - 1], end="", flush=True)
        else:
            print(text, flush=True)

    def _clear(self) -> None:
        if self._on_terminal:
            print("\r\033[K", end="")

    def _text(self, now: float) -> str:
        whole = sum(run.tier.seconds for run in self._runs)
        whole += sum(tier.seconds for tier in self._waiting)
        done = sum(run.tier.seconds * run.fraction for run in self._runs)
        parts = [_state(run) for run in self._runs if not run.is_over]
        return f"[{minutes(now - self._started)}] {done / whole:4.0%}  {'  '.join(parts)}"


def _state(run: Run) -> str:
    done, failed = sum(run.outcomes.values()), run.outcomes["failed"]
    text = f"{run.tier.name} {done}/{run.collected}" if run.collected else f"{run.tier.name} ..."
    return f"{text} ({failed} failed)" if failed else text


def ending(run: Run) -> str:
    """One line for a tier that is over."""
    return f"{run.tier.name}: {_result(run)} after {minutes(run.seconds)}"


def hanging(run: Run) -> str:
    """Return what a tier is at whose limit is over."""
    if run.running:
        at = f"running: {', '.join(run.running)}"
    elif run.durations:
        at = f"last reported: {run.durations[-1][1]}"
    else:
        at = "no test has begun"
    return (
        f"{run.tier.name}: no end within {minutes(run.limit)}, so it is ended now; {at}\n"
        f"Its log, until this run ends: {run.log}"
    )


def details(run: Run) -> str:
    """Return what a failed tier printed; of pytest's output only the failures and the summary.

    Of a tier that hung, return all of it: the stacks of a test that hangs come before them.
    """
    text = run.log.read_text(errors="replace")
    for heading in ("= ERRORS =", "= FAILURES ="):
        begin = text.find(heading)
        if run.tier.is_pytest and begin >= 0 and not run.is_hung:
            text = text[text.rfind("\n", 0, begin) + 1 :]
            break
    return f"\n== what {run.tier.name} said\n{text}"


def table(
    runs: Sequence[Run],
    waiting: Sequence[Tier],
    left_out: Sequence[tuple[Tier, str]],
    seconds: float,
) -> str:
    """A row a tier, and the sums; the last line is for programs that look for one."""
    head = f"{'tier':<14}{'passed':>8}{'failed':>8}{'skipped':>9}{'time':>8}{'processor':>11}"
    lines = ["", head]
    for run in runs:
        counts = [run.outcomes[what] for what in ("passed", "failed", "skipped")]
        shown = [str(count) if run.tier.is_pytest or run.tier.count else "-" for count in counts]
        lines.append(
            f"{run.tier.name:<14}{shown[0]:>8}{shown[1]:>8}{shown[2]:>9}"
            f"{minutes(run.seconds):>8}{minutes(run.processor_seconds):>11}  {_result(run)}"
        )
    lines += [f"{tier.name:<14}{'not run':>8}" for tier in waiting]
    lines += [f"{tier.name:<14}{'not run':>8}  LEFT OUT ({why})" for tier, why in left_out]
    passed, failed, skipped = (
        sum(run.outcomes[what] for run in runs) for what in ("passed", "failed", "skipped")
    )
    processor = sum(run.processor_seconds for run in runs)
    lines.append(
        f"{'all':<14}{passed:>8}{failed:>8}{skipped:>9}{minutes(seconds):>8}{minutes(processor):>11}"
    )
    for run in runs:
        lines += [f"skipped: {n} of {run.tier.name}: {why}" for why, n in run.why_skipped.items()]
    failures = [name for run in runs for name in run.failures]
    lines += [f"failed: {name}" for name in failures[:MOST]]
    lines += [f"failed: {len(failures) - MOST} more"] if len(failures) > MOST else []
    lines += ["", f"tests: {passed} passed, {failed} failed, {skipped} skipped"]
    return "\n".join(lines)


def _result(run: Run) -> str:
    if run.is_stopped:
        return "stopped"
    if run.is_failed:
        return f"FAILED ({run.fault})"
    return "ok" if run.has_tested else "no test chosen"


def slowest(runs: Sequence[Run], count: int = 20) -> str:
    """Return the slowest tests; a shared fixture counts for the first test that uses it."""
    rows = sorted(((s, run.tier.name, name) for run in runs for s, name in run.durations))
    lines = [f"\nslowest {count} tests:"]
    lines += [f"{s:7.1f} s  {tier:<13} {name}" for s, tier, name in rows[: -count - 1 : -1]]
    return "\n".join(lines)


def phases(run: Run) -> str:
    """Return the seconds of a guest's phases, as its tests printed them."""
    _, heading, rest = run.log.read_text(errors="replace").partition("seconds of each phase")
    lines = rest.split("\n")[1:] if heading else []
    shown = [line for line in lines if line[:7].strip().replace(".", "").isdigit()]
    return "\n".join([f"seconds of each phase of {run.tier.name}:", *shown])
