"""A program in a terminal of its own, whose keys a test presses."""

import os
import select
import signal
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

LIMIT = 30.0
"""Seconds for what the program should print."""


class Terminal:
    """A running program, and what it has printed."""

    def __init__(self, words: list[str], size: tuple[int, int] = (24, 80), **how: Any) -> None:
        self._master, self._slave = os.openpty()
        termios.tcsetwinsize(self._slave, size)
        self.modes_before = self.modes
        self.said = ""
        """All of it, with \\n for the ends of lines."""
        ends = dict.fromkeys(("stdin", "stdout", "stderr"), self._slave) | how
        self.process = subprocess.Popen(words, start_new_session=True, **ends)

    @property
    def modes(self) -> list[Any]:
        return termios.tcgetattr(self._slave)

    def resize(self, size: tuple[int, int]) -> None:
        termios.tcsetwinsize(self._slave, size)

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def read(self, seconds: float = 0.0) -> str:
        """Return what was printed since the last call, within ``seconds``."""
        new = b""
        end = time.monotonic() + seconds
        while select.select([self._master], [], [], max(0.0, end - time.monotonic()))[0]:
            new += os.read(self._master, 65536)
        text = new.decode().replace("\r\n", "\n")
        self.said += text
        return text

    def until(self, text: str) -> str:
        """Read until ``text`` comes; return what was printed since the last call."""
        new = ""
        end = time.monotonic() + LIMIT
        while text not in new:
            has_ended = self.process.poll() is not None
            new += self.read(0.05)
            is_late = has_ended or time.monotonic() > end
            assert text in new or not is_late, f"{text!r} does not come: {self.said!r}"
        return new

    def ended(self) -> int:
        """Wait for the program's end; return its exit status."""
        end = time.monotonic() + LIMIT
        while self.process.poll() is None:
            assert time.monotonic() < end, f"it does not end: {self.said!r}"
            self.read(0.05)
        self.read()
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._slave)
        os.close(self._master)


@contextmanager
def running(words: list[str], size: tuple[int, int] = (24, 80), **how: Any) -> Iterator[Terminal]:
    terminal = Terminal(words, size, **how)
    try:
        yield terminal
    finally:
        terminal.close()
