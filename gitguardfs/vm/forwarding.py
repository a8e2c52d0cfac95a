"""Forwards a local port into the VM, for a server that the agent has started there."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys

from gitguardfs.errors import Exit, GitguardExit, UserError
from gitguardfs.vm import ssh

_HIGHEST = 65535


def ports_of(text: str) -> tuple[int, int]:
    """Return the local and the guest's port of ``PORT`` or ``PORT:GUEST_PORT``. UserError."""
    here, colon, there = text.partition(":")
    return _port(here), _port(there if colon else here)


def run(guest: ssh.SshGuest, here: int, there: int) -> int:
    """Forward until Ctrl-C or until the VM stops; return ssh's status. Raises UserError."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", here))
        except OSError as error:
            raise UserError(
                f"cannot listen on port {here} of this machine: {error.strerror}",
                f"use another one: gitguard vm forward {here + 1}:{there}",
                Exit.SYSTEM,
            ) from None
    print(f"http://127.0.0.1:{here}/ is port {there} of the VM; Ctrl-C ends it", file=sys.stderr)
    process: subprocess.Popen[bytes] | None = None
    is_told = False

    def end(*_: object) -> None:
        nonlocal is_told
        is_told = True
        if process is not None:
            process.terminate()

    # Before ssh is started: a signal in between would leave ssh running with the port.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    process = subprocess.Popen(ssh.forward(guest, here, there))
    with process:
        if is_told:
            process.terminate()
        try:
            status = process.wait()
        except KeyboardInterrupt:
            return GitguardExit.OK
    return status if status >= 0 else 128 - status


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text) <= _HIGHEST):
        raise UserError(
            f"{text!r} is not a port", "give PORT or PORT:GUEST_PORT, each from 1 to 65535"
        )
    return int(text)
