"""Run every check below the directories given: ``python -m tests.conformance DIRECTORY...``."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import traceback

from tests.conformance import all_checks, tools


def main(directories: list[str]) -> int:
    failures = 0
    for directory in directories:
        for name, check in all_checks().items():
            work = tempfile.mkdtemp(prefix="check-", dir=directory)
            os.chmod(work, 0o777)
            try:
                check(work)
            except Exception:
                failures += 1
                print(f"FAILED {directory} {name}")
                traceback.print_exc()
            finally:
                shutil.rmtree(work, ignore_errors=True)
        print(f"{directory}: {len(all_checks())} checks, {tools.compared} comparisons")
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
