"""Runs a command, and kills it when the process that started this program ends.

``python -I -S die_with_parent.py COMMAND…``, with a pipe as standard input. The command is killed
when no process has the pipe's other end open any more; on Linux also if this program is killed.
This file imports nothing of gitguardfs.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading

_PR_SET_PDEATHSIG = 1


def command(words: list[str]) -> list[str]:
    """Return the command that runs ``words`` by this program."""
    return [sys.executable, "-I", "-S", __file__, *words]


def main(words: list[str]) -> None:
    """Run the command until it ends or standard input closes. Exits with the command's status."""
    libc = ctypes.CDLL(None)

    def die_with_this() -> None:
        if sys.platform == "linux":
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    child = subprocess.Popen(words, stdin=subprocess.DEVNULL, preexec_fn=die_with_this)  # noqa: PLW1509  # one thread

    def end_with_child() -> None:
        status = child.wait()
        os._exit(status if status >= 0 else 128 - status)

    threading.Thread(target=end_with_child, daemon=True).start()
    while os.read(0, 4096):
        pass
    child.kill()
    child.wait()


if __name__ == "__main__":
    main(sys.argv[1:])
