"""Counts the system calls that a daemon makes for one request, with strace."""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

STOP_LIMIT = 15.0
DEVICE = "".join(f"\\x{byte:02x}" for byte in b"/dev/fuse")
"""The name of the device as strace -xx writes it."""
HEADER = 8
"""Bytes of a request that are needed: its length and its number, four bytes each."""
WAITING = frozenset(
    ("poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "epoll_pwait2",
     "restart_syscall", "futex")
)  # fmt: skip
"""Waiting for the next request. How often a daemon does that depends on how fast its client is,
which strace changes."""

_LINE = re.compile(r"(?P<pid>\d+)\s+(?:(?P<name>\w+)\(|<\.\.\. (?P<resumed>\w+) resumed>)")
_READ = re.compile(rf"read\(\d+<{re.escape(DEVICE)}>")
_BYTES = re.compile(r'"((?:\\x[0-9a-f]{2})+)"')


@dataclass
class Trace:
    """What a daemon did in one loop of a client."""

    requests: Counter[int] = field(default_factory=Counter)
    """Number of requests by opcode."""
    calls: dict[int, list[int]] = field(default_factory=dict)
    """By opcode, the system calls of each request, without reading it, answering and waiting."""

    def of(self, alternatives: Sequence[int]) -> float | None:
        """Return the median of a request with one of these opcodes; None if there was none."""
        every = [number for opcode in alternatives for number in self.calls.get(opcode, ())]
        return statistics.median(every) if every else None


class NotPossibleError(Exception):
    """System calls cannot be counted on this machine; the text says why."""


@contextmanager
def traced(pid: int, output: Path) -> Iterator[None]:
    """Let strace write to ``output`` what a process does. Raises NotPossibleError."""
    if shutil.which("strace") is None:
        raise NotPossibleError("left out: strace is not installed (apt-get install strace)")
    strace = subprocess.Popen(
        ["strace", "-f", "-y", "-xx", "-s", str(HEADER), "-o", output, "-p", str(pid)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert strace.stderr is not None
    try:
        said = strace.stderr.readline()
        if "attached" not in said:
            raise NotPossibleError(f"left out: strace cannot attach to the daemon: {said.strip()}")
        yield
    finally:
        strace.terminate()  # detaches; the daemon goes on
        strace.communicate(timeout=STOP_LIMIT)


def parse(lines: Sequence[str]) -> Trace:
    """Divide what strace wrote by requests.

    A thread that reads a request works on it until it reads the next one. The daemon's other
    threads, which do not read requests, are left out: on a local source they have no part in them.
    """
    trace = Trace()
    current: dict[str, int] = {}
    reading: set[str] = set()
    for line in lines:
        found = _LINE.match(line)
        if found is None:
            continue
        pid, name, resumed = found["pid"], found["name"], found["resumed"]
        if _READ.search(line):
            reading.add(pid)
        if pid in reading and "read" in (name, resumed):
            if (content := _BYTES.search(line)) is not None:
                header = bytes.fromhex(content[1].replace("\\x", ""))
                current[pid] = opcode = int.from_bytes(header[4:8], "little")
                trace.requests[opcode] += 1
                trace.calls.setdefault(opcode, []).append(0)
            if "unfinished" not in line:
                reading.discard(pid)
        elif (
            name is not None
            and pid in current
            and name not in WAITING
            and not (name in ("write", "writev") and f"<{DEVICE}>" in line)
        ):
            trace.calls[current[pid]][-1] += 1
    return trace
