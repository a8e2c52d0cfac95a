"""Sends the stream to a pipe, socket, FIFO or device, and never waits for the reader.

Lines for which the queue has no room are lost, and so are those that nobody reads. Then ``again``
and the present ``whole`` of each directory stand for them.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import select
import socket
import stat
import termios
from collections import deque
from collections.abc import Callable, Iterable

from gitguardfs.base.errors import Exit, UserError

STANDARD = "-"
QUEUE = 1 << 23
"""Bytes of lines that wait for the reader: some 120,000 changes: a checkout of another branch."""
LINE = 1 << 16
"""Bytes of a line at most, as readers rely on."""
CHUNK = select.PIPE_BUF
"""Bytes of one write. A pipe that is ready takes so many at once: standard output may block."""

Lines = Callable[[], Iterable[dict[str, object]]]


class Ended(Exception):  # noqa: N818  # what happened
    """The reader of standard output has gone."""


class Output:
    """One reader at a time, and the lines that wait for it."""

    def __init__(self, target: str, first: dict[str, object], present: Lines) -> None:
        """Send to a path or STANDARD. A connection begins with ``first`` and ``present()``.

        Raises UserError if the path can be no reader, and OSError.
        """
        self._target, self._first, self.present = target, first, present
        self._queue: deque[bytes] = deque()
        self._size = 0
        self._socket: socket.socket | None = None
        self._is_asked = False
        self.fd: int | None = None
        """The connection's descriptor; None without a reader."""
        self.connect()

    def connect(self) -> None:
        """Connect, unless it is connected or nobody is there. Raises UserError, OSError."""
        if self.fd is not None:
            return
        try:
            self.fd = 1 if self._target == STANDARD else self._opened()
        except OSError as error:
            if error.errno not in (
                errno.ENOENT, errno.ECONNREFUSED, errno.ENXIO, errno.EAGAIN, errno.EBUSY,
                errno.ENODEV, errno.EIO,
            ):  # fmt: skip
                raise
        else:
            self._put(self._first)
            self._put_present()

    def _opened(self) -> int:
        mode = os.stat(self._target).st_mode
        if stat.S_ISSOCK(mode):
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.setblocking(False)
                connection.connect(self._target)
            except BaseException:
                connection.close()
                raise
            self._socket = connection
            return connection.fileno()
        if not (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)):
            raise UserError(
                f"{self._target} is no socket, FIFO or character device",
                "nothing is written to files: --to - and a redirection do that",
                Exit.USAGE,
            )
        return os.open(self._target, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)

    def disconnect(self) -> None:
        """Close the connection. Raises Ended if it was standard output."""
        if self._target == STANDARD:
            raise Ended
        self._queue.clear()
        self._size = 0
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        elif self.fd is not None:
            os.close(self.fd)
        self.fd = None

    @property
    def is_waiting(self) -> bool:
        """Whether lines wait for the reader."""
        return bool(self._queue)

    @property
    def is_read(self) -> bool:
        """Whether all that was written has been read, as far as that is known."""
        if self._socket is None:
            return self.fd is not None
        left = fcntl.ioctl(self._socket, termios.TIOCOUTQ, bytes(4))
        return not any(left)

    @property
    def events(self) -> int:
        """The events to wait for (poll(2))."""
        answers = 0 if self._socket is None else select.POLLIN
        return answers | (select.POLLOUT if self.is_waiting else 0)

    def take_request(self) -> None:
        """Take what the reader has written: whatever it is, it asks for the stream's beginning.

        A reader behind QEMU's port may be another one, and the socket is still the same.
        """
        try:
            self._is_asked = bool(self.fd is not None and os.read(self.fd, CHUNK))
        except BlockingIOError:
            return
        except OSError:
            self._is_asked = False
        if not self._is_asked:
            self.disconnect()

    def begin_if_asked(self) -> None:
        """Send the first lines again if the reader has asked for them."""
        if self._is_asked and self.fd is not None:
            self._put(self._first)
            self._put_present()
        self._is_asked = False

    def tell(self, line: dict[str, object]) -> None:
        """Send a line, now or when the reader has room."""
        if self.fd is None:
            return
        self._put(line)
        if self._size > QUEUE:
            started = self._queue.popleft()  # perhaps a part of it is sent: it is sent to its end
            self._queue.clear()
            self._queue.append(started)
            self._size = len(started)
            self._put_present()

    def beat(self, line: dict[str, object]) -> None:
        """Send a beat, unless older lines wait: it says that the reader has all before it."""
        if not self._queue:
            self.tell(line)

    def _put_present(self) -> None:
        for line in self.present():
            self._put(line)

    def _put(self, line: dict[str, object]) -> None:
        data = json.dumps(line).encode() + b"\n"
        if len(data) > LINE:  # a path may have 4,096 bytes, of which each takes 6 here
            data = json.dumps({"in": line["in"], "again": ""}).encode() + b"\n"
        self._queue.append(data)
        self._size += len(data)

    def write(self) -> None:
        """Write as much as the reader takes. Raises Ended."""
        while self._queue and self.fd is not None:
            parts, size = [], 0
            while self._queue and size < CHUNK:
                part = self._queue.popleft()
                parts.append(part)
                size += len(part)
            data = b"".join(parts)
            poller = select.poll()
            poller.register(self.fd, select.POLLOUT)
            sent = 0
            try:
                if poller.poll(0):
                    sent = os.write(self.fd, data[:CHUNK])
            except BlockingIOError:
                pass
            except OSError:
                self.disconnect()
                return
            self._size -= sent
            if sent < len(data):
                self._queue.appendleft(data[sent:])
            if not sent:
                return
