"""Makes calls that take no blocks which a disk reserves for root (tune2fs(8), ``-m``).

The kernel gives them to the user 0 and to whoever has CAP_SYS_RESOURCE. Both are a thread's own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

from gitguardfs.linux.capabilities import CAP_SYS_RESOURCE, NOBODY, Without

R = TypeVar("R")
Ts = TypeVarTuple("Ts")

AMPLE = 1 << 30
"""Bytes: while so many are free, no call for less has to be held back, which takes about 20
microseconds. Who may write on the disk can fill it in one step (fallocate(2)), so each call looks
at it."""


class RootsBlocks:
    """Leaves the reserved blocks of a disk alone, for a process that runs as root."""

    def __init__(self, fd: int) -> None:
        """Note the process's rights, which threads have between the calls. Raises OSError.

        ``fd`` is a descriptor on the disk, which its owner closes after the last call.
        """
        self._fd = fd
        self._held_back = Without(CAP_SYS_RESOURCE, fsuid=NOBODY)

    def left_alone(self, call: Callable[[*Ts], R], *args: *Ts) -> R:
        """Make a call that takes no reserved block, on any thread; its files may be another user's.

        Raises what ``call`` raises.
        """
        disk = os.fstatvfs(self._fd)
        if disk.f_bavail == disk.f_bfree or disk.f_bavail * disk.f_frsize > AMPLE:
            return call(*args)
        return self.left_alone_by_many(call, *args)

    def left_alone_by_many(self, call: Callable[[*Ts], R], *args: *Ts) -> R:
        """Make a call that may take any number of blocks, or that many threads make at a time."""
        with self._held_back:
            return call(*args)
