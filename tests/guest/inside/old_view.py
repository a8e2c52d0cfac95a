"""Stays in a view as an agent's shell, editor and watcher do, and tells what it meets, as JSON.

``python -m tests.guest.inside.old_view VIEW MARK SECONDS`` writes the file MARK when it is inside.
When MARK.end appears, it ends. It prints how many seconds the view was away, as one who asks all
the time sees it, which errors there were, and what the directory of the shell says at the end: the
error that comes within SECONDS, or nothing.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import sys
import time
from pathlib import Path

PAUSE = 0.02


def _error_of(path: str) -> str:
    try:
        os.stat(path)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return ""


def main(view: Path, mark: Path, limit: float) -> None:
    os.chdir(view / "demo")
    os.open("Makefile", os.O_RDWR)  # as an editor; it stays open
    libc = ctypes.CDLL(None, use_errno=True)
    watcher = libc.inotify_init1(0)
    assert libc.inotify_add_watch(watcher, b".", 0xFFF) >= 0
    mark.touch()
    errors: set[str] = set()
    away = 0.0
    before = time.monotonic()
    while not mark.with_suffix(".end").exists():
        time.sleep(PAUSE)
        try:
            os.makedirs(view / "made", exist_ok=True)  # as git init does first
            os.rmdir(view / "made")
            os.stat(view / "demo/Makefile")
            before = time.monotonic()
        except OSError as error:
            errors.add(errno.errorcode[error.errno or 0])
            away = max(away, time.monotonic() - before)
    old = []
    for place in (".", "Makefile"):
        end = time.monotonic() + limit
        while (said := _error_of(place)) == "" and time.monotonic() < end:
            time.sleep(PAUSE)
        old.append(said)
    os.chdir(view / "demo")
    print(json.dumps({"away": away, "errors": sorted(errors), "old": old, "new": os.listdir(".")}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]))
