"""Changes of the system. All of them are undone, the last one first, after an error or a signal."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Self

from gitguardfs.base.errors import Exit, UserError
from gitguardfs.linux.programs import call

_HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Changes:
    """Changes made in a ``with`` block. An exception that leaves the block undoes all of them.

    The block holds SIGINT, SIGTERM and SIGHUP: after the change that is being made, the first of
    them ends the block by a UserError. ``report`` gets a line for each change, and must not raise.
    A rehearsal reports changes without making them.
    """

    def __init__(self, report: Callable[[str], None], *, is_rehearsal: bool = False) -> None:
        self.report = report
        self.is_rehearsal = is_rehearsal
        self.count = 0
        """Number of changes begun."""
        self._undos: list[tuple[str, Callable[[], object]]] = []
        self._received: list[int] = []
        self._handlers: dict[int, signal._HANDLER] = {}

    def __enter__(self) -> Self:
        """Hold signals by a handler. Programs that are run would inherit a signal mask."""
        for number in _HELD:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._handlers[number] = signal.signal(number, self._note_signal)
        return self

    def _note_signal(self, number: int, _frame: FrameType | None) -> None:
        self._received.append(number)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Undo everything after an exception, and restore the signal handlers."""
        if kind is not None:
            self._undo()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def make(
        self,
        text: str,
        do: Callable[[], object],
        undo: Callable[[], object] | None = None,
        detail: str = "",
    ) -> None:
        """Report a change and make it. ``undo`` is called even if ``do`` fails halfway.

        ``text`` is the change as shell commands, where possible. A rehearsal reports ``detail`` as
        well. Raises UserError after a signal, and the errors of ``do``.
        """
        self.count += 1
        self.report(text)
        if self.is_rehearsal:
            if detail:
                self.report(detail)
            return
        if undo is not None:
            self.add_undo("", undo)
        do()
        if undo is not None:
            self._undos[-1] = text.splitlines()[0], undo
        if self._received:
            raise UserError(f"ended by {signal.Signals(self._received[0]).name}", code=Exit.SYSTEM)

    def add_undo(self, text: str, undo: Callable[[], object]) -> None:
        """Have ``undo`` called after an error; its success is reported unless ``text`` is empty."""
        self._undos.append((text, undo))

    def run(self, command: Sequence[str], undo: Sequence[str] = ()) -> None:
        """Run a command; the command ``undo`` undoes it."""
        self.make(
            shlex.join(command), lambda: call(command), (lambda: call(undo)) if undo else None
        )

    def _undo(self) -> None:
        """Undo all changes; report a failed undo and go on."""
        while self._undos:
            text, undo = self._undos.pop()
            try:
                undo()
            except Exception as error:
                self.report(f"could not undo{text and f': {text}'}: {error}")
            else:
                if text:
                    self.report(f"undone: {text}")
