"""The error boundary that every request passes, and the table of how each request is guarded."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from gitguardfs.base.protocol import Caller, GuestGid, GuestUid, RequestError
from gitguardfs.fs.audit_log import AuditLog
from gitguardfs.fs.descriptors import DescriptorCache
from gitguardfs.names.rules import Refused

MAX_ERRNO = 511
"""The largest errno that the kernel takes in a reply. It drops a reply with a larger one, and the
caller would hang."""

ENOSYS_IS_MEANT = ("getxattr", "listxattr")
"""Requests that may be answered ENOSYS, after which the kernel sends no more of that kind for the
whole mount. An ENOSYS of the source is about one object: a single file that cannot be synced would
turn fsync off for all."""

UNKNOWN = Caller(GuestUid(-1), GuestGid(-1))

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


class GuardedBy(Enum):
    """Where the guard checks a request. A test demands one of these for every request."""

    NAME = "by a name in a directory"
    NODE = "by a node"
    HANDLE = "when its handle was opened"
    NOTHING = "not at all: it names no object"
    UNSUPPORTED = "never served"


GUARDED_BY: dict[str, GuardedBy] = {"poll": GuardedBy.UNSUPPORTED}
"""The classification of every request. A session finds the method of ``Operations`` by its name."""


class Boundary:
    """The error boundary of one mount."""

    def __init__(self, audit: AuditLog, descriptors: DescriptorCache) -> None:
        """Report refusals to ``audit``; end the leases of ``descriptors`` with each request."""
        self._audit = audit
        self.descriptors = descriptors

    def errno_of(self, error: Exception, operation: str, args: Sequence[Any] = ()) -> int:
        """Return the errno of the answer to a request that raised ``error``. Raises nothing.

        EACCES for Refused, the error's own errno for OSError and RequestError. Anything else is a
        bug: it is logged, and the answer is EIO. ``args`` are the arguments of the request.
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
    with suppress(Exception):  # even if a log handler fails, the request is answered
        log.error(message, operation, exc_info=error)


class Bounded(Protocol):
    """A class whose methods serve requests."""

    boundary: Boundary


B = TypeVar("B", bound=Bounded)
Method = Callable[Concatenate[B, P], R]


def guarded_by(guard: GuardedBy) -> Callable[[Method[B, P, R]], Method[B, P, R]]:
    """Return a decorator that classifies a request's method in ``GUARDED_BY``.

    The decorated method raises only RequestError.
    """

    def decorate(method: Method[B, P, R]) -> Method[B, P, R]:
        name = method.__name__
        GUARDED_BY[name] = guard

        @wraps(method)
        def bounded(*args: Any) -> R:  # with ``self``: to take the tuple apart costs 0.2 us
            try:
                args[0].boundary.descriptors.request += 1
                try:
                    return method(*args)  # type: ignore[call-arg]
                finally:
                    if (descriptors := args[0].boundary.descriptors).passing:
                        descriptors.close_passing()
            except RequestError:
                raise
            except Exception as error:
                number = args[0].boundary.errno_of(error, name, args)
            # Not in the except clause: the new error would keep the old one alive as its context,
            # and with that all objects in its frames.
            raise RequestError(number)

        return bounded  # type: ignore[return-value]

    return decorate
