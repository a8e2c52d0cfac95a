"""What became of a tier is what is reported, however its processes end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support import leftovers
from tests.support.mounting import REPOSITORY, until
from tests.tiers import report, running
from tests.tiers.allotment import Lane
from tests.tiers.catalogue import Tier
from tests.tiers.running import Run

EVENTS = [sys.executable, "-m", "pytest", "-p", "tests.tiers.events"]
LIMIT = 120.0
NEVER = 10 * LIMIT


def started(work: Path, text: str, *options: str, limit: float = NEVER, **more: bool) -> Run:
    """Start a tier whose only module is ``text``, on one processor."""
    module = work / "test_it.py"
    module.write_text(textwrap.dedent(text))
    tier = Tier("name", "about", [*EVENTS, str(module)], 1.0, **more)
    return _started(tier, work, limit, *options)


def ended(work: Path, text: str, *options: str, has_workers: bool = False) -> Run:
    return _ended(started(work, text, *options, has_workers=has_workers))


def started_command(work: Path, script: str, count: str = "", limit: float = NEVER) -> Run:
    tier = Tier("name", "about", ["sh", "-c", script], 1.0, is_pytest=False, count=count)
    return _started(tier, work, limit)


def command(work: Path, script: str, count: str = "") -> Run:
    return _ended(started_command(work, script, count))


def _started(tier: Tier, work: Path, limit: float, *options: str) -> Run:
    lane = Lane(0, frozenset({min(os.sched_getaffinity(0))}))
    run = Run(tier, lane, work / "run", limit)
    run.start(list(options))
    return run


def _ended(run: Run) -> Run:
    until(lambda: run.look() is not None and run.is_over, "the tier is over", LIMIT)
    return run


def names(failures: list[str]) -> list[str]:
    return [failure.partition("::")[2] for failure in failures]


def last_word(run: Run) -> str:
    (line,) = [line for line in report.table([run], [], [], 1.0).split("\n") if "name " in line]
    return line.split("  ")[-1]


def test_tests_that_pass_make_a_tier_ok(tmp_path: Path) -> None:
    run = ended(tmp_path, "def test_a(): pass\ndef test_b(): pass\n")
    assert (run.collected, run.outcomes, run.failures) == (2, {"passed": 2}, [])
    assert not run.is_failed and last_word(run) == "ok"


def test_a_failure_in_any_phase_is_counted_once_and_named(tmp_path: Path) -> None:
    run = ended(
        tmp_path,
        """
        import pytest
        @pytest.fixture
        def before(): assert False, "the first reason"
        @pytest.fixture
        def after():
            yield
            assert False, "the last reason"
        def test_a(before): pass
        def test_b(after): assert False
        def test_c(after): pass
        def test_d(): pass
        """,
    )
    assert run.is_failed and run.outcomes == {"failed": 3, "passed": 1}
    assert names(run.failures) == ["test_a", "test_b", "test_c"]
    assert last_word(run) == "FAILED (exit status 1)"
    assert "the first reason" in report.details(run) and "the last" in report.details(run)


def test_a_module_that_cannot_be_read_is_a_failure(tmp_path: Path) -> None:
    run = ended(tmp_path, "import nothing_of_this_name\ndef test_a(): pass\n")
    assert run.is_failed and run.outcomes == {"failed": 1} and len(run.failures) == 1
    assert "nothing_of_this_name" in report.details(run)


IN_THE_MIDDLE = "def test_a(): pass\ndef test_b(): __import__('os')._exit(0)\n"
BEFORE_THE_FIRST = "__import__('os')._exit(0)\n"
BY_A_SIGNAL = "def test_a(): pass\ndef test_b(): __import__('os').kill(0, 9)\n"
AFTER_A_FAILURE = (
    "import atexit, os\ndef test_a(): atexit.register(os._exit, 0)\ndef test_b(): assert False\n"
)
SELECTION = ("-k", "test_a or test_b")


@pytest.mark.parametrize(
    ("text", "options", "fault"),
    [
        (IN_THE_MIDDLE, (), "pytest did not finish, 1 tests did not run"),
        (IN_THE_MIDDLE, SELECTION, "pytest did not finish"),
        (BEFORE_THE_FIRST, (), "pytest did not finish, nothing was tested"),
        (BEFORE_THE_FIRST, SELECTION, "pytest did not finish, nothing was tested"),
        (BY_A_SIGNAL, (), "exit status -9, 1 tests did not run"),
        (AFTER_A_FAILURE, (), "pytest did not finish"),
        (AFTER_A_FAILURE, SELECTION, "pytest did not finish"),
    ],
    ids=["in the middle", "and chosen", "before the first", "and chosen first", "by a signal",
         "after a failure", "and chosen last"],
)  # fmt: skip
def test_a_tier_that_ends_halfway_has_failed(
    tmp_path: Path, text: str, options: tuple[str, ...], fault: str
) -> None:
    run = ended(tmp_path, text, *options)
    assert run.is_failed and last_word(run) == f"FAILED ({fault})"


HANGS = """
import threading
def wait_for_ever(): threading.Event().wait()
def test_a(): assert False, "the first reason"
def test_b(): wait_for_ever()
def test_c(): pass
"""


def hanging(work: Path, **more: bool) -> Run:
    """A tier in whose second test its limit is over, after the stacks were printed."""
    run = started(work, HANGS, limit=1.0, **more)
    until(lambda: "in wait_for_ever" in run.log.read_text(), "its stacks are in the log", LIMIT)
    until(lambda: "::test_b" in (run.work / "events").read_text(), "it has begun", LIMIT)
    assert names(run.look()) == ["test_a"] and names(run.running) == ["test_b"]
    assert run.running[0] in report.hanging(run) and str(run.log) in report.hanging(run)
    return run


def test_a_tier_that_hangs_is_ended_and_its_test_and_stacks_are_shown(tmp_path: Path) -> None:
    run = _ended(hanging(tmp_path))
    said = "no end within 1 seconds, exit status 2, 2 tests did not run"
    assert last_word(run) == f"FAILED ({said})"
    details = report.details(run)
    assert details.index("in wait_for_ever") < details.index("the first reason")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for workers' namespaces")
def test_a_tier_whose_worker_hangs_is_killed_if_it_does_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pytest-xdist waits some seconds for a worker that hangs."""
    monkeypatch.setattr(running, "STOP_LIMIT", 0.0)
    run = _ended(hanging(tmp_path, has_workers=True))
    said = "no end within 1 seconds, exit status -9, 2 tests did not run"
    assert last_word(run) == f"FAILED ({said})"


