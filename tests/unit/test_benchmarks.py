"""What the benchmarks measure: the way of a request, its system calls, and only what is right."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks import cost_kinds, rounds, system_calls, tree
from benchmarks.place import Place, Workload
from benchmarks.scale import GUEST

REPOSITORY = Path(__file__).resolve().parents[2]


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


def test_what_the_guest_runs_needs_the_standard_library_only() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import benchmarks.inside; "
        "print([m for m in sys.modules if m.split('.')[0] not in "
        "{*sys.stdlib_module_names, 'benchmarks', '__main__'}])"
    )
    command = [sys.executable, "-I", "-S", "-c", code, str(REPOSITORY)]
    assert subprocess.check_output(command, text=True).strip() == "[]"


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
