"""The process that writes notifications to the kernel, which may wait for a program of the guest.

To look a name up again, the kernel takes the lock of its directory. A program may have that for as
long as it likes. Nothing ends a process that waits so: it must not be the daemon.
"""

from __future__ import annotations

import marshal
import mmap
import os
import socket
import subprocess
import sys
from contextlib import suppress

from gitguardfs.base.installation import PACKAGE_PARENT

ROOM = 1 << 16
"""Bytes of a message, at most."""
_PROGRESS = 8


class NotifierProcess:
    """A running process that writes notifications."""

    def __init__(self, device: int) -> None:
        """Start it; ``device`` is the connection's descriptor. Raises OSError."""
        memory = os.memfd_create("gitguardfs-progress")
        try:
            os.ftruncate(memory, _PROGRESS)
            self._progress = mmap.mmap(memory, _PROGRESS)
            self._calls, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            for end in (self._calls, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * ROOM)
            self._calls.setblocking(False)
            code = f"import sys; sys.path.insert(0, {PACKAGE_PARENT!r})"
            code += "; from gitguardfs.live.notifier import main; main()"
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-B", "-c", code, str(device), str(memory)],
                    stdin=theirs.fileno(), stdout=subprocess.DEVNULL, cwd="/",
                    pass_fds=(device, memory),
                )  # fmt: skip
        finally:
            os.close(memory)

    def fileno(self) -> int:
        """Return the descriptor that can be read when all of a message is written."""
        return self._calls.fileno()

    def write(self, notifications: list[bytes]) -> None:
        """Have it write notifications, of ``ROOM`` bytes together. Raises OSError."""
        self._calls.send(marshal.dumps(notifications))

    def take_answer(self) -> bool:
        """Return whether it is ready for more; False if it has ended. Raises BlockingIOError."""
        return bool(self._calls.recv(1))

    @property
    def progress(self) -> int:
        """How many notifications of the last message have been written."""
        return int.from_bytes(self._progress[:], sys.byteorder)

    def end(self) -> None:
        """Kill it. It may go on to wait."""
        self._process.kill()
        self._calls.close()
        self._process.poll()

    def has_ended(self) -> bool:
        """Return whether it has ended."""
        return self._process.poll() is not None


def main() -> None:
    """Serve the socket that is standard input."""
    device, memory = map(int, sys.argv[-2:])
    progress = mmap.mmap(memory, _PROGRESS)
    with socket.socket(fileno=0) as calls, suppress(ConnectionError):  # the daemon has ended
        calls.send(b".")  # ready
        while message := calls.recv(2 * ROOM):
            for number, notification in enumerate(marshal.loads(message)):  # noqa: S302
                progress[:] = number.to_bytes(_PROGRESS, sys.byteorder)
                with suppress(OSError):  # the kernel does not know the name
                    os.write(device, notification)
            calls.send(b".")
