"""Starts a daemon again after it was killed, sooner than a service manager could.

The keeper is the daemon's parent. It has done Python's imports, which take most of the time of a
start. It has no file of the mount open. When the daemon ends by itself, the keeper ends likewise.
"""

from __future__ import annotations

import gc
import logging
import os
import resource
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import pairwise
from types import FrameType
from typing import NoReturn

from gitguardfs.base.errors import Exit
from gitguardfs.base.signals import ENDING, REREAD, UNMOUNTED
from gitguardfs.mounting.fd_store import Relay

PAUSE, LONGEST_PAUSE = 0.1, 60.0
"""Seconds until the next start; after each start that fails, twice as long."""
SOON = 4.0
"""Seconds. The start of a daemon that ends sooner counts as failed."""
LONGEST_TO_GO_ON = 2.0
"""Seconds. A daemon that is started after a longer pause mounts the view anew: a request that waits
for an answer may be what ends each of them."""
LONGEST_DELAY = 1.0
"""Seconds until a signal is passed on. If it comes just before a call that waits, Python runs its
handler only once that call is interrupted."""
TAKEN_AWAY = 3
"""Exit code of a daemon whose view is gone without root's signal. Here no other daemon is started:
only a service manager knows whether it is wanted. Others get Exit.SYSTEM."""
_PASSED_ON = (*ENDING, REREAD)

Ready = Callable[[bytes], None]
"""Receives the state for the next daemon, once the mount answers."""
Run = Callable[[Ready], int]
"""Runs a daemon from its start to its end; returns its exit code."""
Again = Callable[[bytes, Ready], int]
"""Runs the next daemon, which receives the state of the one before it."""


def keep(
    name: str,
    first: Run,
    again: Again,
    report: Callable[[bytes], None],
    log: Callable[[str], None],
    relay: Relay,
) -> NoReturn:
    """Run a daemon in a child, start another one whenever it is killed, and end as the last did.

    ``report`` gets the first daemon's answer, as ``be_daemon`` writes it. A daemon that never was
    ready is not started again; after several that ended soon the next one mounts the view anew.
    ``relay`` takes descriptors from each daemon to the next. ``name`` is the mount point, for the
    ``log``.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else waitpid(2) may find no child
    keeper = _Keeper()
    signal.signal(UNMOUNTED, signal.SIG_IGN)  # is for the daemon alone
    for number in _PASSED_ON:
        signal.signal(number, keeper.pass_on)
    signal.signal(signal.SIGALRM, lambda *_: relay.receive())
    signal.setitimer(signal.ITIMER_REAL, LONGEST_DELAY, LONGEST_DELAY)  # a fork has none
    gc.freeze()  # its marks are in the objects, whose memory both processes share
    answer = keeper.start(first)
    was_ready = is_ready(answer)
    if was_ready:
        relay.started()
    report(answer)
    # It must not keep the source's file system busy, nor the caller's pipes open.
    end = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    for before, after in pairwise((2, *sorted(relay.descriptors), end)):
        os.closerange(before + 1, after)
    state, pause, since = answer[1:], PAUSE, time.monotonic()
    while (why := keeper.why_ended()) and was_ready:
        if time.monotonic() - since > SOON:
            pause = PAUSE
        log(f"{name}: the daemon ended ({why}); it is started again in {pause:g} s")
        time.sleep(pause)
        relay.receive()
        relay.goes_on = pause < LONGEST_TO_GO_ON
        pause = min(2 * pause, LONGEST_PAUSE)
        relay.starting()
        answer, since = keeper.start(partial(again, state)), time.monotonic()
        if is_ready(answer):
            state = answer[1:]
            relay.started()
    relay.ended()
    keeper.end()


def be_daemon(run: Run, pipe: int) -> NoReturn:
    """Run a daemon and end by its exit code. The pipe gets its answer.

    The answer is the byte OK and the state for the next daemon, once the daemon is ready; or its
    exit code.
    """

    def ready(state: bytes) -> None:
        nonlocal pipe
        _write(pipe, bytes([Exit.OK]) + state)
        os.close(pipe)
        pipe = -1  # its number may be that of a user's file now

    code = int(Exit.SYSTEM)
    try:
        code = run(ready)
    finally:
        logging.shutdown()
        _write(pipe, bytes([for_others(code)]))
        os._exit(code)


def is_ready(answer: bytes) -> bool:
    """Return whether a daemon's answer says that it was ready."""
    return answer[:1] == bytes([Exit.OK])


def for_others(code: int) -> int:
    """Return the exit code that processes other than the keeper get."""
    return Exit.SYSTEM if code == TAKEN_AWAY else code


def leave_the_terminal() -> None:
    """Redirect the standard streams to /dev/null."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.close(null)


def _write(pipe: int, answer: bytes) -> None:
    with suppress(OSError):  # ready was called, or the reader was killed
        os.write(pipe, answer)


class _Keeper:
    """The daemon that runs now, and the end of the last one."""

    def __init__(self) -> None:
        self._child = 0
        self._failed = ""
        self._status = Exit.SYSTEM << 8
        self._is_told_to_end = False

    def start(self, run: Run) -> bytes:
        """Start a daemon; return its answer, b"" if it ended without one."""
        self._child, self._failed = 0, ""
        readable, writable = os.pipe()
        try:
            self._child = os.fork()
        except OSError as error:  # no process can be started now
            self._failed = error.strerror or str(error)
        else:
            if self._child == 0:
                for number in ENDING:
                    signal.signal(number, signal.SIG_DFL)
                signal.signal(REREAD, signal.SIG_IGN)  # until it has read something
                os.close(readable)
                be_daemon(run, writable)
        os.close(writable)
        with os.fdopen(readable, "rb") as pipe:
            return pipe.read()

    def pass_on(self, number: int, _frame: FrameType | None) -> None:
        """Send a signal on to the daemon; after one that ends the mount, start no other daemon."""
        if self._child:
            with suppress(ProcessLookupError):
                os.kill(self._child, number)
        elif number in ENDING:
            os._exit(Exit.OK)
        self._is_told_to_end |= number in ENDING

    def why_ended(self) -> str:
        """Wait for the daemon's end; return the reason to start another one, "" for none."""
        if not self._child:
            return self._failed
        _, self._status = os.waitpid(self._child, 0)
        self._child = 0
        if self._is_told_to_end:  # one whose source hangs ends with an error
            return ""
        if os.WIFSIGNALED(self._status):
            number = os.WTERMSIG(self._status)
            return "" if number in ENDING else signal.strsignal(number) or f"signal {number}"
        code = os.WEXITSTATUS(self._status)
        return "" if code in (Exit.OK, Exit.USAGE, TAKEN_AWAY) else f"exit code {code}"

    def end(self) -> NoReturn:
        """End this process by the exit code or the signal of the daemon."""
        if os.WIFSIGNALED(self._status):
            number = os.WTERMSIG(self._status)
            with suppress(OSError):  # SIGKILL
                signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        os._exit(for_others(os.WEXITSTATUS(self._status)))
