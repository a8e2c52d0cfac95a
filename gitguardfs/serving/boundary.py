"""What every request passes: the guard, in a way that is written down, and the error boundary."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from contextlib import suppress
from enum import Enum

from gitguardfs.guard.rules import Refused

MAX_ERRNO = 511
"""Larger ones are the kernel's own: it takes no reply with them, and the caller would hang."""

ENOSYS_IS_MEANT = ("getxattr", "listxattr")
"""Where the kernel is to ask no more, for the whole mount. From the source it would be one
object's: a single file that cannot be synced would turn fsync off for all."""

log = logging.getLogger(__name__)


class Guarded(Enum):
    """How the guard comes into a request. A test demands one of these for every handler."""

    NAME = "by a name in a directory"
    NODE = "by a node"
    HANDLE = "when its handle was opened"
    NOTHING = "not at all: it names no object"
    UNSUPPORTED = "never served"


GUARDED: dict[str, Guarded] = {"poll": Guarded.UNSUPPORTED, "forget": Guarded.NOTHING}
"""The classification of every handler of ``pyfuse3.Operations``."""


def errno_of(error: Exception, operation: str, note: Callable[[Refused], None]) -> int:
    """Return the errno that answers a request in which ``error`` was raised; raises nothing.

    A refusal is handed to ``note``. What is no error of a system call is a bug: it is logged.
    """
    if isinstance(error, Refused):
        try:
            note(error)
        except Exception as failure:
            _report(failure, "a refused %s was not noted", operation)
        return errno.EACCES
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.ENOSYS and operation not in ENOSYS_IS_MEANT:
        return errno.EOPNOTSUPP
    if isinstance(number, int) and 0 < number <= MAX_ERRNO:
        return number
    _report(error, "%s failed; answered EIO", operation)
    return errno.EIO


def _report(error: Exception, message: str, operation: str) -> None:
    with suppress(Exception):  # a handler of the log failed: the request is answered all the same
        log.error(message, operation, exc_info=error)
