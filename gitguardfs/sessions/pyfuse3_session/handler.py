"""What every handler is wrapped in: calls that wait, requests that are made again, and errors.

pyfuse3 ends the mount on any exception that is not FUSEError, and on an answer that it cannot
translate: ``handler`` turns every one of them into an errno.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from pyfuse3 import FUSEError

from gitguardfs.protocol import Later, RequestError
from gitguardfs.serving.blocking import Blocking
from gitguardfs.serving.boundary import Boundary
from gitguardfs.sessions.pyfuse3_session.answers import FITS

_BLOCKING = re.compile(r" \| Blocking\[.*\]|Blocking\[.*\] \| ")
"""What an annotation says beside the reply itself."""

P = ParamSpec("P")
R = TypeVar("R")


class Handling(Protocol):
    """What a handler is a method of."""

    boundary: Boundary

    async def ask_again(self, name: str, later: Later, call: Callable[[], Awaitable[R]]) -> R:
        """Make ``call`` again, which has raised ``later``, until it is done or fails."""

    async def run_blocking(self, blocking: Blocking[R]) -> R:
        """Make the call that is left of a request; returns the reply."""


S = TypeVar("S", bound=Handling)
Translation = Callable[Concatenate[S, P], R | Blocking[R]]
Handler = Callable[Concatenate[S, P], Coroutine[Any, Any, R]]


def handler(method: Translation[S, P, R]) -> Handler[S, P, R]:
    """Make a handler of a method that translates a request and its reply."""
    name = method.__name__
    fits = FITS[_BLOCKING.sub("", method.__annotations__["return"])]

    async def answer(self: S, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        reply: Any = method(self, *args, **kwargs)
        return await self.run_blocking(reply) if type(reply) is Blocking else reply

    @wraps(method)
    async def bounded(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            try:
                reply: Any = method(self, *args, **kwargs)
                if type(reply) is Blocking:
                    reply = await self.run_blocking(reply)
            except Later as later:
                reply = await self.ask_again(name, later, partial(answer, self, args, kwargs))
            if fits(reply):
                return reply  # type: ignore[no-any-return]
            raise TypeError(f"no answer to {name}: {reply!r:.100}")
        except FUSEError:
            raise
        except RequestError as error:
            number = error.errno
        except Exception as error:
            number = self.boundary.errno_of(error, name)
        raise FUSEError(number)

    return bounded
