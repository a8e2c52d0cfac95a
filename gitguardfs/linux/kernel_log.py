"""Reads the kernel's log (/dev/kmsg), for what the kernel reports while something is tried."""

from __future__ import annotations

import errno
import os

DEVICE = "/dev/kmsg"
_RECORD_BYTES = 8192
"""Bytes for one record, more than the kernel's limit: a read with less room than that fails."""


class KernelLog:
    """The records logged after this object was made; none if the log cannot be read."""

    def __init__(self, path: str = DEVICE) -> None:
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._fd, 0, os.SEEK_END)
        except OSError:
            self.close()

    def lines(self) -> list[str]:
        """Return the texts of the records logged since the last call."""
        found: list[str] = []
        while self._fd >= 0:
            try:
                record = os.read(self._fd, _RECORD_BYTES)
            except OSError as error:
                if error.errno == errno.EPIPE:  # overwritten before it was read: the next one
                    continue
                break
            if not record:
                break
            # "level,number,time,flags;text", and lines of fields that begin with a blank.
            for line in record.decode(errors="replace").split("\n"):
                head, semicolon, text = line.partition(";")
                if semicolon and head[:1].isdigit():
                    found.append(text)
        return found

    def close(self) -> None:
        """Close the log."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
