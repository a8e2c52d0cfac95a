"""Kills the daemon of a view at a moment of a command's, and tells what came of it, as JSON.

``python -m tests.guest.inside.kill_daemon VIEW SIGN DIRECTORY COMMAND`` runs a shell line in a
directory as the agent, and kills the daemon as soon as a path matches the pattern SIGN. When the
next daemon serves the view, it makes the file OVER and waits for the command, which knows its name.
It prints the exit status of the command, what the command said, and which paths match SIGN once the
daemon has ended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from glob import glob

AGENT = 1000
OVER = "/tmp/over"
LIMIT = 120.0
"""Seconds for each thing that is waited for; emulated, beside other tests, a start takes twenty."""


def until(condition: Callable[[], object], what: str, pause: float) -> None:
    """Wait until the condition holds. Raises SystemExit at the limit."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"not within {LIMIT:g} s: {what}")
        time.sleep(pause)


def daemon_of(view: str) -> int:
    """Return the process id of the daemon; a keeper has the same words, and is older."""
    words = ["pgrep", "--newest", "--full", f"/gitguardfs .*{view}( |$)"]
    return int(subprocess.run(words, capture_output=True, check=True).stdout)


def main() -> None:
    view, sign, directory, command = sys.argv[1:]
    pid = daemon_of(view)
    process = subprocess.Popen(
        ["bash", "-c", command], cwd=directory, user=AGENT, group=AGENT, extra_groups=[],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "HOME": "/home/agent", "OVER": OVER},
    )  # fmt: skip
    until(lambda: glob(sign) or process.poll() is not None, f"something is at {sign}", 0.002)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not os.path.exists(f"/proc/{pid}/root/."), "the daemon has ended", 0.01)
    left = glob(sign)
    os.stat(directory + "/.")  # waits for the next daemon
    open(OVER, "x").close()
    said, _ = process.communicate(timeout=LIMIT)
    os.unlink(OVER)
    print(json.dumps({"rc": process.returncode, "said": said, "left": left}))


if __name__ == "__main__":
    main()
