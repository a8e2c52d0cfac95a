"""Measures what one request costs a daemon: Python calls, system calls, processor time.

Processor time, not time on the clock: that a client waits for a processor to wake up, or for
another program to leave it, is not in it. Both daemons run as installed and in turns. Several
threads send the requests, so that neither daemon waits for the next one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from benchmarks import cost_kinds, system_calls
from benchmarks.cost_kinds import KINDS, NAMES, Kind, Site
from benchmarks.figures import Cost
from benchmarks.rounds import FORGOTTEN, Say
from benchmarks.system_calls import NotPossibleError, Trace
from benchmarks.views import REPOSITORY, Daemon, View, mounted

TRACED = 40
"""Requests of each kind for which system calls are counted."""
UNSEEN = 2
"""How many of them strace may miss, as the first if the daemon goes on while it attaches."""
CLIENTS = 3
"""Threads that send requests."""
IDLE = 0.01
"""Seconds without any processor time after which a daemon is done. It answers a close or forgets a
name after the client's call has returned."""
IDLE_LIMIT = 10.0
CALLS_LIMIT = 120.0


class Bench:
    """One program: its two daemons, which serve the same directory, and the loops' places there."""

    def __init__(self, key: str, lasting: tuple[Daemon, Site], expiring: tuple[Daemon, Site]):
        self.key = key
        self._by_expires = {False: lasting, True: expiring}

    def daemon(self, kind: Kind) -> int:
        """Return the process that gets the requests of this kind."""
        return self._by_expires[kind.expires][0].process.pid

    def site(self, kind: Kind) -> Site:
        """Return where they are made."""
        return self._by_expires[kind.expires][1]


def measure(
    lasting: Sequence[View], expiring: Sequence[View], area: Path, times: int, rounds: int, say: Say
) -> tuple[list[Cost], list[str]]:
    """Return a row for each kind of request, and notes on what was left out or is wrong.

    ``lasting`` and ``expiring`` are views by the same programs; the kernel remembers all names for
    long in the first, and for a second in the others.
    """
    costs = {kind.name: Cost(kind.name, calls_goal=kind.calls_goal, own=kind.own) for kind in KINDS}
    notes: list[str] = []
    with _in_memory(area / "cost-source") as source, ExitStack() as stack:
        try:
            for name, number in _python_calls(source / "calls", area).items():
                costs[name].calls = number
        except subprocess.CalledProcessError:
            notes.append(
                "Python calls left out: benchmarks/python_calls.py fails, with the error on stderr"
            )
            say(notes[-1])
        for view in lasting:
            cost_kinds.make(source / view.key, times)
        cost_kinds.allow_descriptors(times * len(lasting))
        benches = [
            Bench(
                one.key,
                _serve(stack, one, source, area / f"cost-{one.key}-lasting", times),
                _serve(stack, other, source, area / f"cost-{one.key}-expiring", times),
            )
            for one, other in zip(lasting, expiring, strict=True)
        ]
        # The first round warms up: each daemon has found all names, and made names of each kind.
        for number in range(rounds + 1):
            for kind in KINDS:
                taken = _round(kind, benches, number, times)
                if number:
                    for key, each in taken.items():
                        costs[kind.name].processor.setdefault(key, []).append(each)
                words = "  ".join(f"{key} {each:.1f}" for key, each in taken.items())
                title = f"round {number} of {rounds}" if number else "warming up"
                say(f"{title}: µs of processor time for {kind.name}: {words}")
        try:
            for kind in KINDS:
                for bench in benches:
                    trace = _trace(kind, bench, area)
                    notes += _missing(kind, bench, trace)
                    counted = [trace.of(alternatives) for alternatives in kind.opcodes]
                    if all(each is not None for each in counted):
                        costs[kind.name].system_calls[bench.key] = sum(
                            each or 0 for each in counted
                        )
                    costs[kind.name].requests[bench.key] = _sent(trace)
        except NotPossibleError as error:
            notes.append(f"system calls {error}")
            say(notes[-1])
    return list(costs.values()), notes


@contextmanager
def _in_memory(source: Path) -> Iterator[Path]:
    """Mount a tmpfs: what is measured is the daemons' work, not a disk's."""
    source.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", source], check=True)
    try:
        yield source
    finally:
        subprocess.run(["umount", "-l", source], check=False)


