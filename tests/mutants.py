"""Put one fault at a time into a copy of the code; list the faults that the tests do not notice.

The copy stands in the place of the checkout, in mount and process namespaces of its own. So no path
and no child of a test leads to the code as it is, and nothing outlives a run.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tests.support import leftovers
from tests.support.mounting import AREA, REPOSITORY

TABLE = REPOSITORY / "tests/mutants.txt"
AT_ONCE = 2
"""Runs at a time: many tests wait more than they compute, and machines have two cores."""
LIMIT = 300
"""Seconds for the tests of a fault; a test that hangs has noticed it."""
NOT_COPIED = (".venv", ".git", ".hypothesis", ".*_cache")
INSIDE = """set -e
mount --bind "$1/.venv" "$2/copy/.venv"
mount --rbind "$2/copy" "$1"
mount -t tmpfs -o mode=755 run /run # tests of vm-mount make files there
cd "$1"
exec .venv/bin/python -m pytest -q --basetemp="$2/pytest" "${@:3}"
"""


class Mutant(NamedTuple):
    """A fault: ``old``, which stands once in ``file``, becomes ``new``."""

    name: str
    breaks: str
    file: str
    tests: list[str]
    old: str
    new: str

    def change(self, tree: Path = REPOSITORY) -> str:
        """Return the file's text with the fault. Raises ValueError if the table is stale."""
        text = (tree / "gitguardfs" / self.file).read_text()
        if (times := text.count(self.old)) != 1:
            raise ValueError(f"{self.name}: its old text stands {times} times in {self.file}")
        return text.replace(self.old, self.new)


def read_table() -> list[Mutant]:
    """Return the faults of mutants.txt, whose first lines describe its form."""
    found: list[Mutant] = []
    file, tests = "", list[str]()
    for block in TABLE.read_text().split("\n\n"):
        lines = [line for line in block.splitlines() if not line.startswith("#")]
        if lines and lines[0].startswith("@"):
            file, *tests = lines.pop(0)[1:].split()
        if lines:
            name, _, breaks = lines[0].partition(": ")
            old, new = ("\n".join(s[1:] for s in lines[1:] if s[0] == sign) for sign in "-+")
            found.append(Mutant(name, breaks, file, tests, old, new))
    return found


def run(tree: Path, work: Path, tests: Sequence[str], mutant: Mutant | None) -> str:
    """Run tests in a copy. Return pytest's output, or "" if all have passed."""
    with TemporaryDirectory(dir=work) as name:
        here = Path(name)
        shutil.copytree(tree, here / "copy", symlinks=True)
        for directory in (here / "copy/.venv", here / "area"):
            directory.mkdir()
        subprocess.run(["chmod", "755", here, here / "copy", here / "area"], check=True)
        if mutant:
            (here / "copy/gitguardfs" / mutant.file).write_text(mutant.change(tree))
        isolated = [sys.executable, str(tree / "tests/support/isolated.py"), "bash", "-c", INSIDE]
        environment = {"CI": "true", "PYTHONDONTWRITEBYTECODE": "1", AREA: str(here / "area")}
        paths = ["-x"] * bool(mutant) + [f"tests/{test}" for test in tests]
        try:
            done = subprocess.run(
                ["setpriv", "--pdeathsig=KILL", "--", *isolated, "-", REPOSITORY, here, *paths],
                env={**os.environ, **environment}, stdin=subprocess.DEVNULL, check=False,
                capture_output=True, text=True, timeout=LIMIT if mutant else None,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return "it hung"
        finally:
            subprocess.run(["chattr", "-Rf", "-ia", here], capture_output=True, check=False)
    return done.stdout + done.stderr if done.returncode else ""


def main(names: list[str]) -> int:
    """Run the faults of these names or patterns. Return the exit status."""
    mutants = [m for m in read_table() if not names or any(fnmatchcase(m.name, n) for n in names)]
    if not mutants:
        print(f"mutants.sh: no fault has such a name: {' '.join(names)}", file=sys.stderr)
        return 2
    with leftovers.directory("gitguardfs-mutants-", "/var/tmp") as work:
        work.chmod(0o755)
        tree = work / "tree"
        shutil.copytree(REPOSITORY, tree, symlinks=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
        for mutant in mutants:
            mutant.change(tree)
        print(f"{len(mutants)} faults; first their tests without any of them", flush=True)
        if said := run(tree, work, sorted({t for m in mutants for t in m.tests}), None):
            print(said, "these tests fail without a fault", sep="\n")
            return 2
        survivors: list[Mutant] = []
        with ThreadPoolExecutor(AT_ONCE) as pool:
            runs = {pool.submit(run, tree, work, m.tests, m): m for m in mutants}
            for number, future in enumerate(as_completed(runs), 1):
                mutant = runs[future]
                by = [line for line in future.result().splitlines() if line.startswith("FAILED ")]
                outcome = "noticed" if future.result() else "SURVIVED"
                print(f"[{number}/{len(mutants)}] {outcome} {mutant.name}", *by[:1], flush=True)
                survivors += [] if future.result() else [mutant]
    for mutant in survivors:
        print(f"survived: {mutant.name} ({mutant.file}): {mutant.breaks}")
    return int(bool(survivors))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ValueError as stale:
        print(f"mutants.sh: stale: {stale}", file=sys.stderr)
        sys.exit(2)
