"""Puts the daemon into the background once the mount answers, and starts it again if it is killed.

Under a service manager it stays in the foreground, and that is notified instead.
"""

from __future__ import annotations

import logging
import os
import resource
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from signal import strsignal
from typing import NoReturn

from gitguardfs.daemon.logs import log_to_syslog
from gitguardfs.errors import Exit
from gitguardfs.signals import ENDING

Ready = Callable[[], None]
STARTS = 5
"""How often a daemon is started again that is killed before it is ready, as by systemd."""


def in_background(run: Callable[[Ready], int], again: Callable[[str, Ready], int] | None) -> int:
    """Run ``run(ready)`` in a child; return 0 when it calls ``ready``, else its exit code.

    The child writes its errors to our standard error until it is ready. Then it closes the terminal
    and our pipes, since mount(8) and shells wait until these are closed.

    With ``again``, a process between them, the keeper, stays until the child ends by itself: fstab
    knows no restart. If a signal such as SIGKILL ends the child once it was ready,
    ``again(why, ready)`` is run in a new one, and logs to syslog from the start.
    """
    readable, writable = os.pipe()
    if os.fork() == 0:
        os.close(readable)
        os.setsid()
        if again is None:
            _be_daemon(run, writable)
        _keep(run, again, writable)
    os.close(writable)
    with os.fdopen(readable, "rb") as pipe:
        answer = pipe.read(1)
    if not answer:
        print("gitguardfs: the daemon died before the mount was up", file=sys.stderr)
        return Exit.SYSTEM
    return answer[0]


def _keep(run: Callable[[Ready], int], again: Callable[[str, Ready], int], told: int) -> NoReturn:
    pid, answer = _started(run)
    with suppress(OSError):  # the caller was killed
        os.write(told, answer)
    # It must not keep the source's file system busy, nor the caller's pipes open.
    _leave_the_terminal()
    os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    is_ready, kills = answer == bytes([Exit.OK]), 0
    while is_ready or kills:
        status = os.waitpid(pid, 0)[1]
        kills = 1 if is_ready else kills + 1
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) in ENDING or kills > STARTS:
            break
        pid, answer = _started(partial(again, strsignal(os.WTERMSIG(status)) or ""))
        is_ready = answer == bytes([Exit.OK])
    os._exit(Exit.OK)


def _started(run: Callable[[Ready], int]) -> tuple[int, bytes]:
    """Run it in a child; return that and what it says: OK once it is ready, or its exit code."""
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(readable)
        _be_daemon(run, writable)
    os.close(writable)
    with os.fdopen(readable, "rb") as pipe:
        return pid, pipe.read(1)


def _be_daemon(run: Callable[[Ready], int], told: int) -> NoReturn:
    def ready() -> None:
        try:
            log_to_syslog()
            _leave_the_terminal()
        finally:
            os.write(told, bytes([Exit.OK]))
            os.close(told)

    code = int(Exit.SYSTEM)
    try:
        code = run(ready)
    finally:
        logging.shutdown()
        with suppress(OSError):  # ready was called: the parent has gone
            os.write(told, bytes([code]))
        os._exit(code)


def _leave_the_terminal() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.close(null)


def notify(address: str | None, message: str) -> None:
    """Send a message to the service manager (sd_notify(3)); do nothing without an address."""
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        sock.sendto(message.encode(), address)
