"""Finds a running guard by its mount point, and by the arguments that it was started with.

Linux only, as is the guard.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from gitguardfs.base import constants, installation


def is_mounted(mountpoint: str) -> bool:
    """Return whether the topmost mount at a path is a guard, dead or alive. Raises OSError."""
    from gitguardfs.linux import mountinfo  # Linux only; the host's tools load this on a Mac

    top = mountinfo.top_at(os.path.realpath(mountpoint))
    return top is not None and top.fstype == constants.FSTYPE


def is_started(arguments: Sequence[str]) -> bool:
    """Return whether a process that this user may look at is a guard with just these arguments."""
    from gitguardfs.linux import processes  # as above

    code = installation.command()[-1]
    for pid in processes.pids():
        with suppress(OSError):
            words = processes.arguments_of(pid)
            program = words[: -len(arguments)][-1:]
            if words[-len(arguments) :] == tuple(arguments) and any(
                word == code or os.path.basename(word) == constants.SUBTYPE for word in program
            ):
                return True
    return False
