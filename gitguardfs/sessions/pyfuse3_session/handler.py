"""What every handler is wrapped in: its classification, waiting, and the error boundary.

pyfuse3 ends the mount on any exception that is not FUSEError, and on an answer that it cannot
translate: ``handler`` turns every one of them into an errno.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from pyfuse3 import FUSEError

from gitguardfs.guard.rules import Refused
from gitguardfs.protocol import Later
from gitguardfs.serving.boundary import GUARDED, Guarded, errno_of
from gitguardfs.sessions.pyfuse3_session.answers import FITS

P = ParamSpec("P")
R = TypeVar("R")


class Handling(Protocol):
    """What a handler is a method of."""

    async def ask_again(self, name: str, later: Later, call: Callable[[], Awaitable[R]]) -> R:
        """Make ``call`` again, which has raised ``later``, until it is done or fails."""

    def note_refusal(self, operation: str, refused: Refused, args: Sequence[Any]) -> None:
        """Note that a request was refused."""


S = TypeVar("S", bound=Handling)
Handler = Callable[Concatenate[S, P], Coroutine[Any, Any, R]]


def handler(guarded: Guarded) -> Callable[[Handler[S, P, R]], Handler[S, P, R]]:
    """Classify a handler and give it the error boundary."""

    def decorate(method: Handler[S, P, R]) -> Handler[S, P, R]:
        name = method.__name__
        GUARDED[name] = guarded
        fits = FITS[method.__annotations__["return"]]

        @wraps(method)
        async def bounded(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
            try:
                try:
                    answer = await method(self, *args, **kwargs)
                except Later as later:
                    call = partial(method, self, *args, **kwargs)
                    answer = await self.ask_again(name, later, call)
                if fits(answer):
                    return answer
                raise TypeError(f"no answer to {name}: {answer!r:.100}")
            except FUSEError:
                raise
            except Exception as error:
                number = errno_of(error, name, lambda it: self.note_refusal(name, it, args))
            raise FUSEError(number)

        return bounded

    return decorate
