"""Forks the daemon: into the background, or below the main process of a service."""

from __future__ import annotations

import logging
import os
import sys
import syslog
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NoReturn

from gitguardfs.base.errors import Exit
from gitguardfs.mounting import keeper
from gitguardfs.mounting.fd_store import Relay
from gitguardfs.mounting.keeper import Again, Ready, Run
from gitguardfs.mounting.logs import log_to_syslog

log = logging.getLogger(__name__)


def in_service(
    name: str, run: Run, again: Again, notify: Callable[[], None], relay: Relay
) -> NoReturn:
    """Run a daemon in a child, and ``again`` if it is killed (``keeper``).

    This process stays the main process of the service. ``notify`` is called when the first daemon
    is ready. ``name`` is the mount point.
    """

    def report(answer: bytes) -> None:
        if keeper.is_ready(answer):
            notify()
        elif not answer:
            _print_that_it_died()

    keeper.keep(name, run, again, report, log.error, relay)


def in_background(name: str, run: Run, again: Again | None, relay: Relay) -> int:
    """Run a daemon in a child; return 0 when it calls ``ready``, else its exit code.

    The child writes its errors to our standard error until it is ready. Then it closes the terminal
    and our pipes, since mount(8) and shells wait until these are closed. With ``again``, a keeper
    stays between them, and starts another daemon if the first is killed; the next one logs to
    syslog from the start. ``name`` is the mount point.
    """
    readable, writable = os.pipe()
    if os.fork() == 0:
        os.close(readable)
        os.setsid()
        try:
            if again is None:
                keeper.be_daemon(partial(_run_detached, run), writable)
            _keep_detached(name, run, again, writable, relay)
        finally:  # never back into the caller
            os._exit(Exit.SYSTEM)
    os.close(writable)
    with os.fdopen(readable, "rb") as pipe:
        answer = pipe.read(1)
    if not answer:
        _print_that_it_died()
        return Exit.SYSTEM
    return answer[0]


def _print_that_it_died() -> None:
    print("gitguardfs: the daemon died before the mount was up", file=sys.stderr)


def _run_detached(run: Run, ready: Ready) -> int:
    """Run a daemon that leaves the terminal once it is ready."""

    def detach(state: bytes) -> None:
        try:
            log_to_syslog()
            keeper.leave_the_terminal()
        finally:
            ready(state)

    return run(detach)


def _keep_detached(name: str, run: Run, again: Again, pipe: int, relay: Relay) -> NoReturn:
    def first(ready: Ready) -> int:
        os.close(pipe)
        return _run_detached(run, ready)

    def following(state: bytes, ready: Ready) -> int:
        log_to_syslog()
        return again(state, ready)

    def report(answer: bytes) -> None:
        with suppress(OSError):  # the caller was killed
            os.write(pipe, answer[:1])
        keeper.leave_the_terminal()

    syslog.openlog("gitguardfs", syslog.LOG_PID, syslog.LOG_DAEMON)
    log_error = partial(syslog.syslog, syslog.LOG_ERR)
    keeper.keep(name, first, following, report, log_error, relay)
