"""What every request passes: the guard, in a way that is written down, and the error boundary."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from gitguardfs.guard.rules import Refused
from gitguardfs.protocol import Caller, Later, RequestError
from gitguardfs.serving.audit_log import AuditLog

MAX_ERRNO = 511
"""Larger ones are the kernel's own: it takes no reply with them, and the caller would hang."""

ENOSYS_IS_MEANT = ("getxattr", "listxattr")
"""Where the kernel is to ask no more, for the whole mount. From the source it would be one
object's: a single file that cannot be synced would turn fsync off for all."""

UNKNOWN = Caller(-1, -1)

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


class GuardedBy(Enum):
    """How the guard comes into a request. A test demands one of these for every request."""

    NAME = "by a name in a directory"
    NODE = "by a node"
    HANDLE = "when its handle was opened"
    NOTHING = "not at all: it names no object"
    UNSUPPORTED = "never served"


GUARDED_BY: dict[str, GuardedBy] = {"poll": GuardedBy.UNSUPPORTED}
"""The classification of every request. A session finds the method of ``Operations`` by its name."""


class Boundary:
    """The error boundary of one mount."""

    def __init__(self, audit: AuditLog) -> None:
        """Hand refusals to ``audit``."""
        self._audit = audit

    def errno_of(self, error: Exception, operation: str, args: Sequence[Any] = ()) -> int:
        """Return the errno that answers a request in which ``error`` was raised; raises nothing.

        What is no error of a system call is a bug: it is logged. ``args`` are the request's.
        """
        if isinstance(error, RequestError):
            return error.errno
        if isinstance(error, Refused):
            try:
                caller = next((one for one in args if type(one) is Caller), UNKNOWN)
                self._audit.refuse(operation, error, caller.uid, caller.pid)
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


class Bounded(Protocol):
    """What a request's method belongs to."""

    boundary: Boundary


B = TypeVar("B", bound=Bounded)
Method = Callable[Concatenate[B, P], R]


def guarded_by(guard: GuardedBy) -> Callable[[Method[B, P, R]], Method[B, P, R]]:
    """Classify a request's method; only RequestError and Later leave it then."""

    def decorate(method: Method[B, P, R]) -> Method[B, P, R]:
        name = method.__name__
        GUARDED_BY[name] = guard

        @wraps(method)
        def bounded(self: B, *args: Any) -> R:
            try:
                return method(self, *args)  # type: ignore[call-arg]
            except (Later, RequestError):
                raise
            except Exception as error:
                number = self.boundary.errno_of(error, name, args)
            # Not in the except clause: the error would live on with this one, and with it all
            # that its frames refer to.
            raise RequestError(number)

        return bounded  # type: ignore[return-value]

    return decorate
