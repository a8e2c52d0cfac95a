"""The command line that runs this very gitguardfs, wherever it is and however it was started."""

from __future__ import annotations

import os
import sys

import gitguardfs

HOLDER = os.path.dirname(os.path.dirname(os.path.abspath(gitguardfs.__file__)))
"""The directory that this package lies in."""


def command(*arguments: str) -> list[str]:
    """``gitguardfs ARGUMENTS`` by this interpreter and this code, in no shell.

    ``-m`` would take modules from the working directory first, and the installed launcher's
    path reaches no child: so -I, which keeps out directory and environment, and the path itself.
    """
    start = "from gitguardfs.commands.gitguardfs import main; main()"
    code = f"import sys; sys.path.insert(0, {HOLDER!r}); {start}"
    return [sys.executable, "-I", "-c", code, *arguments]
