"""Starts the process that repeats changes (``helper``), and talks to it."""

from __future__ import annotations

import errno
import marshal
import socket
import subprocess
import sys

from gitguardfs.base.errors import os_error
from gitguardfs.base.installation import PACKAGE_PARENT
from gitguardfs.live.helper import LONGEST


class HelperProcess:
    """A running helper of one view."""

    def __init__(self, mountpoint: str, device: int) -> None:
        """Start it for the view that is mounted there, whose st_dev is given. Raises OSError."""
        calls, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        code = f"import sys; sys.path.insert(0, {PACKAGE_PARENT!r})"
        code += "; from gitguardfs.live.helper import main; main()"
        self._calls = calls
        self._calls.setblocking(False)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", "-c", code, mountpoint, str(device)],
                stdin=theirs.fileno(), stdout=subprocess.DEVNULL, cwd="/",
            )  # fmt: skip

    @property
    def pid(self) -> int:
        """Its process id: nobody else's until ``end``, since it is a child of this process."""
        return int(self._process.pid)

    def fileno(self) -> int:
        """Return the descriptor that can be read when it has answered, or ended."""
        return self._calls.fileno()

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

    def end(self) -> None:
        """Kill it. A call that it waits for is refused then: the view does not expect it."""
        self._process.kill()
        self._calls.close()
        self._process.poll()
