"""Run a command that ends with the process that started it, however that ended.

``python -I -S die_with_parent.py COMMAND…`` with a pipe as standard input. When no process has the
pipe's other end open any more, the command is killed. This file imports nothing of ours.
"""

import os
import subprocess
import sys
import threading


def main(words: list[str]) -> None:
    """Run the command until it ends, or until standard input does. Its status is returned."""
    child = subprocess.Popen(words, stdin=subprocess.DEVNULL)

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
