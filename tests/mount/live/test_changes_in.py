"""The command ``gitguard changes-in``: which views it tells, and what it says of them."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.live import Watch, changes_in, gitguard, tell
from tests.support.mounting import LIMIT, REPOSITORY, Mounted, area, gitguardfs, until

BEGIN: dict[str, object] = {"gitguard-changes": 1, "shares": ["one", "two"]}


@pytest.fixture
def views() -> Iterator[dict[str, Mounted]]:
    with area() as here:
        for name in ("one", "two"):
            (here / name).mkdir()
        with (
            gitguardfs(here / "one", here / "view one") as one,
            gitguardfs(here / "two", here / "view two") as two,
        ):
            yield {"one": one, "two": two}


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        gitguard("changes-in", *arguments), env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        input="", capture_output=True, text=True, timeout=LIMIT,
    )  # fmt: skip


def status(*views: Path) -> tuple[int, list[dict[str, Any]]]:
    done = run("--status", "--json", *views)
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def test_lines_go_to_the_view_of_their_share(views: dict[str, Mounted]) -> None:
    paths = {name: mounted.path for name, mounted in views.items()}
    assert status(*paths.values())[0] == 1
    watches = {name: Watch() for name in views}
    for name, watch in watches.items():
        watch.add(paths[name])
    with changes_in(f"one={paths['one']}", f"other={paths['two']}") as bridge:
        assert bridge.stdin is not None
        tell(bridge.stdin, {"in": "one", "made": "too early"}, BEGIN)
        for name, mounted in views.items():
            (mounted.source / f"of {name}").mkdir()
        lines: list[dict[str, object]] = [
            {"in": "two", "made": "of no view"},
            {"in": "one", "made": "of one"}, {"in": "other", "made": "of two"},
        ]  # fmt: skip
        whole = [{"in": "one", "whole": True}, {"in": "other", "whole": False, "why": "a\x1b"}]
        tell(bridge.stdin, *lines, *whole)
        for name, watch in watches.items():
            assert watch.until(f"CREATE/ of {name}") == [f"CREATE/ of {name}"]
        tell(bridge.stdin, {"beat": 1, "watched": {"one": 3, "other": 4}})
        rows = until(
            lambda: [row for row in status(*paths.values())[1] if row["arrives"]], "a beat"
        )
        by_path = {row["mountpoint"]: row for row in rows}
        one, two = (by_path[str(path)] for path in paths.values())
        assert (one["whole"], one["watched"]) == (True, 3)
        assert (two["whole"], two["watched"], two["why"]) == (False, 4, "a\x1b")
        tell(bridge.stdin, {"beat": 2, "watched": {"one": 3, "other": 4}})
        done = run("--status", *paths.values())
        assert done.returncode == 0 and "\x1b" not in done.stdout
    assert status(*paths.values())[0] == 1, "it has ended"
    for watch in watches.values():
        watch.close()


def test_another_version_ends_it_with_a_reason(views: dict[str, Mounted]) -> None:
    with changes_in(views["one"].path) as bridge:
        assert bridge.stdin is not None
        tell(bridge.stdin, {"gitguard-changes": 2})
        assert bridge.wait(LIMIT) == 3