def _python_calls(source: Path, area: Path) -> Mapping[str, int]:
    source.mkdir()
    mountpoint = area / "cost-nothing"
    mountpoint.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.python_calls", source, mountpoint],
        cwd=REPOSITORY, stdout=subprocess.PIPE, timeout=CALLS_LIMIT, check=True,
    )  # fmt: skip
    found: dict[str, int] = json.loads(done.stdout)
    return found


def _serve(
    stack: ExitStack, view: View, source: Path, mountpoint: Path, times: int
) -> tuple[Daemon, Site]:
    log = mountpoint.with_suffix(".log")
    daemon = stack.enter_context(mounted(view, source, mountpoint, log))
    site = cost_kinds.enter(daemon.path / view.key, times)
    return daemon, stack.enter_context(closing(site))


def _round(kind: Kind, benches: Sequence[Bench], number: int, times: int) -> Mapping[str, float]:
    """Return the microseconds of processor time for one request, by program."""
    start = number % len(benches)
    in_turn = [*benches[start:], *benches[:start]]
    run = f"run{number}"
    for bench in in_turn:
        kind.prepare(bench.site(kind), range(times), run)
    if kind.expires:
        time.sleep(FORGOTTEN)
    taken = {}
    for bench in in_turn:
        before = _idle(bench.daemon(kind))
        _run(kind, bench.site(kind), times, run)
        taken[bench.key] = (_idle(bench.daemon(kind)) - before) / times / 1000
    return {bench.key: taken[bench.key] for bench in benches}


def _run(kind: Kind, site: Site, times: int, run: str) -> None:
    """Send the requests from several threads, so that the daemon finds the next one waiting.

    Otherwise what a daemon does until the next one comes would be counted as well: ours polls.
    """
    shares = [range(times)[client::CLIENTS] for client in range(CLIENTS)]
    with ThreadPoolExecutor(CLIENTS) as clients:
        for done in [clients.submit(kind.run, site, share, run) for share in shares]:
            done.result()


def processor_time(pid: int) -> int:
    """Return the nanoseconds that a process has run so far, all threads, in itself and the kernel.

    That is utime and stime of /proc/PID/stat, which are rounded to 10 ms. The kernel gives the
    exact sum by a clock whose number clock_getcpuclockid(3) makes of the process id.
    """
    return time.clock_gettime_ns(~pid << 3 | 2)


def _idle(pid: int) -> int:
    """Wait until a daemon is done; return its processor time."""
    limit = time.monotonic() + IDLE_LIMIT
    last = processor_time(pid)
    while True:
        time.sleep(IDLE)
        now = processor_time(pid)
        if now == last:
            return now
        if time.monotonic() > limit:
            raise AssertionError(f"process {pid} is busy without a request")
        last = now


def _trace(kind: Kind, bench: Bench, area: Path) -> Trace:
    """Return what the daemon does for some requests. Raises NotPossibleError."""
    output = area / "strace"
    kind.prepare(bench.site(kind), range(TRACED), "traced")
    if kind.expires:
        time.sleep(FORGOTTEN)
    with system_calls.traced(bench.daemon(kind), output):
        kind.run(bench.site(kind), range(TRACED), "traced")
        _idle(bench.daemon(kind))
    return system_calls.parse(output.read_text().splitlines())


def _missing(kind: Kind, bench: Bench, trace: Trace) -> Iterator[str]:
    """Say so if the client's calls were not all requests: then the row is not what it says."""
    for alternatives in kind.opcodes:
        sent = sum(trace.requests[opcode] for opcode in alternatives)
        if abs(sent - TRACED) > UNSEEN:
            name = NAMES[alternatives[0]]
            yield f"{kind.name} on {bench.key} is wrong: {sent} {name} for {TRACED} calls"


def _sent(trace: Trace) -> dict[str, float]:
    """Return the requests that the kernel sent for one of the client's calls.

    One that tells the daemon to forget names may be for many of them.
    """
    return {
        NAMES.get(opcode, f"request {opcode}"): round(number / TRACED, 2)
        for opcode, number in sorted(trace.requests.items())
        if number / TRACED >= 0.1  # not what comes once
    }
