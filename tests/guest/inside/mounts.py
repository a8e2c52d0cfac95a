"""Mounts several views from one process that has imported gitguardfs: JSON command lines on stdin.

Each is a child that goes on as the program itself does, without the eight seconds that its imports
take under emulation.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import NoReturn

INSTALLED = "/usr/local/lib/gitguardfs/lib"
"""Where install.sh puts the package."""


def go_on_as(arguments: list[str]) -> NoReturn:
    """Be ``gitguardfs ARGUMENTS`` from here on."""
    from gitguardfs.cli import main

    sys.argv = ["gitguardfs", *arguments]
    try:
        main()
    except SystemExit as end:
        os._exit(end.code if isinstance(end.code, int) else 0)
    except BaseException:
        traceback.print_exc()
    os._exit(70)


def main() -> None:
    sys.path.insert(0, INSTALLED)
    import gitguardfs.fuse.mount  # noqa: F401

    children = {}
    for arguments in json.load(sys.stdin):
        if (pid := os.fork()) == 0:
            go_on_as(arguments)
        children[pid] = arguments
    for pid, arguments in children.items():
        _, status = os.waitpid(pid, 0)
        if status:
            sys.exit(f"{arguments}: {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    main()
