"""The decorator of every handler: makes calls that wait, and translates errors.

pyfuse3 ends the mount on any exception other than FUSEError, and on a reply that it cannot
translate. The decorator turns each of these into an errno.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from pyfuse3 import FUSEError

from gitguardfs.base.protocol import RequestError
from gitguardfs.fs.blocking import Blocking
from gitguardfs.fs.boundary import Boundary
from gitguardfs.sessions.pyfuse3_session.reply_checks import REPLY_CHECKS
from gitguardfs.sessions.pyfuse3_session.request_loop import RequestLoop
from gitguardfs.sessions.run_blocking import run_blocking

_BLOCKING = re.compile(r" \| Blocking\[.*\]|Blocking\[.*\] \| ")
"""The part of a return annotation that is not the reply's type."""

P = ParamSpec("P")
R = TypeVar("R")


class Handling(Protocol):
    """A class that has handlers."""

    boundary: Boundary
    request_loop: RequestLoop


S = TypeVar("S", bound=Handling)
Translation = Callable[Concatenate[S, P], R | Blocking[R]]
Handler = Callable[..., Coroutine[Any, Any, R]]
"""A handler. pyfuse3 declares ids as int; the method says by its annotations what each is."""


def handler(method: Translation[S, P, R]) -> Handler[R]:
    """Return a handler for a method that translates a request and its reply.

    The handler raises FUSEError only.
    """
    name = method.__name__
    fits = REPLY_CHECKS[_BLOCKING.sub("", method.__annotations__["return"])]

    @wraps(method)
    async def bounded(*args: Any, **kwargs: Any) -> R:  # with ``self``, as in ``guarded_by``
        try:
            reply: Any = method(*args, **kwargs)
            if type(reply) is Blocking:
                reply = await run_blocking(reply, args[0].request_loop)
            if fits(reply):
                return reply  # type: ignore[no-any-return]
            raise TypeError(f"{name} returned no valid reply: {reply!r:.100}")
        except FUSEError:
            raise
        except RequestError as error:
            number = error.errno
        except Exception as error:
            number = args[0].boundary.errno_of(error, name)
        raise FUSEError(number)

    return bounded
