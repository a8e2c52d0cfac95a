"""Puts the daemon into the background once the mount answers; notifies the service manager."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress

from gitguardfs.daemon.logs import log_to_syslog
from gitguardfs.errors import Exit


def in_background(run: Callable[[Callable[[], None]], int]) -> int:
    """Run ``run(ready)`` in a child; return 0 when it calls ``ready``, else its exit code.

    The child writes its errors to our standard error until it is ready. Then it closes the terminal
    and our pipes, since mount(8) and shells wait until these are closed.
    """
    readable, writable = os.pipe()
    if os.fork() == 0:
        os.close(readable)
        os.setsid()

        def ready() -> None:
            try:
                log_to_syslog()
                null = os.open(os.devnull, os.O_RDWR)
                for stream in (0, 1, 2):
                    os.dup2(null, stream)
                os.close(null)
            finally:
                os.write(writable, bytes([Exit.OK]))
                os.close(writable)

        code = int(Exit.SYSTEM)
        try:
            code = run(ready)
        finally:
            logging.shutdown()
            with suppress(OSError):  # ready was called: the parent has gone
                os.write(writable, bytes([code]))
            os._exit(code)
    os.close(writable)
    with os.fdopen(readable, "rb") as pipe:
        answer = pipe.read(1)
    if not answer:
        print("gitguardfs: the daemon died before the mount was up", file=sys.stderr)
        return Exit.SYSTEM
    return answer[0]


def notify(address: str | None, message: str) -> None:
    """Send a message to the service manager (sd_notify(3)); do nothing without an address."""
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        sock.sendto(message.encode(), address)
