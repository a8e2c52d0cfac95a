"""Runs steps as a transaction: on an error or a signal, finished steps are undone, last first."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Protocol, Self

from gitguardfs.errors import Exit, UserError

Undo = Callable[[], None]

_HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Step(Protocol):
    """One change of the system."""

    def describe(self) -> str:
        """What it does, as commands where there are such."""
        ...

    def do(self) -> Undo | None:
        """Do it; return what undoes it. Raises UserError or OSError, having done nothing."""
        ...


class Transaction:
    """Applies steps within a ``with`` block; whatever leaves the block by an exception undoes them.

    SIGINT, SIGTERM and SIGHUP end no step and nothing between two steps: the one that came is
    found after the step, and ends the run by a UserError. ``tell`` gets a line for each step; it
    must not raise, and if it does, nothing comes of that.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._done: list[tuple[str, Undo]] = []
        self._came: list[int] = []
        self._before: dict[int, signal._HANDLER] = {}

    def __enter__(self) -> Self:
        """Hold signals. Not by a mask: programs that are run would inherit it."""
        for number in _HELD:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._came.append(number)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Undo everything if it did not go well, and let signals through again."""
        if kind is not None:
            self._undo()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def apply(self, steps: Sequence[Step]) -> None:
        """Do every step; UserError or OSError if one fails, or if a signal came."""
        for step in steps:
            self._say(step.describe())
            undo = step.do()
            if undo is not None:
                self._done.append((step.describe().splitlines()[0], undo))
            if self._came:
                name = signal.Signals(self._came[0]).name
                raise UserError(f"ended by {name}", code=Exit.SYSTEM)

    def _undo(self) -> None:
        """Undo everything, last first; what cannot be undone is told and passed over."""
        while self._done:
            what, undo = self._done.pop()
            try:
                undo()
            except Exception as error:
                self._say(f"could not undo: {what}: {error}")
            else:
                self._say(f"undone: {what}")

    def _say(self, text: str) -> None:
        try:
            self._tell(text)
        except Exception:  # a line that cannot be written is no reason to stop halfway
            return
