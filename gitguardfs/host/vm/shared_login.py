"""The login that the agent's sessions share: in an emulated guest each login takes seconds.

`vm up` logs in once, by an ssh that runs as long as the VM. Each session is a channel of its
connection, by a socket in the VM's directory. What root changes of a user, such as groups and
variables, counts from the next login on: so after such a change, sessions log in by themselves.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from gitguardfs.host.egress import die_with_parent
from gitguardfs.host.vm import ssh
from gitguardfs.host.vm.state import SOCKET_PATH_BYTES, State

SOCKET = "mux"
_SUFFIX_BYTES = 17
"""Bytes that ssh appends to the path while it makes the socket."""
_ANSWER_LIMIT = 5.0
"""Seconds until ssh must accept a connection; it does at once unless it is stopped."""


@contextmanager
def opened(state: State, guest: ssh.SshGuest) -> Iterator[None]:
    """Log in as the agent, for sessions to share, until the context ends.

    If that fails, or the path is too long for a socket, sessions log in by themselves. Raises
    OSError.
    """
    end(state)
    path = state.path(SOCKET)
    if len(os.fsencode(path)) + _SUFFIX_BYTES > SOCKET_PATH_BYTES:
        yield
        return
    process = subprocess.Popen(
        die_with_parent.command(ssh.login(guest, path)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # the session's own ssh says what is wrong
        start_new_session=True,
        env={**os.environ, "SHELL": "/bin/sh"},
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        # It logs in, or ends; what root has made of sshd may do neither.
        select.select([process.stdout], [], [], ssh.CONNECT_LIMIT)
        yield
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()
        end(state)


def path(state: State) -> str:
    """Return the path of the socket by which a session shares the login; "" if there is none."""
    found = state.path(SOCKET)
    with suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_ANSWER_LIMIT)
        probe.connect(found)
        return found
    return ""


def end(state: State) -> None:
    """Let further sessions log in by themselves; those that share the login go on. OSError."""
    with suppress(FileNotFoundError):
        os.unlink(state.path(SOCKET))
