"""Copies of the checkout, and tests run in them: nothing of a run outlives it.

The copy stands in the place of the checkout, in a mount namespace of its own, so that no path,
no installed package and no child of a test can lead to the code as it is. It lies on a tmpfs that
goes with the namespace. All processes are in a process namespace and are killed with it, which is
when pytest ends, when it takes too long, and when we are killed ourselves.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from time import monotonic

from tests.support import leftovers
from tests.support.mounting import AREA

CHECKOUT = Path(__file__).resolve().parents[2]
PLACE = Path("/var/tmp")
PREFIX = "gitguardfs-mutants-"

_NOT_COPIED = shutil.ignore_patterns(
    ".venv", ".git", ".hypothesis", ".*_cache", "__pycache__", "*.egg-info"
)
_ENDS_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--", sys.executable)


@dataclass(frozen=True)
class Ended:
    """The outcome of a run of tests."""

    code: int | None
    """pytest's exit status; None if it took too long."""
    seconds: float
    output: str

    @property
    def failed(self) -> list[str]:
        """Return the tests that failed, as far as pytest names them."""
        return re.findall(r"^(?:FAILED|ERROR) tests/(.+?)(?: - |$)", self.output, re.MULTILINE)


@dataclass
class Copies:
    """The unchanged copy of this checkout, and what runs in changed ones."""

    work: Path
    tree: Path
    running: set[subprocess.Popen[bytes]] = field(default_factory=set)
    _lock: Lock = field(default_factory=Lock)
    _ended: bool = False

    def run(
        self, changed: dict[str, str], tests: Sequence[str], limit: float, *, all_of: bool = False
    ) -> Ended:
        """Run tests where files, by their path in the checkout, hold another text.

        Up to the first that fails, or ``all_of`` them. ``limit`` is in seconds.
        """
        begin = monotonic()
        work = Path(tempfile.mkdtemp(prefix="run-", dir=self.work))
        work.chmod(0o755)
        try:
            for name in ("copy", "changed", "area"):
                (work / name).mkdir()
                (work / name).chmod(0o755)
            for name, text in changed.items():
                (work / "changed" / name).parent.mkdir(parents=True, exist_ok=True)
                (work / "changed" / name).write_text(text)
            arguments = [f"tests/{test}" for test in tests]
            code = self._run(work, arguments if all_of else ["-x", *arguments], limit)
            output = (work / "output").read_text(errors="replace")
        finally:
            _remove(work)
        return Ended(code, monotonic() - begin, output)

    def _run(self, work: Path, arguments: list[str], limit: float) -> int | None:
        isolated = self.tree / "tests/support/isolated.py"
        script = self.tree / "tests/mutation/inside.sh"
        places = [CHECKOUT, self.tree, work]
        environment = {
            **os.environ,
            "CI": "true",  # nothing may be skipped
            "PYTHONDONTWRITEBYTECODE": "1",
            AREA: str(work / "area"),
        }
        with open(work / "output", "wb") as output, self._lock:
            if self._ended:
                raise InterruptedError
            process = subprocess.Popen(
                [*_ENDS_WITH_US, isolated, "bash", script, *places, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
            self.running.add(process)
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            process.kill()
            process.wait()
            with self._lock:
                self.running.discard(process)

    def end(self) -> None:
        """Kill what runs, and start nothing more."""
        with self._lock:
            self._ended = True
            for process in self.running:
                process.kill()


@contextmanager
def copies() -> Iterator[Copies]:
    """Copy the checkout as it is now; also removes what runs that were killed have left."""
    with leftovers.directory(PREFIX, PLACE) as work:
        work.chmod(0o755)
        tree = work / "tree"
        shutil.copytree(CHECKOUT, tree, symlinks=True, ignore=_NOT_COPIED)
        # Known to be current by the source's text: its time says nothing of a changed copy.
        subprocess.run(
            [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash",
             tree / "gitguardfs", tree / "tests"],
            check=True,
        )  # fmt: skip
        yield Copies(work, tree)


def _remove(directory: Path) -> None:
    subprocess.run(["chattr", "-R", "-f", "-i", "-a", directory], capture_output=True, check=False)
    shutil.rmtree(directory, ignore_errors=True)
