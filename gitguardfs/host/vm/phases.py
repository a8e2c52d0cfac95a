"""Shows the phases of a start: download, setup and boot, each on a line that ends with its time.

On a terminal a phase that goes on is one row, with a bar where it is known how much is left.
Elsewhere its beginning and steps are lines of their own. Nothing that a guest writes is in them. If
a phase fails, the end of its log is printed, with no character that acts on a terminal.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from gitguardfs.base import columns
from gitguardfs.base.errors import shown
from gitguardfs.base.findings import EVERY, ProgressLine
from gitguardfs.host.vm import logs

BAR = 24
"""Characters of a bar: with name, percent, step and time it fits into 80 columns."""
QUOTED = 8
"""Lines of the log of a failed phase that are printed."""


class Phase:
    """A phase that goes on while its context lasts."""

    def __init__(self, name: str, log: str = "") -> None:
        """Make a phase; ``log`` is the path of the log that tells why it failed."""
        self._name, self._log = name, log
        self._line = ProgressLine(sys.stderr)
        self._what, self._share = "", -1.0
        self._began = self._next = time.monotonic()

    def __enter__(self) -> Self:
        """Show that the phase begins."""
        self._began = time.monotonic()
        self._step()
        return self

    def show(self, what: str = "", share: float = -1.0) -> None:
        """Show the step that goes on, and of the whole the ``share`` done: 0 to 1, or unknown.

        Without arguments, show the time that has passed.
        """
        is_new = what not in ("", self._what)
        self._what = what or self._what
        self._share = self._share if share < 0 else min(share, 1.0)
        if is_new:
            self._step()
        elif time.monotonic() >= self._next:
            self._draw()

    def clear(self) -> None:
        """Clear the row, for what others print."""
        self._line.clear()

    def say(self, text: str) -> None:
        """Print a line of its own."""
        self.clear()
        print(text, file=sys.stderr, flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Print the time of the phase, and if it failed the end of its log."""
        failed = isinstance(error, Exception)
        how = "" if kind is None else "failed after " if failed else "stopped after "
        self.say(f"{self._name} ... {how}{self._time()}")
        quoted = logs.last_lines(self._log, QUOTED) if failed and self._log else []
        if quoted:
            self.say(f"the end of {shown(self._log)}:")
            for line in quoted:
                self.say(f"  {line}"[: columns.width_of(sys.stderr) - 1])

    def _step(self) -> None:
        if sys.stderr.isatty():
            self._draw()
        else:
            self.say(f"{self._name}{self._what and ': '}{self._what} ...")

    def _draw(self) -> None:
        self._next = time.monotonic() + EVERY
        parts = [self._name, self._what, self._time()]
        if self._share >= 0:
            bar = "#" * int(self._share * BAR)
            parts.insert(1, f"[{bar:-<{BAR}}] {int(self._share * 100):3} %")
        self._line.show("  ".join(filter(None, parts)))

    def _time(self) -> str:
        seconds = int(time.monotonic() - self._began)
        return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min {seconds % 60} s"
