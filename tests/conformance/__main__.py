"""Run checks below a directory: ``python -m tests.conformance DIRECTORY [CHECK...]``.

Prints one line of JSON for each check.
"""

import json
import os
import shutil
import signal
import sys
import tempfile

from tests.conformance import all_checks

HANG_LIMIT = 90
"""Seconds after which a check is given up."""


def _give_up(*_: object) -> None:
    raise AssertionError(f"hung for {HANG_LIMIT} seconds")


def main() -> None:
    directory, *names = sys.argv[1:]
    signal.signal(signal.SIGALRM, _give_up)
    for name, check in all_checks().items():
        if names and name not in names:
            continue
        work = tempfile.mkdtemp(prefix="check-", dir=directory)
        os.chmod(work, 0o777)
        signal.alarm(HANG_LIMIT)
        try:
            check(work)
            text = ""
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        finally:
            signal.alarm(0)
            os.chdir("/")
            shutil.rmtree(work, ignore_errors=True)
        print(json.dumps({"name": name, "failed": text}), flush=True)


if __name__ == "__main__":
    main()
