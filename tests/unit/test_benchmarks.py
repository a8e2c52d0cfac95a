"""The parts of the benchmarks that measure nothing: figures, report, chart, tree, options."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import (
    chart,
    cost_kinds,
    depth,
    figures,
    options,
    report,
    rounds,
    system_calls,
    tree,
    views,
)
from benchmarks.figures import Cost
from benchmarks.place import Place, Workload
from benchmarks.results import Part, Results, to_json
from benchmarks.rounds import Outcome
from benchmarks.scale import GUEST

REPOSITORY = Path(__file__).resolve().parents[2]


def outcome(name: str, *, warm: bool = False, **seconds: list[float]) -> Outcome:
    return Outcome(name, warm, {key.replace("_", "-"): each for key, each in seconds.items()})


def results(*outcomes: Outcome) -> Results:
    labels = {view.key: view.label for view in views.compared(("gitguardfs",))}
    found = Results({"scale": "quick", "kernel": "6"}, [Part("ext4", labels, list(outcomes))])
    found.requests = {"lookup": {"plain": 1.0, "bindfs": 10.0, "gitguardfs": 30.0}}
    found.starts = {"bindfs": [0.01, 0.02, 0.03]}
    found.memory = {
        "gitguardfs": {
            "known": 1e6, "bytes_before": 3e7, "bytes_after": 4.3e8, "bytes_per_file": 400.0,
            "descriptors": 60.0,
        }
    }  # fmt: skip
    return found


# ----------------------------------------------------------------------------- figures


def test_the_ratio_is_of_medians_and_the_spread_of_single_rounds() -> None:
    found = figures.ratio([1.0, 2.0, 9.0], [2.0, 4.0, 3.0])
    assert (found.middle, found.low, found.high) == (2.0 / 3.0, 0.5, 3.0)
    assert str(found) == "0.67 (0.50–3.00)"


def test_goals_that_are_reached() -> None:
    fast = outcome("a", warm=True, plain=[0.4], bindfs=[1.0], gitguardfs=[0.5])
    found = figures.goals([fast], {"gitguardfs": {"bytes_per_file": 500.0}})
    assert [goal.met for goal in found] == [True] * 4


def test_goals_that_are_missed() -> None:
    slow = outcome("a", warm=True, plain=[0.1], bindfs=[1.0], gitguardfs=[1.06])
    slow.failures["bindfs-mt"] = "wrong"
    found = figures.goals([slow], {"gitguardfs": {"bytes_per_file": 501.0}})
    assert [goal.met for goal in found] == [False] * 5
    assert "a 1.06" in found[0].found
    assert "a on bindfs-mt" in found[-1].found


def lookup(calls: int, ours: float) -> Cost:
    times = {"bindfs": [10.0, 10.0], "gitguardfs": [ours, ours]}
    sent = {"GETATTR": 1.0, "LOOKUP": 1.0}
    return Cost(
        "LOOKUP", calls, 12, {"bindfs": 1.0, "gitguardfs": 3.0}, times,
        {"bindfs": sent, "gitguardfs": sent | {"RELEASE": 0.75, "FORGET": 2.0}}, ("LOOKUP",),
    )  # fmt: skip


# ----------------------------------------------------------------------------- report, chart


def test_the_report_has_every_part() -> None:
    broken = outcome("b <&>", plain=[0.1])
    broken.failures["gitguardfs"] = "files: 1, not 2"
    text = report.render(results(outcome("find", bindfs=[2.0], gitguardfs=[1.0]), broken))
    assert "| find |  | 2000 ms |  | 1000 ms |" in text
    assert "0.50 (0.50–0.50)" in text
    assert "b <&> on gitguardfs: files: 1, not 2" in text
    assert "| lookup | 1.0 µs | 10.0 µs | 30.0 µs | 3.00 |" in text
    assert "| bindfs | 20.0 ms | 10.0 ms | 30.0 ms |" in text
    assert "1,000,000" in text
    assert "TCG" not in text


def test_the_report_has_the_cost_of_a_request() -> None:
    found = results()
    found.costs = [lookup(22, 30.0)]
    text = report.render(found)
    row = "| LOOKUP | 22 | 12 | 1 | 3 | bindfs: GETATTR; gitguardfs: GETATTR, RELEASE, 2 FORGET |"
    assert f"{row} 10.0 µs | 30.0 µs | 3.00 (3.00–3.00) |" in text
    assert json.loads(to_json(found))["cost_goals"][0]["met"] is False


def test_the_chart_is_well_formed() -> None:
    fast = outcome("a <&> b", bindfs=[2.0, 2.0], gitguardfs=[1.0, 1.2])
    slow = outcome("slow", bindfs=[1.0], gitguardfs=[20.0])
    part = Part("ext4 <&>", {}, [fast, slow, outcome("no figures")])
    root = ElementTree.fromstring(chart.render([part, part]))
    bars = [each.get("class") for each in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert bars == ["background", *["faster", "slower"] * 2]
    for bar in root.iter("{http://www.w3.org/2000/svg}rect"):
        assert 0 <= float(bar.get("x", "0")) <= chart.WIDTH
        assert float(bar.get("width", "0")) > 0


# ----------------------------------------------------------------------------- rounds


def place(path: Path, key: str) -> Place:
    (path / "scratch" / key).mkdir(parents=True, exist_ok=True)
    scale = replace(GUEST, warms_up=True)
    return Place(path, path, key, path, tree.plan(200), scale)


class Touch(Workload):
    name = "touch"

    def run(self, at: Place) -> float | None:
        (at.scratch / "file").touch()
        return 2.0 if at.key == "own" else None

    def check(self, at: Place) -> None:
        assert at.key != "wrong", "nothing is right"


def test_a_view_that_is_wrong_has_no_figures(tmp_path: Path) -> None:
    said: list[str] = []
    places = [place(tmp_path, key) for key in ("right", "wrong", "own")]
    (found,) = rounds.measure([Touch()], places, 2, said.append)
    assert {key: len(each) for key, each in found.seconds.items()} == {"right": 2, "own": 2}
    assert found.seconds["own"] == [2.0, 2.0]
    assert "nothing is right" in found.failures["wrong"]
    assert len(said) == 3
    # Kept until the end, so that no other directory gets one of these inode numbers.
    assert all(os.listdir(each.truth) == ["done"] for each in places)


# ----------------------------------------------------------------------------- tree, workloads


def test_a_tree_is_found_as_it_was_written(tmp_path: Path) -> None:
    planned = tree.Tree((tree.plan(1000).shards[0][:60],))
    tree.write(planned, tmp_path)
    tree.verify(planned, tmp_path)
    with_needle = [e for e in planned.entries if tree.NEEDLE in (tmp_path / e.path).read_bytes()]
    assert len(with_needle) == planned.needles > 0
    victim = tmp_path / planned.entries[7].path
    victim.write_bytes(b"?" + victim.read_bytes()[1:])
    with pytest.raises(AssertionError, match="does not show"):
        tree.verify(planned, tmp_path)


def test_what_the_guest_runs_needs_the_standard_library_only() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import benchmarks.inside; "
        "print([m for m in sys.modules if m.split('.')[0] not in "
        "{*sys.stdlib_module_names, 'benchmarks', '__main__'}])"
    )
    command = [sys.executable, "-I", "-S", "-c", code, str(REPOSITORY)]
    assert subprocess.check_output(command, text=True).strip() == "[]"


# ----------------------------------------------------------------------------- cost of a request


def test_the_way_of_every_kind_of_request_is_short(tmp_path: Path) -> None:
    """With the options of ``gitguard vm``. No request comes back up to the view."""
    (tmp_path / "source").mkdir()
    (tmp_path / "view").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.python_calls", "source", "view", "--walk"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, text=True,
        stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    found = {
        kind: tuple(map(int, numbers))
        for kind, *numbers in re.findall(
            r"^(\S.*): (\d+) calls, (\d+) rooms, (\d+) climbs", done.stdout, re.MULTILINE
        )
    }
    assert set(found) == {kind.name for kind in cost_kinds.KINDS}
    for kind in cost_kinds.KINDS:
        calls, rooms, climbs = found[kind.name]
        assert 1 < calls <= (kind.calls_goal or 60), (kind.name, done.stdout)
        assert (rooms <= 4, climbs) == (True, 0), (kind.name, done.stdout)
    assert os.listdir(tmp_path / "source/changing") == ["other.py"]
    assert "tree-moved1" in os.listdir(tmp_path / "source/trees")


DEVICE = r"5<\x2f\x64\x65\x76\x2f\x66\x75\x73\x65>"
STRACE = rf"""
7  read({DEVICE}, "\x2c\x00\x00\x00\x01\x00\x00\x00"..., 8192) = 44
7  newfstatat(3<\x2f>, "\x66", {{st_mode=S_IFREG|0644, ...}}, AT_SYMLINK_NOFOLLOW) = 0
8  futex(0x7fb8fc000ba0, FUTEX_WAIT_BITSET_PRIVATE, 0, NULL <unfinished ...>
8  rt_sigpending([], 8) = 0
7  writev({DEVICE}, [{{iov_base="\x90\x00"..., iov_len=16}}], 2) = 144
7  poll([{{fd={DEVICE}, events=POLLIN}}], 1, 0) = 0 (Timeout)
7  read({DEVICE}, <unfinished ...>
8  <... futex resumed>) = 0
7  <... read resumed>"\x2c\x00\x00\x00\x23\x00\x00\x00"..., 8192) = 44
7  openat(3<\x2f>, "\x67", O_WRONLY|O_CREAT <unfinished ...>
7  <... openat resumed>, 0644) = 9
7  read(9<\x2f\x67>, "\x2c\x00\x00\x00\x09\x00\x00\x00", 8) = 8
7  writev({DEVICE}, [{{iov_base="\x90\x00"..., iov_len=16}}], 2) = 144
7  read({DEVICE}, 0x7f, 8192) = -1 EAGAIN (Resource temporarily unavailable)
7  --- SIGTERM {{si_signo=SIGTERM, si_code=SI_USER}} ---
"""


def test_system_calls_are_counted_by_request() -> None:
    trace = system_calls.parse(STRACE.splitlines())
    assert trace.requests == {cost_kinds.LOOKUP: 1, cost_kinds.CREATE: 1}
    assert trace.calls == {cost_kinds.LOOKUP: [1], cost_kinds.CREATE: [2]}
    assert trace.of((cost_kinds.CREATE,)) == 2
    assert trace.of((cost_kinds.MKDIR,)) is None


# ----------------------------------------------------------------------------- cost by depth


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depth, "LISTED", 100)
    monkeypatch.setattr(depth, "REMOVED_EVERY", 10)
    monkeypatch.setattr(depth, "FORGOTTEN", 0.0)


@pytest.mark.usefixtures("_small")
def test_calls_are_timed_at_every_depth(tmp_path: Path) -> None:
    depth.make(tmp_path)
    found = depth.measure(dict.fromkeys(depth.VIEWS, tmp_path), 2, lambda text: None)
    assert len(found) == 2 * len(depth.DEPTHS) + 1
    for each in found:
        assert not each.failures
        assert {key: len(times) for key, times in each.seconds.items()} == dict.fromkeys(
            depth.VIEWS, 2
        )
    deepest = tmp_path.joinpath("deep", "plain-160", *["d"] * 160)
    assert os.listdir(deepest) == ["f"]
    assert len(os.listdir(tmp_path / "listed/plain")) == 100 - 2 * depth.REMOVED


# ----------------------------------------------------------------------------- options


def test_a_complete_run_writes_what_readme_shows() -> None:
    found = options.parse([])
    assert (found.scale.name, found.rounds, found.million) == ("full", 5, True)
    assert found.json == REPOSITORY / "benchmarks/results/results.json"
    assert found.chart == REPOSITORY / "benchmarks/results/chart.svg"


@pytest.mark.parametrize("arguments", [["--quick"], ["--only", "find"]])
def test_a_part_does_not_overwrite_the_whole(arguments: list[str]) -> None:
    found = options.parse(arguments)
    assert found.table == REPOSITORY / "build/benchmarks/results.md"


@pytest.mark.parametrize(
    "arguments", [["--rounds", "0"], ["--place", "/nowhere"], ["--only", ""], ["more"]]
)
def test_mistakes_are_told(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        options.parse(arguments)
    assert error.value.code == 2
    assert "error:" in capsys.readouterr().err
