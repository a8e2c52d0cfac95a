"""Serving one mount, from the moment that it is there until it is to end."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Callable
from contextlib import suppress

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
"""Seconds within which a new mount has to answer."""


async def serve(
    requests: Requests, mirror: Mirror | None, mountpoint: str, ready: Callable[[], None]
) -> signal.Signals | None:
    """Serve to the end; returns the signal that ended it, if it was one.

    ``ready`` is called when the mount answers.
    """
    came: list[signal.Signals] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(_obey_signals, requests, mirror, came)
        nursery.start_soon(_announce, mountpoint, ready)
        gc.collect()
        gc.freeze()
        await requests.serve()
        nursery.cancel_scope.cancel()
    return came[0] if came else None


async def _obey_signals(
    requests: Requests,
    mirror: Mirror | None,
    came: list[signal.Signals],
    task_status: trio.TaskStatus[None],
) -> None:
    with trio.open_signal_receiver(*ENDING, REREAD) as signals:
        task_status.started()
        async for number in signals:
            if number == REREAD:
                if mirror is not None:
                    mirror.reread()
                continue
            came.append(signal.Signals(number))
            log.info("%s: unmounting", came[-1].name)
            requests.end()


async def _announce(mountpoint: str, ready: Callable[[], None]) -> None:
    """Call ``ready`` once a request has gone through the kernel and come back."""
    answered = trio.Event()
    token = trio.lowlevel.current_trio_token()
    # Not to_thread.run_sync: a request that hangs could then not be given up.
    trio.lowlevel.start_thread_soon(
        lambda: os.statvfs(mountpoint), lambda _outcome: token.run_sync_soon(answered.set)
    )
    with trio.fail_after(ANSWER_LIMIT):
        await answered.wait()
    with suppress(OSError):
        ready()
