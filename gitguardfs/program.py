"""The command line that runs this copy of gitguardfs, installed or not."""

from __future__ import annotations

import os
import sys

import gitguardfs

HOLDER = os.path.dirname(os.path.dirname(os.path.abspath(gitguardfs.__file__)))
"""The directory that contains this package."""


def command(*arguments: str) -> list[str]:
    """Return the argument list that runs ``gitguardfs ARGUMENTS`` with this interpreter and code.

    Python's -I keeps modules of the working directory and the environment out, which ``-m`` would
    load. It also drops the launcher's sys.path, so the code text sets the path itself.
    """
    start = "from gitguardfs.commands.gitguardfs import main; main()"
    code = f"import sys; sys.path.insert(0, {HOLDER!r}); {start}"
    return [sys.executable, "-I", "-c", code, *arguments]
