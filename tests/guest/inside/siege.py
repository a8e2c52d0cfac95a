"""Carries out attacks in the guest: jobs as JSON on stdin, one line of JSON for each on stdout."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from tests.support.attacks import ATTACKS, Attack
from tests.support.attacks_planting import PLANTING
from tests.support.repos import SECRET
from tests.support.siege import act

TABLE: tuple[Attack, ...] = (*ATTACKS, *PLANTING)
"""Jobs name an attack by its index here, which is the same on the host and in the guest."""


ENTER_NAMESPACES = ("U1", "U2", "U3")
"""Rows whose attacks leave their process in namespaces of its own."""

LIMIT = 120
"""Seconds after which an attack is taken to hang."""


def strike(job: dict[str, Any]) -> dict[str, Any]:
    attack = TABLE[job["attack"]]
    os.chdir("/")
    os.umask(0o022)
    signal.alarm(LIMIT)
    try:
        got = attack.strike(Path(job["view"]), job["command"])
    except OSError as error:
        return {"id": job["id"], "errno": error.errno, "text": str(error)}
    except Exception as error:
        return {"id": job["id"], "errno": None, "text": f"{type(error).__name__}: {error}"}
    leaked = isinstance(got, bytes) and SECRET.encode() in got
    return {"id": job["id"], "errno": 0, "text": f"leaked {leaked}: {got!r}"[:300]}


def strike_all(jobs: list[dict[str, Any]]) -> None:
    """One after the other in this process: under emulation a fork costs more than an attack."""
    for job in jobs:
        print(json.dumps(strike(job)), flush=True)


def main() -> None:
    jobs = json.load(sys.stdin)
    together: dict[str, list[dict[str, Any]]] = {}
    for job in jobs:
        if TABLE[job["attack"]].row in ENTER_NAMESPACES:
            act(job["actor"], strike_all, [job])
        else:
            together.setdefault(job["actor"], []).append(job)
    for actor, theirs in together.items():
        act(actor, strike_all, theirs)


if __name__ == "__main__":
    main()
