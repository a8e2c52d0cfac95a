"""The process that writes notifications to the kernel, which may wait for a program of the guest.

To look a name up again, the kernel takes the lock of its directory. A program may have that for as
long as it likes. Nothing ends a process that waits so: it must not be the daemon.
"""

from __future__ import annotations

import marshal
import mmap
import os
import socket
import sys
from contextlib import suppress

from gitguardfs.live.child_process import ChildProcess

ROOM = 1 << 16
"""Bytes of a message, at most."""
_PROGRESS = 8


class NotifierProcess(ChildProcess):
    """A running process that writes notifications."""

    def __init__(self, device: int) -> None:
        """Start it; ``device`` is the connection's descriptor. Raises OSError."""
        memory = os.memfd_create("gitguardfs-progress")
        try:
            os.ftruncate(memory, _PROGRESS)
            self._progress = mmap.mmap(memory, _PROGRESS)
            super().__init__(
                "gitguardfs.live.notifier", str(device), str(memory),
                room=ROOM, pass_fds=(device, memory),
            )  # fmt: skip
        finally:
            os.close(memory)

    def write(self, notifications: list[bytes]) -> None:
        """Have it write notifications, of ``ROOM`` bytes together. Raises OSError."""
        self._progress[:] = bytes(_PROGRESS)  # it has answered, so it writes nothing now
        self._calls.send(marshal.dumps(notifications))

    def take_answer(self) -> bool:
        """Return whether it is ready for more; False if it has ended. Raises BlockingIOError."""
        return bool(self._calls.recv(1))

    @property
    def progress(self) -> int:
        """The index, in the last message, of the notification that is being written."""
        return int.from_bytes(self._progress[:], sys.byteorder)


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