def test_options_do_not_excuse_a_tier_that_hangs_after_its_last_test(tmp_path: Path) -> None:
    """Told to end, it does so with 0."""
    run = started(
        tmp_path,
        """
        import atexit, pathlib, threading
        def wait():
            pathlib.Path(__file__).with_name("waits").touch()
            threading.Event().wait()
        def test_a(): atexit.register(wait)
        """,
        *SELECTION,
        limit=0.5,
    )
    until((tmp_path / "waits").exists, "it hangs", LIMIT)
    _ended(run)
    assert last_word(run) == "FAILED (no end within 0 seconds)"
    assert report.hanging(run).splitlines()[0].endswith("last reported: " + run.durations[0][1])


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("trap '' TERM; touch {begun}; sleep 600 & wait; wait", -9),
        ("(trap '' TERM; touch {begun}; exec sleep 600) & wait", -15),
    ],
    ids=["itself", "its child"],
)
def test_what_does_not_end_in_time_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, status: int
) -> None:
    monkeypatch.setattr(running, "STOP_LIMIT", 0.0)
    begun = tmp_path / "begun"
    run = started_command(tmp_path, script.format(begun=begun), limit=0.0)
    until(begun.exists, "it ignores the signal", LIMIT)
    _ended(run)
    assert last_word(run) == f"FAILED (no end within 0 seconds, exit status {status})"
    until(lambda: not _has_group(run._process.pid), "its children are gone", LIMIT)


