"""Carries out attacks in the guest: jobs as JSON on stdin, one line of JSON for each on stdout."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.support.attacks import ATTACKS, Attack
from tests.support.attacks_planting import PLANTING
from tests.support.repos import SECRET
from tests.support.siege import act

TABLE: tuple[Attack, ...] = (*ATTACKS, *PLANTING)
"""Jobs name an attack by its place here: the host and the guest run the same tests."""


def strike(job: dict[str, Any]) -> dict[str, Any]:
    attack = TABLE[job["attack"]]
    try:
        got = act(job["actor"], attack.strike, Path(job["view"]), job["command"])
    except OSError as error:
        return {"id": job["id"], "errno": error.errno, "text": str(error)}
    except Exception as error:
        return {"id": job["id"], "errno": None, "text": f"{type(error).__name__}: {error}"}
    leaked = isinstance(got, bytes) and SECRET.encode() in got
    return {"id": job["id"], "errno": 0, "text": f"leaked {leaked}: {got!r}"[:300]}


def main() -> None:
    for job in json.load(sys.stdin):
        os.chdir("/")
        print(json.dumps(strike(job)), flush=True)


if __name__ == "__main__":
    main()
