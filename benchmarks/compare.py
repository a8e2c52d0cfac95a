"""Time everyday work on a plain directory, through bindfs and through gitguardfs, side by side.

Run as root: ``python benchmarks/compare.py [--rounds N]``. Each round runs every workload on
all three in turn, so that a machine that gets slower meanwhile slows all of them; what counts
is the ratio of medians. Makes its tree below /var/tmp and removes it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

DIRECTORIES = 250
FILES = 20
REPOSITORY = Path(__file__).resolve().parents[1]


def make_tree(top: Path) -> None:
    """5,000 small files in 250 directories."""
    for number in range(DIRECTORIES):
        directory = top / f"package{number % 16}" / f"module{number}"
        directory.mkdir(parents=True)
        for index in range(FILES):
            (directory / f"file{index}.py").write_bytes(b"x = 1\n" * (40 * (index + 1)))


def find(top: Path) -> None:
    """Names only."""
    subprocess.run(["find", top], stdout=subprocess.DEVNULL, check=True)


def ls_lr(top: Path) -> None:
    """Names and attributes."""
    subprocess.run(["ls", "-lR", top], stdout=subprocess.DEVNULL, check=True)


def read_all(top: Path) -> None:
    """Open, read and close each file."""
    for directory, _, names in os.walk(top):
        for name in names:
            with open(f"{directory}/{name}", "rb", buffering=0) as file:
                file.read()


def create_remove(top: Path) -> None:
    """1,000 small files made and removed."""
    for number in range(1000):
        with open(top / f"new{number}", "wb", buffering=0) as file:
            file.write(b"x" * 500)
    for number in range(1000):
        (top / f"new{number}").unlink()


def write_large(top: Path) -> None:
    """64 MB in 1 MB blocks."""
    with open(top / "large", "wb", buffering=0) as file:
        for _ in range(64):
            file.write(b"x" * 1_000_000)
    (top / "large").unlink()


def write_small(top: Path) -> None:
    """5,000 writes of 4 kB."""
    with open(top / "small", "wb", buffering=0) as file:
        for _ in range(5000):
            file.write(b"x" * 4096)
    (top / "small").unlink()


def missing(top: Path) -> None:
    """2,000 looks for 20 names that are not there, as module search does."""
    for number in range(2000):
        os.path.exists(top / f"no{number % 20}")


WORKLOADS: list[tuple[str, Callable[[Path], None]]] = [
    ("find", find),
    ("ls -lR", ls_lr),
    ("read 5,000 files", read_all),
    ("create and remove 1,000 files", create_remove),
    ("write 64 MB, 1 MB blocks", write_large),
    ("write 20 MB, 4 kB blocks", write_small),
    ("look for missing names", missing),
]


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (5)")
    rounds = parser.parse_args().rounds
    top = Path(tempfile.mkdtemp(prefix="gitguardfs-bench-", dir="/var/tmp"))
    views = {name: top / name for name in ("plain", "bindfs", "gitguardfs")}
    for view in views.values():
        view.mkdir()
    make_tree(views["plain"])
    try:
        subprocess.run(["bindfs", views["plain"], views["bindfs"]], check=True)
        command = [sys.executable, "-m", "gitguardfs", views["plain"], views["gitguardfs"]]
        subprocess.run(command, check=True, cwd=REPOSITORY, stderr=subprocess.DEVNULL)
        report(measure(views, rounds))
    finally:
        for name in ("bindfs", "gitguardfs"):
            subprocess.run(["umount", "-l", views[name]], check=False)
        shutil.rmtree(top, ignore_errors=True)


def measure(views: dict[str, Path], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Seconds by workload and view; the first round warms up and does not count."""
    seconds: dict[str, dict[str, list[float]]] = {}
    for number in range(rounds + 1):
        print(f"round {number} of {rounds}", file=sys.stderr)
        for label, work in WORKLOADS:
            for name, view in views.items():
                start = time.perf_counter()
                work(view)
                taken = time.perf_counter() - start
                if number:
                    seconds.setdefault(label, {}).setdefault(name, []).append(taken)
    return seconds


def report(seconds: dict[str, dict[str, list[float]]]) -> None:
    """Print medians and ratios."""
    print("| work | plain | bindfs | gitguardfs | gitguardfs : bindfs |\n|---|---|---|---|---|")
    for label, views in seconds.items():
        plain, bindfs, guarded = (statistics.median(views[name]) for name in views)
        print(
            f"| {label} | {plain * 1000:.0f} ms | {bindfs * 1000:.0f} ms "
            f"| {guarded * 1000:.0f} ms | {guarded / bindfs:.2f} |"
        )


if __name__ == "__main__":
    main()
