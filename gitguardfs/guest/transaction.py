"""Runs steps as a transaction: on an error or a signal, finished steps are undone, last first."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Protocol, Self

from gitguardfs.base.errors import Exit, UserError

Undo = Callable[[], None]

_HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Step(Protocol):
    """One change of the system, which can be undone."""

    def describe(self) -> str:
        """Return what the step does, as shell commands where possible."""
        ...

    def do(self) -> Undo | None:
        """Make the change; return the function that undoes it.

        Raises UserError or OSError; then nothing is changed.
        """
        ...


class Transaction:
    """Applies steps within a ``with`` block. An exception that leaves the block undoes them.

    SIGINT, SIGTERM and SIGHUP are held: after the current step, the first of them ends the run by
    a UserError. ``report`` gets a line for each step; its exceptions are ignored.
    """

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._done: list[tuple[str, Undo]] = []
        self._came: list[int] = []
        self._before: dict[int, signal._HANDLER] = {}

    def __enter__(self) -> Self:
        """Hold signals by a handler. Programs that are run would inherit a signal mask."""
        for number in _HELD:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._came.append(number)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Undo everything after an exception, and restore the signal handlers."""
        if kind is not None:
            self._undo()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def apply(self, steps: Sequence[Step]) -> None:
        """Do every step. Raises UserError or OSError if a step fails, or a signal came."""
        for step in steps:
            self._report_safely(step.describe())
            undo = step.do()
            if undo is not None:
                self._done.append((step.describe().splitlines()[0], undo))
            if self._came:
                name = signal.Signals(self._came[0]).name
                raise UserError(f"ended by {name}", code=Exit.SYSTEM)

    def _undo(self) -> None:
        """Undo all finished steps, last first; report a failed undo and go on."""
        while self._done:
            what, undo = self._done.pop()
            try:
                undo()
            except Exception as error:
                self._report_safely(f"could not undo: {what}: {error}")
            else:
                self._report_safely(f"undone: {what}")

    def _report_safely(self, text: str) -> None:
        try:
            self._report(text)
        except Exception:  # a failed print must not stop a change halfway
            return