def _has_group(number: int) -> bool:
    with suppress(ProcessLookupError):
        os.killpg(number, 0)
        return True
    return False


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for workers' namespaces")
def test_a_test_that_ends_its_workers_fails_and_does_not_go_on_for_ever(tmp_path: Path) -> None:
    run = ended(
        tmp_path,
        """
        import os
        def test_a():
            assert os.getppid() == 1
            assert len(os.sched_getaffinity(0)) == 1
        def test_b(): os._exit(0)
        def test_c(): pass
        """,
        has_workers=True,
    )
    assert run.outcomes == {"passed": 1, "failed": 1} and names(run.failures) == ["test_b"]
    assert last_word(run) == "FAILED (exit status 1, 1 tests did not run)"
    assert "2/2 workers" in run.log.read_text()


def test_options_may_leave_no_test_of_a_tier(tmp_path: Path) -> None:
    run = ended(tmp_path, "def test_a(): pass\n", "-k", "other")
    assert not run.is_failed and not run.has_tested and last_word(run) == "no test chosen"


def test_options_that_pytest_does_not_take_are_a_failure(tmp_path: Path) -> None:
    run = ended(tmp_path, "def test_a(): pass\n", "--no-such-option")
    assert last_word(run) == "FAILED (exit status 4, nothing was tested)"


def test_without_options_a_tier_without_tests_has_failed(tmp_path: Path) -> None:
    assert last_word(ended(tmp_path, "")) == "FAILED (exit status 5, nothing was tested)"


def test_a_skip_is_counted_with_its_reason(tmp_path: Path) -> None:
    run = ended(tmp_path, "import pytest\ndef test_a(): pytest.skip('no disk')\n")
    assert run.outcomes == {"skipped": 1} and run.why_skipped == {"no disk": 1}
    assert "skipped: 1 of name: no disk" in report.table([run], [], [], 1.0)


@pytest.mark.parametrize(
    ("script", "count", "said"),
    [
        ("true", "", "ok"),
        ("exit 3", "", "FAILED (exit status 3)"),
        ("echo ok; echo ok", "ok", "ok"),
        ("echo not ok", "ok", "FAILED (nothing was tested)"),
        ("echo ok; exit 1", "ok", "FAILED (exit status 1)"),
        ("kill -TERM $$", "", "FAILED (exit status -15)"),
    ],
)
def test_a_program_s_status_and_checks_decide(
    tmp_path: Path, script: str, count: str, said: str
) -> None:
    assert last_word(command(tmp_path, script, count)) == said


RUNNER = """
import sys
from pathlib import Path
from tests.tiers import __main__ as runner
from tests.tiers.catalogue import Tier
def script(name, text, **more):
    return Tier(name, name, ["sh", "-c", text], 1.0, is_pytest=False, **more)
runner.PLACE = sys.argv[1]
runner.images.CACHE = Path(sys.argv[1], "cache")
runner.TIERS = (
    script("good", "true"),
    script("bad", "echo the reason; exit 3", is_short=True),
    script("missing", "true", lacks=lambda: "not installed: it"),
    script("hanging", "while :; do sleep 0.1; done"),
    script("odd", "printf '\\\\377\\\\303\\\\244'; exit 1"),
    script("endless", "trap 'echo ended >$GITGUARDFS_TEST_AREA/../ended; exit 0' TERM;"
           " touch $GITGUARDFS_TEST_AREA/../begun; while :; do sleep 0.1; done"),
    script("patient", "cd $GITGUARDFS_TEST_AREA/..; touch begun;"
           " while [ ! -e go ]; do sleep 0.1; done"),
    Tier("empty", "empty", [sys.executable, "-m", "pytest", "-p", "tests.tiers.events",
         f"--rootdir={sys.argv[1]}", "-p", "no:cacheprovider", "tests/unit/test_tiers.py"], 1.0),
)
runner.estimate.limit = lambda tier: 0.0 if tier.name == "hanging" else 600.0
sys.exit(runner.main(sys.argv[2:]))
"""


