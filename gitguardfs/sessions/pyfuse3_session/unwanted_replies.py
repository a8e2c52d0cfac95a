"""Drops pyfuse3's log lines about replies that the kernel no longer wants.

When a connection ends, the kernel withdraws every unanswered request and fails the reply with
ENOENT. The last RELEASE of a lazily unmounted view is often such a request: its sender does not
wait for the reply, and ends the mount. pyfuse3 logs each failed reply as an error.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable

LOG = logging.getLogger("pyfuse3")
_FAILED = "fuse_reply_* failed with %s"
_NO_SUCH_REQUEST = (os.strerror(errno.ENOENT),)


class UnwantedReplies(logging.Filter):
    """Drops the records of replies that failed because the connection had ended.

    While the connection lives, ENOENT means that a request was answered twice. That stays an
    error, like any other errno.
    """

    def __init__(self, has_ended: Callable[[], bool]) -> None:
        """``has_ended`` returns whether the kernel has ended the connection."""
        super().__init__()
        self._has_ended = has_ended

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is to be logged."""
        is_unknown = str(record.msg).endswith(_FAILED) and record.args == _NO_SUCH_REQUEST
        return not (is_unknown and self._has_ended())
