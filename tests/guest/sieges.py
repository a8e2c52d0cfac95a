"""Attacks in the guest, prepared and judged on the host.

Each attack gets its own copy of the project. It is made and later examined on the host, without
emulation: in the guest only the attack itself runs.
"""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.guest.inside.siege import TABLE
from tests.guest.machine import Machine
from tests.guest.world import TESTS
from tests.support.attacks import Attack
from tests.support.repos import (
    Recorded,
    as_host,
    copy_project,
    differences,
    git,
    make_project,
    metadata,
)

LIMIT = 2400.0
"""Seconds for all attacks over one transport."""

CASES: dict[str, tuple[tuple[Attack, str], ...]] = {
    "9p": tuple((attack, attack.actors[0]) for attack in TABLE),
    "virtiofs": tuple((attack, attack.actors[-1]) for attack in TABLE),
}
"""Each attack over each transport by one actor: the first over 9p, the last over virtiofs.

In the mount tier all actors carry out all attacks: the actor and the kind of source are
independent."""

UNSUPPORTED = (errno.EINVAL, errno.EOPNOTSUPP)
"""Errnos of calls that a share does not support at all: no guard is asked."""


@dataclass
class Job:
    """One attack by one actor on one copy of the project."""

    attack: Attack
    actor: str
    project: Path
    """On the host, below any guard."""
    mark: Path
    """The file that the command makes, should git on the host run it."""
    before: dict[str, Recorded]
    result: dict[str, Any] | None = None


class Siege:
    """All given cases on one share."""

    def __init__(self, share: Path, cases: Iterable[tuple[Attack, str]]) -> None:
        self.place = share / "siege"
        self.jobs: dict[str, Job] = {}
        with as_host():
            self.place.mkdir()
            (self.place / "marks").mkdir()
        (self.place / "marks").chmod(0o777)
        original = self.place / "original"
        make_project(original)
        for number, (attack, actor) in enumerate(cases):
            project = copy_project(original, self.place / str(number))
            mark = self.place / f"marks/{number}"
            job = Job(attack, actor, project, mark, metadata(project))
            self.jobs[f"{attack.id}-{actor}"] = job

    def carry_out(self, machine: Machine, view_of: Callable[[Attack], str]) -> None:
        """Let the guest carry out all attacks; ``view_of`` returns its path of the share's root."""
        jobs = [
            {
                "id": name,
                "attack": TABLE.index(job.attack),
                "actor": job.actor,
                "view": f"{view_of(job.attack)}/siege/{job.project.name}",
                "command": f"touch {job.mark}",
            }
            for name, job in self.jobs.items()
        ]
        command = ["python3", "-m", "tests.guest.inside.siege"]
        done = machine.run(command, cwd=TESTS, stdin=json.dumps(jobs), timeout=LIMIT, forked=True)
        for line in done.stdout.splitlines():
            result = json.loads(line)
            self.jobs[result["id"]].result = result
        assert done.rc == 0, f"{done.rc}: {done.stderr[-3000:]}"

    def remove(self) -> None:
        """Remove the copies: they would slow later tests that read the whole share."""
        shutil.rmtree(self.place)

    def check(self, name: str, also: Iterable[int] = ()) -> None:
        """Assert that the attack was refused by the right errno and the host sees no change."""
        job = self.jobs[name]
        result = job.result
        assert result is not None, f"{name}: the guest did not get that far"
        changed = differences(job.before, metadata(job.project))
        assert not changed, f"{name}: {changed}; {result['text']}"
        if job.attack.runs is not None and (job.project / job.attack.runs).is_dir():
            git(job.project / job.attack.runs, "status")
        assert not job.mark.exists(), f"{name}: git on the host ran the command"
        allowed = {*job.attack.refused, *also}
        if job.actor != "root":
            allowed |= job.attack.early
        found = result["errno"]
        assert found in allowed, (
            f"{name}: {errno.errorcode.get(found, found)}: {result['text']}, expected "
            f"{sorted(errno.errorcode[number] for number in allowed)}"
        )