def start(
    place: Path, *arguments: str, before: tuple[str, ...] = (), **environment: str
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*before, sys.executable, "-c", RUNNER, place, *arguments],
        cwd=REPOSITORY, env={**os.environ, "CI": "", **environment}, text=True, errors="replace",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["good", "bad"], 1, "the reason"),
        (["good", "missing"], 0, "LEFT OUT (not installed: it)"),
        (["missing"], 1, "nothing is left to run"),
        (["empty", "--", "-k", "of_no_test"], 1, "nothing was tested"),
        (["good", "empty", "--", "-k", "of_no_test"], 0, "empty: no test chosen"),
        (["odd"], 1, "FAILED (exit status 1)"),
        (["hanging"], 1, "hanging: no end within 0:00, so it is ended now; no test has begun"),
        (["hanging", "empty", "--", "-k", "start_before"], 1, "empty: ok"),
    ],
)
def test_the_status_of_the_run(
    tmp_path: Path, arguments: list[str], status: int, said: str
) -> None:
    process = start(tmp_path, *arguments, PYTHONIOENCODING="latin-1")
    output = process.communicate(timeout=LIMIT)[0]
    assert "Traceback" not in output
    assert (process.returncode, said in output) == (status, True), output
    assert os.listdir(tmp_path) == []


def test_in_ci_a_tier_that_cannot_be_run_ends_the_run(tmp_path: Path) -> None:
    process = start(tmp_path, "good", "missing", CI="true")
    output = process.communicate(timeout=LIMIT)[0]
    assert process.returncode == 1 and "in CI no tier may be left out" in output
    assert "good: ok" not in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_stopped_lets_its_tiers_end_and_removes_its_files(
    tmp_path: Path, number: signal.Signals
) -> None:
    process = start(tmp_path, "endless", "bad")
    until((tmp_path / "begun").exists, "the tier runs", LIMIT)
    for each in (number, signal.SIGTERM, number):  # as one Ctrl-C arrives
        process.send_signal(each)
    output = process.communicate(timeout=LIMIT)[0]
    assert process.returncode == 130, output
    assert (tmp_path / "ended").exists() and "Traceback" not in output
    assert next(line for line in output.splitlines() if line.startswith("endless ")).endswith(
        "  stopped"
    )
    assert sorted(os.listdir(tmp_path)) == ["begun", "ended"]


def test_a_run_that_nohup_started_outlives_its_terminal(tmp_path: Path) -> None:
    process = start(tmp_path, "patient", before=("nohup",))
    until((tmp_path / "begun").exists, "the tier runs", LIMIT)
    process.send_signal(signal.SIGHUP)
    (tmp_path / "go").touch()
    output = process.communicate(timeout=LIMIT)[0]
    assert (process.returncode, "patient: ok" in output) == (0, True), output


def test_a_killed_run_s_files_go_with_the_next_and_a_live_one_s_stay(tmp_path: Path) -> None:
    process = start(tmp_path, "endless")
    until((tmp_path / "begun").exists, "the tier runs", LIMIT)
    (used,) = tmp_path.glob("ggfs-tests-*")
    start(tmp_path, "good").communicate(timeout=LIMIT)
    assert (used / "endless/log").exists()
    process.kill()
    process.communicate(timeout=LIMIT)
    (tmp_path / "cache/.new-image/root").mkdir(parents=True)
    (tmp_path / "cache/.new-held").mkdir()
    held = leftovers.hold(tmp_path / "cache/.new-held")
    start(tmp_path, "good").communicate(timeout=LIMIT)
    os.close(held)
    assert not used.exists() and os.listdir(tmp_path / "cache") == [".new-held"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for workers' namespaces")
@pytest.mark.parametrize(
    ("skips", "has_workers"),
    [
        ("def test_a(): pytest.skip('x')", False),
        ("pytest.skip('x', allow_module_level=True)", True),
    ],
    ids=["a test", "a module, in a worker"],
)
def test_in_ci_nothing_may_skip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skips: str, has_workers: bool
) -> None:
    monkeypatch.setenv("CI", "true")
    (tmp_path / "test_other.py").write_text("def test_c(): pass\n")
    text = f"import pytest\n{skips}\ndef test_b(): pass\n"
    run = ended(tmp_path, text, str(tmp_path), "-p", "tests.conftest", has_workers=has_workers)
    assert run.is_failed and "in CI nothing may be skipped" in run.log.read_text()
