"""Run tiers of the tests side by side: ``python -m tests.tiers TIER... [-- PYTEST-OPTIONS]``.

tests/run.sh has installed their programs and has isolated this process. An emulated guest needs its
processor's caches for itself. With guests, as many long tiers run at a time as there are
processors, each on its own.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.guest import image as images
from tests.support import leftovers, processors
from tests.support.mounting import AREA, REPOSITORY

PYTHON = sys.executable
ISOLATED = [PYTHON, str(REPOSITORY / "tests/support/isolated.py")]
LIMIT = 7200
"""Seconds for a tier. A test that hangs ends before, by pytest-timeout."""
STOP_LIMIT = 40.0
"""Seconds that tiers have to unmount their mounts when the run is stopped."""
EVERY = 20.0
"""Seconds between two lines of progress."""
NO_TESTS = 5
"""pytest's exit status when its options leave no test."""
MOST = 20
"""Failures that a tier names at once; one fault can fail all its tests."""
FAILURE = re.compile(
    r"^(?:\[gw\d+\] \[ *\d+%\] (?:FAILED|ERROR) .*|\S.* (?:FAILED|ERROR) +\[ *\d+%\])$",
    re.MULTILINE,
)
"""pytest's line about a test, with and without workers."""
SKIPPED = re.compile("^SKIPPED (.*)", re.MULTILINE)
DETAILS = re.compile(r"^=+ (?:ERRORS|FAILURES) =+$", re.MULTILINE)
LINT = """set -e
"$1/ruff" check .
"$1/ruff" format --check .
"$1/mypy"
command -v shellcheck >/dev/null || { echo "SKIPPED shellcheck is not installed"; exit ${CI:+1}; }
find . -name .venv -prune -o -name '*.sh' -print0 | xargs -0 shellcheck -x .ci/run
"""


@dataclass(frozen=True)
class Tier:
    """One part of the tests."""

    command: list[str]
    """pytest's arguments, or a program's with ``is_pytest=False``."""
    seconds: int
    """Its usual duration on one of two processors, beside other tiers."""
    has_workers: bool = False
    """Whether its modules go to several workers. A module stays whole: its tests share mounts."""
    is_short: bool = False
    """Whether it runs with the other short tiers, one after the other, on any processor."""
    has_machine: bool = False
    is_pytest: bool = True


OLDEST, SELINUX = "tests/guest/test_8_debian12.py", "tests/guest/test_9_selinux.py"
FAULTS, DOCKER = "tests/vm/test_3_faults.py", "tests/vm/test_5_docker.py"
PYFUSE3_PARTS = ("attacks", "fs", "mounting", "options")
"""Parts of tests/mount that run a second time, with the session that is not the default."""
TIERS = {
    "guest": Tier(["tests/guest", f"--ignore={OLDEST}", f"--ignore={SELINUX}"], 2000,
                  has_machine=True),
    "lint": Tier(["sh", "-c", LINT, "lint", str(Path(PYTHON).parent)], 20, is_short=True,
                 is_pytest=False),
    "mount": Tier(["tests/mount"], 1000, has_workers=True),
    "mount-pyfuse3": Tier(["--session=pyfuse3", *map("tests/mount/{}".format, PYFUSE3_PARTS)], 400,
                         has_workers=True),
    "quickstart": Tier(["./guest-setup/quickstart.sh"], 10, is_short=True, is_pytest=False),
    "packaging": Tier(["tests/packaging"], 130, is_short=True),
    "egress": Tier(["tests/egress"], 320, is_short=True),
    "desktop": Tier(["tests/desktop"], 300, is_short=True),
    "vm": Tier(["tests/vm", f"--ignore={FAULTS}", f"--ignore={DOCKER}"], 900, has_machine=True),
    "vm-faults": Tier([FAULTS], 320, has_machine=True),
    "unit": Tier(["tests/unit"], 450, has_workers=True),
    "guest-selinux": Tier([SELINUX], 280, has_machine=True),
    "guest-old": Tier([OLDEST], 200, has_machine=True),
    "vm-docker": Tier([DOCKER], 200, has_machine=True),
    "adapter": Tier(["tests/adapter"], 40, has_workers=True),
}  # fmt: skip
"""In the order in which they start: the longest first, so that all end at about the same time."""


