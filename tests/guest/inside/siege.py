"""Carries out attacks in the guest: jobs as JSON on stdin, one line of JSON for each on stdout."""

from __future__ import annotations

import json
import sys

from tests.support.attacks import Strike, carry_out
from tests.support.siege import act


def main() -> None:
    for job in json.load(sys.stdin):
        strikes = [Strike(*strike) for strike in job["strikes"]]
        outcomes = act(job["actor"], carry_out, job["view"], strikes)
        print(json.dumps({"id": job["id"], "outcomes": outcomes}), flush=True)


if __name__ == "__main__":
    main()
