"""Starts the process that repeats changes (``helper``), and talks to it."""

from __future__ import annotations

import errno
import marshal

from gitguardfs.base.errors import os_error
from gitguardfs.live.child_process import ChildProcess
from gitguardfs.live.helper import LONGEST


class HelperProcess(ChildProcess):
    """A running helper of one view. If it is killed during a call, the request is refused."""

    def __init__(self, mountpoint: str, device: int) -> None:
        """Start it for the view that is mounted there, whose st_dev is given. Raises OSError."""
        super().__init__("gitguardfs.live.helper", mountpoint, str(device))

    def call(self, *call: int | bytes) -> None:
        """Have it make a call. Raises OSError."""
        message = marshal.dumps(call)
        if len(message) > LONGEST:
            raise os_error(errno.ENAMETOOLONG)
        self._calls.send(message)

    def answer(self) -> int | None:
        """Return the errno of the last call, first of its start; None if it has ended.

        Raises BlockingIOError.
        """
        answer = self._calls.recv(4)
        return int.from_bytes(answer, "little") if answer else None
