"""Attacks that need more than one call at a time; the result is JSON on stdout.

``python -m tests.guest.inside.races VIEW SECOND ROUNDS TRANSPORT`` tries three things. Two
processes assemble a repository from its two ends, the second through another view of the same
share. The second view replaces a directory by a symlink to ``.git`` while the first is in it. Names
are made in many spellings.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path

from gitguardfs.doctor.attacks import FOLDED
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


def folded(view: Path) -> list[str]:
    """Return the pairs of names that could be made and that a host that folds case takes for HEAD
    and refs."""
    made = []
    for number, (head, other) in enumerate(FOLDED):
        spot = view / f"folded{number}"
        spot.mkdir()
        (spot / head).write_text("ref: refs/heads/main\n")
        try:
            (spot / other).mkdir()
            made.append(f"{head!r} {other!r}")
        except PermissionError:
            pass
    return made


NAMES = (".git", ".GIT", "GIT~1", ".git.", ".git::$INDEX_ALLOCATION", ".g\u200cit", ".git\\config")
ORDINARY = (".gitignore", ".github", "git", "repo.git", "git~2", "..git", " .git")
"""One of each kind: tests/unit/names/test_dotgit.py has all spellings."""


def names(view: Path) -> list[str]:
    """Return the names that were allowed or refused by mistake."""
    wrong = []
    for expected, table in ((False, NAMES), (True, ORDINARY)):
        for name in table:
            for make in (Path.mkdir, Path.touch):
                path = view / name
                try:
                    make(path)
                    made = True
                except PermissionError:
                    made = False
                if made != expected:
                    wrong.append(f"{make.__name__} {name!r}: {'made' if made else 'refused'}")
                if made:
                    os.rmdir(path) if path.is_dir() else os.unlink(path)
    return wrong


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
                "folded": act("agent", folded, here),
                "names": act("agent", names, here / "src"),
            }
        )
    )


if __name__ == "__main__":
    main()
