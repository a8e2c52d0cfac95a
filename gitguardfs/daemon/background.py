"""Puts the daemon into the background once the mount answers; notifies the service manager."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NoReturn

from gitguardfs.daemon import keeper
from gitguardfs.daemon.logs import log_to_syslog
from gitguardfs.errors import Exit

Ready = Callable[[bytes], None]
"""Is called when the mount answers, with what the next daemon has to know."""


def in_background(
    name: str, run: Callable[[Ready], int], again: Callable[[bytes, Ready], int] | None
) -> int:
    """Run ``run(ready)`` in a child; return 0 when it calls ``ready``, else its exit code.

    The child writes its errors to our standard error until it is ready. Then it closes the terminal
    and our pipes, since mount(8) and shells wait until these are closed. With ``again`` a process
    between them stays, and starts another daemon if that one is killed (``keeper``); ``again`` logs
    to syslog from the start. ``name`` is the mount point.
    """
    readable, writable = os.pipe()
    if os.fork() == 0:
        os.close(readable)
        os.setsid()
        try:
            if again is None:
                _be_daemon(run, writable)
            keeper.keep(
                name,
                partial(_start, run, writable),
                lambda state: partial(_start, partial(again, state), -1),
                writable,
            )
        finally:  # never back into the caller
            os._exit(Exit.SYSTEM)
    os.close(writable)
    with os.fdopen(readable, "rb") as pipe:
        answer = pipe.read(1)
    if not answer:
        print("gitguardfs: the daemon died before the mount was up", file=sys.stderr)
        return Exit.SYSTEM
    return answer[0]


def _start(run: Callable[[Ready], int], other: int, begin: Callable[[], None]) -> tuple[int, int]:
    """Run it in a child, after ``begin()``; return its pid and a pipe.

    Through that comes OK and more once it is ready, or its exit code. It does not inherit
    ``other``.
    """
    readable, writable = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(readable)
        os.close(writable)
        raise
    if pid == 0:
        begin()
        os.close(readable)
        if other >= 0:
            os.close(other)
        _be_daemon(run, writable)
    os.close(writable)
    return pid, readable


def _be_daemon(run: Callable[[Ready], int], told: int) -> NoReturn:
    def ready(state: bytes) -> None:
        try:
            log_to_syslog()
            keeper.leave_the_terminal()
        finally:
            _tell(told, bytes([Exit.OK]) + state)
            os.close(told)

    code = int(Exit.SYSTEM)
    try:
        code = run(ready)
    finally:
        logging.shutdown()
        _tell(told, bytes([code]))
        os._exit(code)


def _tell(told: int, message: bytes) -> None:
    with suppress(OSError):  # ready was called, or the caller was killed
        os.write(told, message)


def notify(address: str | None, message: str) -> None:
    """Send a message to the service manager (sd_notify(3)); do nothing without an address."""
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        sock.sendto(message.encode(), address)
