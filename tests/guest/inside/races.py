"""Attacks that need more than one call at a time; the result is JSON on stdout.

``python -m tests.guest.inside.races VIEW SECOND ROUNDS TRANSPORT`` tries three things. Two
processes assemble a repository from its two ends, the second through another view of the same
share. The second view replaces a directory by a symlink to ``.git`` while the first is in it.
Ordinary names that resemble ``.git`` are made.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path

from gitguardfs.doctor.attack_checks import refused_names
from tests.support import races
from tests.support.repos import SECRET
from tests.support.siege import act

SWAPS = 6
"""How often a directory is replaced while a process is in it; this is not a race."""


def in_two_steps(directory: Path, name: str, spare: Path) -> None:
    """Replace a directory by a prepared file in two steps, as an exchange does in one."""
    (directory / name).rmdir()
    (spare / "file").rename(directory / name)


def swap(view: Path, second: Path, rounds: int) -> int:
    """Return how often the secret was read."""
    leaks = 0
    for number in range(rounds):
        spot = view / f"swap{number}"
        spot.mkdir()
        (spot / "config").write_text("own")
        os.chdir(spot)
        (second / f"swap{number}").rename(second / f"gone{number}")
        (second / f"swap{number}").symlink_to(".git")
        for path in ("config", f"../swap{number}/config", str(spot / "config")):
            with suppress(OSError):
                leaks += SECRET in Path(path).read_text()
        os.chdir("/")
    return leaks


def main() -> None:
    view, second, rounds, transport = sys.argv[1:]
    if transport == "9p":  # has no renames with flags
        races.exchange = in_two_steps
    here, there, count = Path(view), Path(second), int(rounds)
    (only_head, only_other, both) = act("agent", races.race, here, there, count)
    print(
        json.dumps(
            {
                "heads": only_head,
                "others": only_other,
                "both": both,
                "leaks": act("agent", swap, here, there, SWAPS),
                "refused": act("agent", refused_names, f"{here}/src/ordinary"),
            }
        )
    )


if __name__ == "__main__":
    main()
