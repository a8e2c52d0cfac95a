"""Makes the main thread obey a signal that it would obey at the next request only.

Python calls a signal's handler between two of its own steps. A signal that comes after the last
step before read(2), or that another thread takes, does not end the wait for a request.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from gitguardfs.base.signals import leave_to_main_thread

NUDGE = signal.SIGURG
"""A signal that means nothing, and ends a system call."""
PAUSES = (0.02, 0.2)
"""Seconds before each nudge: by then the thread has obeyed the signal, or waits in read(2)."""


@contextmanager
def nudged() -> Iterator[None]:
    """Nudge the calling thread after each signal. Does nothing in another than the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived, noted = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(noted, False)  # the signal's handler in C writes its number there
    before = signal.signal(NUDGE, lambda *_: None)
    former = signal.set_wakeup_fd(noted, warn_on_full_buffer=False)
    main = threading.main_thread().ident or 0
    has_ended = threading.Event()
    thread = threading.Thread(target=_nudge, args=(arrived, main, has_ended), name="nudge")
    thread.daemon = True
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(former)
        has_ended.set()
        os.close(noted)
        thread.join()
        os.close(arrived)
        signal.signal(NUDGE, before)


def _nudge(arrived: int, thread: int, has_ended: threading.Event) -> None:
    leave_to_main_thread()
    while numbers := os.read(arrived, 100):
        if set(numbers) == {NUDGE}:
            continue
        for pause in PAUSES:
            if has_ended.wait(pause):
                return
            with suppress(ProcessLookupError):
                signal.pthread_kill(thread, NUDGE)
