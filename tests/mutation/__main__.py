"""The program behind tests/mutants.sh: apply each fault, run its tests, list the survivors."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from tests.mutation import AREAS, MUTANTS
from tests.mutation.copies import CHECKOUT, Copies, Ended, copies
from tests.mutation.mutant import Mutant

AT_ONCE = 2
"""Runs at a time: many tests wait more than they compute, and machines have two cores."""

BREAKS_ALL = {"gitguardfs/__init__.py": "raise AssertionError('broken on purpose')\n"}


class Outcome(Enum):
    NOTICED = "noticed"
    TIMEOUT = "timeout"
    SURVIVED = "SURVIVED"
    ERROR = "ERROR"


class Result(NamedTuple):
    mutant: Mutant
    outcome: Outcome
    ended: Ended


class Failure(Exception):
    """A run gave no result; the text says why."""


def changed(mutant: Mutant, tree: Path = CHECKOUT) -> dict[str, str]:
    """Return the file that the fault is put into, with its new text. Raises Failure if stale."""
    text = (tree / mutant.path).read_text()
    if (times := text.count(mutant.old)) != 1:
        raise Failure(f"{mutant.name} is stale: its old text stands {times} times in {mutant.path}")
    return {mutant.path: text.replace(mutant.old, mutant.new)}


def chosen(names: Sequence[str]) -> list[Mutant]:
    """Return the faults that are meant. Raises Failure for a name that none has."""
    for name in names:
        if not any(fnmatchcase(mutant.name, name) for mutant in MUTANTS):
            raise Failure(f"there is no fault {name!r}; see ./tests/mutants.sh --list")
    return [m for m in MUTANTS if not names or any(fnmatchcase(m.name, n) for n in names)]


def failing_tests(made: Copies, mutants: Sequence[Mutant], limit: float) -> dict[str, str]:
    """Run the tests without a fault. Returns those that fail, and what they print.

    Raises Failure if they do not fail on a copy that cannot be imported.
    """
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    mounting = [test for test in tests if test.startswith("mount/")]
    others = [test for test in tests if test not in mounting]
    whole = [part for part in (others, mounting) if part]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            broken = pool.submit(made.run, BREAKS_ALL, ["unit/linux/test_mountinfo.py"], limit)
            runs = [pool.submit(made.run, {}, t, limit * len(t), all_of=True) for t in whole]
            noticed, ended = broken.result(), [future.result() for future in runs]
        except BaseException:
            made.end()
            raise
    if noticed.code in (0, None):
        raise Failure("the tests do not run the copy: one that cannot be imported passes them")
    found: dict[str, str] = {}
    for end in ended:
        if end.code != 0 and not end.failed:
            raise Failure(f"the tests cannot be run:\n{end.output}")
        found |= dict.fromkeys(end.failed, end.output)
    return found


def uses(mutant: Mutant, failing: Iterable[str]) -> list[str]:
    """Return those of the failing tests that should notice a fault."""
    return [
        test
        for test in failing
        if any(re.match(rf"{re.escape(wanted)}($|::|\[)", test) for wanted in mutant.tests)
    ]


def run_all(made: Copies, mutants: Sequence[Mutant], limit: float) -> Iterator[Result]:
    """Run the tests of each fault. Yields results as they come."""

    def run(mutant: Mutant) -> Result:
        ended = made.run(changed(mutant, made.tree), mutant.tests, limit)
        return Result(mutant, _outcome(ended.code), ended)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        futures = [pool.submit(run, mutant) for mutant in mutants]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            made.end()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _outcome(code: int | None) -> Outcome:
    if code is None:
        return Outcome.TIMEOUT
    return {0: Outcome.SURVIVED, 1: Outcome.NOTICED}.get(code, Outcome.ERROR)


def show_list() -> None:
    """Print every fault, what it breaks, and what should notice."""
    for area, mutants in AREAS.items():
        print(f"{area} ({len(mutants)})")
        for mutant in mutants:
            print(f"  {mutant.name}\n      {mutant.breaks}\n      in {mutant.file}")
            print(textwrap.fill(", ".join(mutant.tests), 100, initial_indent="      by ",
                                subsequent_indent="         ", break_on_hyphens=False))  # fmt: skip
            if mutant.survives:
                print(f"      survives: {mutant.survives}")


def show_table(results: Sequence[Result], seconds: float) -> None:
    """Print a line an area, then the survivors."""
    outcomes = {result.mutant.name: result for result in results}
    print(f"\n{'':18}faults  noticed  survived  expected  error")
    total: Counter[str] = Counter()
    for area, mutants in AREAS.items():
        here = [outcomes[m.name] for m in mutants if m.name in outcomes]
        if here:
            counts = _count(here)
            total += counts
            _show_counts(area, counts)
    _show_counts("all", total)
    minutes, rest = divmod(round(seconds), 60)
    print(f"{'':18}in {minutes} min {rest} s")
    survivors = [r.mutant for r in outcomes.values() if r.outcome is Outcome.SURVIVED]
    for mutant in sorted(survivors, key=lambda m: MUTANTS.index(m)):
        print(f"\nsurvived: {mutant.name} ({mutant.file})\n  {mutant.breaks}")
        print(f"  expected: {mutant.survives}" if mutant.survives else "  no reason is known")
    for result in results:
        if result.mutant.survives and result.outcome in (Outcome.NOTICED, Outcome.TIMEOUT):
            print(f"\n{result.mutant.name} was noticed: its entry says why it would survive")


def _count(results: Sequence[Result]) -> Counter[str]:
    found: Counter[str] = Counter(faults=len(results))
    for result in results:
        if result.outcome is Outcome.SURVIVED:
            found["survived"] += 1
            found["expected"] += bool(result.mutant.survives)
        else:
            found["error" if result.outcome is Outcome.ERROR else "noticed"] += 1
    return found


def _show_counts(what: str, counts: Counter[str]) -> None:
    print(
        f"{what:18}{counts['faults']:6}{counts['noticed']:9}{counts['survived']:10}"
        f"{counts['expected']:10}{counts['error']:7}"
    )


def run(names: Sequence[str], limit: float) -> int:
    """Run the faults. Returns the exit status."""
    begin = monotonic()
    mutants = chosen(names)
    with copies() as made:
        for mutant in mutants:
            changed(mutant, made.tree)
        print(f"{len(mutants)} faults; first their tests without any of them", flush=True)
        failing = failing_tests(made, mutants, limit)
        for output in set(failing.values()):
            print(textwrap.indent(output, "    "))
        results = [
            Result(
                mutant, Outcome.ERROR, Ended(1, 0, f"its tests fail without it: {', '.join(tests)}")
            )
            for mutant in mutants
            if (tests := uses(mutant, failing))
        ]
        for mutant, _, ended in results:
            print(f"cannot be judged: {mutant.name}: {ended.output}")
        sound = [mutant for mutant in mutants if not uses(mutant, failing)]
        print(
            f"took {monotonic() - begin:.0f} s, {len(failing)} of them failed;"
            f" now the faults, {AT_ONCE} at a time",
            flush=True,
        )
        for result in run_all(made, sound, limit):
            results.append(result)
            mutant, outcome, ended = result
            by = f", by {ended.failed[0]}" if ended.failed else ""
            place = f"[{len(results):{len(str(len(mutants)))}}/{len(mutants)}]"
            print(
                f"{place} {outcome.value:8} {ended.seconds:5.1f} s  {mutant.name}{by}", flush=True
            )
            if outcome is Outcome.ERROR:
                print(textwrap.indent(ended.output[-4000:], "    "), flush=True)
    show_table(results, monotonic() - begin)
    if any(result.outcome is Outcome.ERROR for result in results):
        return 2
    return int(any(r.outcome is Outcome.SURVIVED and not r.mutant.survives for r in results))


def main() -> int:
    """Read the arguments. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="tests/mutants.sh", add_help=False)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--limit", type=float, default=300)
    arguments = parser.parse_args()
    if arguments.list:
        show_list()
        return 0
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup(1)
            signal.signal(number, signal.default_int_handler)
    os.umask(0o022)  # ordinary users read the copies
    try:
        return run(arguments.names, arguments.limit)
    except Failure as failure:
        print(f"tests/mutants.sh: {failure}", file=sys.stderr)
    except KeyboardInterrupt:
        print("tests/mutants.sh: ended", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
