"""Serving one mount, from the moment that it is there until it is to end."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import trio

from gitguardfs.core.mirror import Mirror
from gitguardfs.fuse.requests import Requests

log = logging.getLogger(__name__)

HAND_OVER = signal.SIGUSR2
"""Ends it like the others, but for the seal, which stays for the next daemon to take over."""
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, HAND_OVER)
REREAD = signal.SIGUSR1
"""Who is in which group is to be found out anew."""
ANSWER_LIMIT = 30.0
"""Seconds after which it is said that a new mount does not answer yet."""


async def serve(
    requests: Requests, mirror: Mirror | None, mountpoint: str, ready: Callable[[], None]
) -> signal.Signals | None:
    """Serve to the end; returns the signal that ended it, if it was one.

    ``ready`` is called when the mount answers.
    """
    came: list[signal.Signals] = []
    _obey_signals(requests, mirror, came)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_announce, mountpoint, ready)
        gc.collect()
        gc.freeze()
        await requests.serve()
        nursery.cancel_scope.cancel()
    for number in (*ENDING, REREAD):  # Python's exit puts the default back for all others
        signal.signal(number, signal.SIG_IGN)
    return came[0] if came else None


def _obey_signals(requests: Requests, mirror: Mirror | None, came: list[signal.Signals]) -> None:
    """Handle signals from now on for good: while the view comes down, more of them mean nothing.

    trio's own way puts the handlers back when the loop ends, and a second SIGTERM would then kill
    a daemon that is just about to unmount.
    """
    token = trio.lowlevel.current_trio_token()

    def obey(number: signal.Signals) -> None:
        if number == REREAD:
            if mirror is not None:
                mirror.reread()
        elif not came:
            came.append(number)
            requests.end()
            with suppress(Exception):  # what is raised here would end trio's loop as a bug
                log.info("%s: unmounting", number.name)

    def note(number: int, _frame: FrameType | None) -> None:
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(obey, signal.Signals(number))

    for number in (*ENDING, REREAD):
        signal.signal(number, note)


async def _announce(mountpoint: str, ready: Callable[[], None]) -> None:
    """Call ``ready`` once a request has gone through the kernel and come back.

    Raises nothing: a mount that is late, or that nobody could be told of, stays.
    """
    answered = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def deliver(_outcome: object) -> None:
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(answered.set)

    try:
        # Not to_thread.run_sync: a request that hangs could then not be given up.
        trio.lowlevel.start_thread_soon(lambda: os.statvfs(mountpoint), deliver)
        with trio.move_on_after(ANSWER_LIMIT):
            await answered.wait()
        if not answered.is_set():
            log.warning("%s has not answered for %d s: waiting on", mountpoint, ANSWER_LIMIT)
            await answered.wait()
        ready()
    except Exception:
        log.exception("nobody was told that the mount is there; it stays")
