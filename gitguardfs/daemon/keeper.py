"""Starts a daemon in the background again after it was killed: fstab knows no restart.

The keeper is the daemon's parent. It has nothing open, and ends when the daemon ends by itself.
"""

from __future__ import annotations

import os
import resource
import signal
import syslog
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import NoReturn

from gitguardfs.errors import Exit
from gitguardfs.signals import ENDING, REREAD, UNMOUNTED

PAUSE, LONGEST_PAUSE = 0.5, 60.0
"""Seconds until the next start; after each start that fails, twice as long."""
_PASSED_ON = (signal.SIGTERM, signal.SIGINT)
_IGNORED = tuple({*ENDING, REREAD, UNMOUNTED} - {*_PASSED_ON})
"""What ``pkill -USR1 gitguardfs`` and the like send to both processes."""

Start = Callable[[Callable[[], None]], tuple[int, int]]
"""Forks a daemon, which first makes a call. Returns its pid, and a pipe with its answer."""


def keep(name: str, first: Start, again: Callable[[bytes], Start], told: int) -> NoReturn:
    """Start a daemon, pass its answer on to the pipe ``told``, and keep it running.

    A daemon says OK (a byte) once it is ready, and with it what the next one, ``again(that)``, has
    to know. One that never was ready is not started again: the caller got the error. ``name`` is
    the mount point, for the log.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else waitpid(2) may find no child
    keeper = _Keeper()
    answer = keeper.start(first)
    with suppress(OSError):  # the caller was killed
        os.write(told, answer[:1])
    if not _is_ready(answer):
        os._exit(Exit.OK)
    # It must not keep the source's file system busy, nor the caller's pipes open.
    leave_the_terminal()
    os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    for number in _PASSED_ON:
        signal.signal(number, keeper.pass_on)
    syslog.openlog("gitguardfs", syslog.LOG_PID, syslog.LOG_DAEMON)
    state, pause = answer[1:], PAUSE
    while why := keeper.why_ended():
        syslog.syslog(
            syslog.LOG_ERR, f"{name}: the daemon ended ({why}); it is started again in {pause:g} s"
        )
        time.sleep(pause)
        answer = keeper.start(again(state))
        if _is_ready(answer):
            state, pause = answer[1:], PAUSE
        else:
            pause = min(2 * pause, LONGEST_PAUSE)
    os._exit(Exit.OK)


def leave_the_terminal() -> None:
    """Let the standard streams lead nowhere."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.close(null)


def _is_ready(answer: bytes) -> bool:
    return answer[:1] == bytes([Exit.OK])


class _Keeper:
    """The daemon that runs now, and how it ended."""

    def __init__(self) -> None:
        self._child = 0
        self._failed = ""

    def start(self, start: Start) -> bytes:
        """Start a daemon; return what it says."""
        self._child, self._failed = 0, ""
        try:
            self._child, pipe = start(_restore_signals)
        except OSError as error:  # no process can be started now
            self._failed = error.strerror or str(error)
            return b""
        with os.fdopen(pipe, "rb") as file:
            return file.read()

    def pass_on(self, number: int, _frame: FrameType | None) -> None:
        """Send a signal that ends the mount on to the daemon."""
        if not self._child:
            os._exit(Exit.OK)
        with suppress(ProcessLookupError):
            os.kill(self._child, number)

    def why_ended(self) -> str:
        """Wait for the daemon's end; return why it has to be started again, "" if it has not."""
        if not self._child:
            return self._failed
        _, status = os.waitpid(self._child, 0)
        self._child = 0
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            return "" if number in ENDING else signal.strsignal(number) or f"signal {number}"
        code = os.WEXITSTATUS(status)
        return "" if code in (Exit.OK, Exit.USAGE) else f"exit code {code}"


def _restore_signals() -> None:
    for number in (*_PASSED_ON, *_IGNORED):
        signal.signal(number, signal.SIG_DFL)
