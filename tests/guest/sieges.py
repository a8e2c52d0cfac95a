"""Attacks in the guest, prepared and judged on the host."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from pathlib import Path

from gitguardfs.doctor.attacks import FAKE_ROOT, ROOT
from tests.guest.machine import Machine
from tests.guest.world import TESTS
from tests.support.attacks import ALL, ROWS, Strike, strikes, wrong
from tests.support.repos import Recorded, as_host, copy_project, differences, make_project, metadata

LIMIT = 2400.0
"""Seconds for all attacks over one transport."""
Case = tuple[str, str]
"""A row of attacks, and who carries them out."""
OF_NAMES = ("G4", "N", "V4")
"""Rows that depend on names alone, over whatever transport."""
CASES: dict[str, tuple[Case, ...]] = {
    "9p": tuple((row, FAKE_ROOT if row in ("U1", "U2") else "agent") for row in ROWS),
    "virtiofs": tuple(
        (row, FAKE_ROOT if row == "U1" else ROOT) for row in ROWS if row not in OF_NAMES
    ),
}
"""Each row by one actor. In the mount tier all actors carry out all attacks: the actor and the kind
of source are independent."""
SOME = tuple(case for case in CASES["9p"] if case[0] not in {*OF_NAMES, "P1", "P4"})


@dataclass
class Job:
    """One row of attacks by one actor on one copy of the project."""

    actor: str
    strikes: list[Strike]
    project: Path
    """On the host, below any guard."""
    before: dict[str, Recorded]
    outcomes: list[tuple[int | None, str]] | None = None


class Siege:
    """All given cases on one share."""

    def __init__(self, share: Path, cases: Iterable[Case]) -> None:
        self.place = share / "siege"
        with as_host():
            self.place.mkdir()
        make_project(self.place / "original")
        self.jobs: dict[Case, Job] = {}
        for number, (row, actor) in enumerate(cases):
            tried = strikes(a for a in ALL if a.row == row and actor in a.actors)
            project = copy_project(self.place / "original", self.place / str(number))
            self.jobs[row, actor] = Job(actor, tried, project, metadata(project))

    def carry_out(self, machine: Machine, view: str) -> None:
        """Let the guest carry out all attacks; ``view`` is its path of the share's root."""
        jobs = [
            {
                "id": case,
                "actor": job.actor,
                "view": f"{view}/siege/{job.project.name}",
                "strikes": [astuple(strike) for strike in job.strikes],
            }
            for case, job in self.jobs.items()
        ]
        command = ["python3", "-m", "tests.guest.inside.siege"]
        done = machine.run(command, cwd=TESTS, stdin=json.dumps(jobs), timeout=LIMIT, forked=True)
        for line in done.stdout.splitlines():
            result = json.loads(line)
            row, actor = result["id"]
            self.jobs[row, actor].outcomes = [(number, text) for number, text in result["outcomes"]]
        assert done.rc == 0, f"{done.rc}: {done.stderr[-3000:]}"

    def remove(self) -> None:
        """Remove the copies: they would slow later tests that read the whole share."""
        shutil.rmtree(self.place)

    def check(self, case: Case, also: Iterable[int] = ()) -> None:
        """Assert that the attacks were refused by the right errnos and the host sees no change."""
        job = self.jobs[case]
        assert job.outcomes is not None, f"{case}: the guest did not get that far"
        changed = differences(job.before, metadata(job.project))
        assert not changed, f"{case}: {changed}; {job.outcomes}"
        found = wrong(job.strikes, job.outcomes, job.actor, also)
        assert not found, found
