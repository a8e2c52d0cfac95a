"""The views that are compared: how each is mounted and unmounted."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_LIMIT = 60.0
STOP_LIMIT = 15.0
PATIENCE = 2.0
"""Seconds to wait for a daemon to end with its mount. A mount namespace with a copy of that mount
keeps the daemon."""
REPOSITORY = Path(__file__).resolve().parents[1]

BINDFS = ("bindfs", "-f")
PLAIN = "plain"


@dataclass(frozen=True)
class View:
    """One view of a directory; without a command, the directory itself."""

    key: str
    label: str
    command: tuple[str, ...] = ()
    """The command that serves the view in the foreground, without source and mount point."""


@dataclass(frozen=True)
class Daemon:
    """A view that is mounted, and the daemon that serves it."""

    path: Path
    process: subprocess.Popen[bytes]
    seconds: float
    """From the daemon's start to its first answer."""

    def memory(self) -> int:
        """Return the daemon's resident bytes."""
        with open(f"/proc/{self.process.pid}/status") as status:
            line = next(line for line in status if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024

    def descriptors(self) -> int:
        """Return the number of its open descriptors."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


def compared(gitguardfs: Sequence[str]) -> list[View]:
    """Return all views of the comparison; ``gitguardfs`` is the command that starts it."""
    ours = (*gitguardfs, "-f", "--no-seal")
    return [
        View(PLAIN, "plain"),
        View("bindfs", "bindfs", BINDFS),
        View("bindfs-mt", "bindfs --multithreaded", (*BINDFS, "--multithreaded")),
        View("gitguardfs", "gitguardfs", ours),
        View("gitguardfs-0", "gitguardfs --cache-timeout 0", (*ours, "--cache-timeout", "0")),
    ]


def lasting(gitguardfs: Sequence[str]) -> list[View]:
    """Return views of which the kernel remembers everything for an hour, also missing names."""
    kept = "attr_timeout=3600,entry_timeout=3600,negative_timeout=3600"
    return [
        View("bindfs", "bindfs", (*BINDFS, "-o", kept)),
        View(
            "gitguardfs", "gitguardfs", (*gitguardfs, "-f", "--no-seal", "--cache-timeout", "3600")
        ),
    ]


def forgetful(gitguardfs: Sequence[str]) -> list[View]:
    """Return views without caching in the kernel, so that each request reaches the daemon."""
    return [
        View(PLAIN, "plain"),
        View("bindfs", "bindfs", (*BINDFS, "-o", "attr_timeout=0,entry_timeout=0")),
        View("gitguardfs", "gitguardfs", compared(gitguardfs)[-1].command),
    ]


@contextmanager
def mounted(view: View, source: Path, path: Path, log: Path) -> Iterator[Daemon]:
    """Serve ``source`` at ``path`` for as long as the block lasts."""
    path.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    environment.pop("NOTIFY_SOCKET", None)
    with open(log, "ab") as output:
        started = time.perf_counter()
        # A session of its own: ^C reaches this process alone, which then ends its daemons.
        process = subprocess.Popen(
            [*view.command, source, path], stdin=subprocess.DEVNULL, stdout=output,
            stderr=output, env=environment, start_new_session=True,
        )  # fmt: skip
    try:
        while not any(" - fuse" in line for line in _mounts_at(path)):
            if process.poll() is not None or time.perf_counter() - started > START_LIMIT:
                raise RuntimeError(f"{view.label} does not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.001)
        os.listdir(path)
        yield Daemon(path, process, time.perf_counter() - started)
    finally:
        _unmount(path)
        _end(process)
        _unmount(path)


def _mounts_at(path: Path) -> list[str]:
    """Return the lines of mountinfo for ``path``: of the view, and of what lies below it."""
    with open("/proc/self/mountinfo") as mounts:
        return [line for line in mounts if line.split()[4] == str(path)]


def _unmount(path: Path) -> None:
    for options in ([], ["-l"]):
        if not _mounts_at(path):
            return
        subprocess.run(["umount", *options, path], check=False, capture_output=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for a daemon whose mount is gone; stop it if it does not end."""
    for limit, insist in ((PATIENCE, process.terminate), (STOP_LIMIT, process.kill)):
        try:
            process.wait(limit)
            return
        except subprocess.TimeoutExpired:
            insist()
    process.wait(STOP_LIMIT)
