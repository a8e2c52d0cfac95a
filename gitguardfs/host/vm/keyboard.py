"""Single keys of a terminal, and lines that it does not show."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from gitguardfs.base.errors import UserError

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
PASTED = 0.2
"""Seconds in which the next line comes if several are pasted."""
_CLEAR = 0x15
"""Ctrl-U."""
_LOCAL_MODES, _CHARACTERS = 3, 6
"""Places in the list that termios.tcgetattr() returns."""


class Keyboard:
    """Reads the terminal ``fd`` key by key."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def pressed(self, seconds: float) -> bytes | None:
        """Return the keys that were typed; b"" if none was within ``seconds``, None at the end."""
        if not select.select([self._fd], [], [], seconds)[0]:
            return b""
        try:
            return os.read(self._fd, 1024) or None
        except OSError:  # the terminal is gone
            return None

    def forget(self) -> None:
        """Forget all keys typed so far, once the terminal has all output."""
        sys.stdout.flush()
        with suppress(termios.error):  # the terminal is gone
            termios.tcdrain(self._fd)
            termios.tcflush(self._fd, termios.TCIFLUSH)


def hidden_line(prompt: str) -> str:
    """Ask for a line at the terminal of standard input, which does not show it.

    Its keys are read by themselves: of a longer line, a terminal itself keeps only the beginning.
    Raises UserError for several lines, of which one would be kept; termios.error.
    """
    line = bytearray()
    with opened(sys.stdin.fileno()) as keys:
        print(prompt, end="", file=sys.stderr, flush=True)
        try:
            while (typed := keys.pressed(60.0)) is not None:
                for at, key in enumerate(typed):
                    if key in b"\r\n":
                        if (typed[at + 1 :] + (keys.pressed(PASTED) or b"")).strip():
                            raise UserError("these are several lines", "nothing was kept")
                        return line.decode(errors="replace")
                    _type(line, key)
            return ""
        finally:
            print(file=sys.stderr)


def _type(line: bytearray, key: int) -> None:
    if key in b"\b\x7f":
        del line[-1:]
    elif key == _CLEAR:
        line.clear()
    else:
        line.append(key)


@contextmanager
def opened(fd: int) -> Iterator[Keyboard]:
    """Yield the keys of a terminal; restore its modes at the end, also if a signal ends it.

    A signal of ENDING becomes SystemExit, SIGINT KeyboardInterrupt; then the process is to end, and
    ignores others. Raises termios.error.
    """
    modes = termios.tcgetattr(fd)
    before = {number: signal.getsignal(number) for number in ENDING}

    def end(number: int, _: object) -> None:
        before.clear()
        for each in ENDING:  # the modes are restored next, which no other signal may interrupt
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    try:
        for number in ENDING:
            signal.signal(number, end)
        termios.tcsetattr(fd, termios.TCSAFLUSH, _by_key(fd))
        yield Keyboard(fd)
    finally:
        try:
            for number in ENDING:  # one that came just now is raised here
                signal.signal(number, signal.SIG_IGN)
        finally:
            with suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(fd, termios.TCSAFLUSH, modes)
            for number, handler in before.items():
                signal.signal(number, handler)


def _by_key(fd: int) -> list[Any]:
    """Return the modes in which each key is read at once, and none stops the process."""
    new = termios.tcgetattr(fd)
    new[_LOCAL_MODES] &= ~(termios.ICANON | termios.ECHO)
    none = bytes([os.fpathconf(fd, "PC_VDISABLE") & 0xFF])
    new[_CHARACTERS][termios.VMIN], new[_CHARACTERS][termios.VTIME] = 1, 0
    new[_CHARACTERS][termios.VSUSP] = none  # a stopped process could not restore the modes
    return new