class Run:
    """A tier that was started."""

    def __init__(
        self, name: str, lane: int, cpus: frozenset[int], area: Path, options: list[str]
    ) -> None:
        self.name, self.lane, self.tier = name, lane, TIERS[name]
        self.result = ""
        """Empty while it runs, "ok" after success."""
        self.seconds = 0.0
        self.outcomes: Counter[str] = Counter()
        self.skips: Counter[str] = Counter()
        self._is_selection = bool(options) and self.tier.is_pytest
        self._started = time.monotonic()
        self._log, self._report = area / f"{name}.log", area / f"{name}.xml"
        self._failures = 0
        command = self.tier.command
        if self.tier.is_pytest:
            command = [PYTHON, "-m", "pytest", "-v", f"--junit-xml={self._report}",
                       f"--basetemp={area}/{name}", *command, *options]  # fmt: skip
        if self.tier.has_workers:
            worker = f"{workers(len(cpus))}*popen//python={shlex.join([*ISOLATED, PYTHON])}"
            # A test that ends its worker is given to the next one, without end.
            command += ["--dist=loadfile", f"--tx={worker}", "--max-worker-restart=2"]
        limit = ["timeout", "--foreground", "--signal=INT", "--kill-after=60", str(LIMIT)]
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(
                [*limit, *ISOLATED, *command], cwd=REPOSITORY, stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                preexec_fn=partial(os.sched_setaffinity, 0, cpus),
            )  # fmt: skip

    def look(self) -> None:
        """Print the tests that have failed since the last look, and at the end the reasons."""
        if self.result:
            return
        status = self.process.poll()
        text = self._text()
        failures = FAILURE.findall(text)
        for line in failures[self._failures : MOST]:
            print(line, flush=True)
        self._failures = len(failures)
        if status is None:
            return
        self.seconds = time.monotonic() - self._started
        has_report = not self.tier.is_pytest or self._read_report()
        self.skips.update(SKIPPED.findall(text) if not self.tier.is_pytest else ())
        if status == 0 and has_report:
            self.result = "ok"
        elif status == NO_TESTS and self._is_selection:
            self.result = "no test chosen"
        else:
            self.result = f"FAILED (exit status {status}{'' if has_report else ', not finished'})"
            begin = DETAILS.search(text)
            print(f"\n== {self.name}", text[begin.start() if begin else 0 :], sep="\n")
        print(f"{self.name}: {self.result} after {minutes(self.seconds)}", flush=True)

    @property
    def is_failed(self) -> bool:
        """Whether it has ended and not well."""
        return self.result.startswith("FAILED")

    @property
    def has_tested(self) -> bool:
        """Whether a test of it has passed or failed."""
        return bool(self.outcomes["passed"] + self.outcomes["failed"]) or not self.tier.is_pytest

    def _text(self) -> str:
        return self._log.read_text(errors="replace")

    def _read_report(self) -> bool:
        """Count the tests in pytest's report; False if pytest has not finished it."""
        with suppress(FileNotFoundError, ElementTree.ParseError):
            for case in ElementTree.parse(self._report).iter("testcase"):
                kinds = {child.tag: child for child in case}
                bad = "failure" in kinds or "error" in kinds
                skip = kinds.get("skipped")
                self.outcomes["failed" if bad else "passed" if skip is None else "skipped"] += 1
                if skip is not None:
                    self.skips[skip.get("message", "")] += 1
            return True
        return False

    def progress(self) -> str:
        """Return its name and how many percent of its tests have ended."""
        done = re.findall(r"\[ *(\d+%)\]", self._text())
        return f"{self.name} {done[-1] if done else '...'}"

    def details(self) -> str:
        """Return the slowest tests and the phases of a guest, as pytest printed them."""
        found = re.findall(r"^=+ (?:slowest|guest:) .*(?:\n(?!=).*)*", self._text(), re.MULTILINE)
        return "\n".join([f"\n{self.name}:", *found])


