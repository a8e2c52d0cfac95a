"""The machine of a run, and the versions of the programs."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.scale import Scale
from benchmarks.views import REPOSITORY


def describe(scale: Scale, rounds: int, place: Path) -> dict[str, str]:
    """Return what a reader has to know to judge the figures."""
    return {
        "scale": scale.name,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "gitguardfs": _first("git", "-C", str(REPOSITORY), "describe", "--always", "--dirty"),
        "bindfs": _first("bindfs", "--version"),
        "Python": platform.python_version(),
        "kernel": platform.release(),
        "machine": f"{os.cpu_count()} cores, {_memory()}, {_processor()}",
        "file system": _first("findmnt", "-no", "FSTYPE", "-T", str(place)),
        "tree": f"{scale.files:,} files",
        "rounds": str(rounds),
        "pyfuse3": _first(sys.executable, "-c", "import pyfuse3; print(pyfuse3.__version__)"),
    }


def _first(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return (done.stdout.splitlines() or ["unknown"])[0]


def _memory() -> str:
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{size / (1 << 30):.0f} GiB"


def _processor() -> str:
    with open("/proc/cpuinfo") as information:
        names = [line.split(":", 1)[1].strip() for line in information if "model name" in line]
    return names[0] if names else platform.machine()