def workers(count: int) -> int:
    """Return the number of workers on some processors. Tests also wait: two at least."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(2, min(count, memory >> 30, 8))


def lanes(names: list[str], every: set[int]) -> list[tuple[frozenset[int], bool]]:
    """Return, for each tier that may run at a time, its processors, and whether it is short.

    With more processors than tiers, a tier may use all of them.
    """
    long = [TIERS[name] for name in names if not TIERS[name].is_short]
    count = min(len(long), len(every)) if any(tier.has_machine for tier in long) else 1
    own = [frozenset({number}) for number in sorted(every)]
    found = own if 1 < count == len(own) else [frozenset(every)] * count
    return [*((each, False) for each in found), (frozenset(every), True)]


def minutes(seconds: float) -> str:
    """Return a duration as ``3:05``."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def run(names: list[str], area: Path, options: list[str], signals: list[int]) -> list[Run]:
    """Run the tiers until all have ended or a signal has come."""
    started = shown = time.monotonic()
    waiting, runs = list(names), list[Run]()
    every = lanes(names, os.sched_getaffinity(0))
    while not signals and (waiting or not all(each.result for each in runs)):
        busy = {each.lane for each in runs if not each.result}
        for lane, (cpus, is_short) in enumerate(every):
            name = next((name for name in waiting if TIERS[name].is_short == is_short), None)
            if name is not None and lane not in busy:
                waiting.remove(name)
                runs.append(Run(name, lane, cpus, area, options))
        time.sleep(1)
        for each in runs:
            each.look()
        if time.monotonic() - shown > EVERY:
            shown = time.monotonic()
            running = [each.progress() for each in runs if not each.result]
            print(f"[{minutes(shown - started)}]", *running, sep="  ", flush=True)
    for each in runs:
        if not each.result:
            each.result = "stopped"
            each.process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + STOP_LIMIT
    while time.monotonic() < deadline and any(each.process.poll() is None for each in runs):
        time.sleep(0.2)
    return runs


def show(runs: list[Run], seconds: float) -> None:
    """Print a line for each tier, the reasons of skips, and the sums."""
    print(f"\n{'tier':<14}{'passed':>8}{'failed':>8}{'skipped':>9}{'time':>8}")
    for each in runs:
        counts = "".join(f"{each.outcomes[key]:>8}" for key in ("passed", "failed", "skipped"))
        print(f"{each.name:<14}{counts} {minutes(each.seconds):>8}  {each.result}")
    for each in runs:
        for reason, count in each.skips.items():
            print(f"skipped: {count} of {each.name}: {reason}")
    total = sum((each.outcomes for each in runs), Counter[str]())
    print(f"\ntests: {total['passed']} passed, {total['failed']} failed,"
          f" {total['skipped']} skipped in {minutes(seconds)}", flush=True)  # fmt: skip


def main(arguments: list[str]) -> int:
    """Run the chosen tiers. Return 0, 1 if one failed or nothing was tested, 130 if stopped."""
    signals: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup(1)
            signal.signal(number, lambda number, _: signals.append(number))
    sys.stdout.reconfigure(errors="backslashreplace")  # a test's output has any character
    at = arguments.index("--") if "--" in arguments else len(arguments)
    options = arguments[at + 1 :]
    if has_durations := "--durations" in arguments[:at]:
        os.environ["PYTEST_ADDOPTS"] = "--durations=20"
    names = [name for name in TIERS if name in arguments[:at]]
    seconds = sum(TIERS[name].seconds for name in names) / 2
    print(f"This takes about {minutes(seconds)} on two processors:", *names, flush=True)
    started = time.monotonic()
    leftovers.remove_stale(images.NEW, images.CACHE)
    # Not the name of the program: tests find its processes by their command lines.
    with leftovers.directory("ggfs-tests-", "/var/tmp") as area:
        area.chmod(0o755)
        # ext4 then puts each directory of a test elsewhere on the disk. Side by side, their new
        # files would have to pass over the inodes of removed ones, which ext4 leaves for seconds.
        subprocess.run(["chattr", "+T", area], capture_output=True, check=False)
        os.environ[AREA] = str(area)
        processors.name_those_of_the_run()
        runs = run(names, area, options, signals)
        if has_durations:
            print(*(each.details() for each in runs), sep="\n")
        show(runs, time.monotonic() - started)
    if signals:
        return 130
    return int(any(each.is_failed for each in runs) or not any(each.has_tested for each in runs))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
