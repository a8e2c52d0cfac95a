"""Connects an SSH client to a VM's sshd: the ProxyCommand of `vm ssh-config`.

The guest's port is another one at each start, so it is looked up for each connection. If asked, the
VM is started first.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

from gitguardfs.base import installation
from gitguardfs.base.errors import Exit, UserError, shown
from gitguardfs.host.vm import qmp, running
from gitguardfs.host.vm.boot import BOOT_LIMIT
from gitguardfs.host.vm.state import State, is_held

START_LIMIT = int(BOOT_LIMIT)
"""Seconds until a start counts as hanging."""
LOG = "start.log"
"""The file of the state directory with what a `vm up` in the background says."""
UNTIL_STOPPED = "exec sleep infinity"
"""The command of such a `vm up`, for the guest's shell: the VM runs until `vm stop`."""
_CHUNK = 1 << 18
"""Bytes that are copied at a time."""
_LOOK_EVERY = 0.5


def words(state: State, starts: bool) -> list[str]:
    """Return the command that connects to the VM, for a program that has another environment."""
    variables = [
        f"{name}={os.environ[name]}"
        for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")
        if os.environ.get(name)
    ]
    more = ["--start"] if starts else []
    own = installation.command(
        "vm", "connect", "--project", state.project, *more, program="gitguard"
    )
    return ["env", *variables, *own] if variables else own


def run(state: State, starts: bool) -> None:
    """Copy between standard input and output and the guest's sshd. Raises UserError, OSError."""
    if starts:
        start(state)
    with socket.create_connection(("127.0.0.1", running.guest(state).port)) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        copy(sys.stdin.fileno(), sys.stdout.fileno(), peer)


def copy(source: int, target: int, peer: socket.socket) -> None:
    """Copy from ``source`` to the peer, and from there to ``target`` until the peer has ended."""

    def send() -> None:
        with suppress(OSError):  # the peer has ended
            while data := os.read(source, _CHUNK):
                peer.sendall(data)
            peer.shutdown(socket.SHUT_WR)

    threading.Thread(target=send, daemon=True).start()
    with suppress(ConnectionResetError, BrokenPipeError):  # QEMU or the client has ended
        while data := peer.recv(_CHUNK):
            while data:
                data = data[os.write(target, data) :]


def start(state: State) -> subprocess.Popen[bytes] | None:
    """Start the VM unless it runs, and wait for its guest; return its `vm up` in the background.

    If another command starts the VM, wait for that. It runs until `vm stop`. Raises UserError,
    OSError.
    """
    if not state.has_disk:
        raise UserError("this VM was never started", "gitguard vm up makes it", Exit.SYSTEM)
    deadline = time.monotonic() + START_LIMIT
    process = None
    while not _answers(state):
        if not running.is_running(state) and not is_held(state.session_lock):
            if process is None:
                print("starting the VM; gitguard vm stop stops it", file=sys.stderr)
                process = _up(state)
            elif process.poll() is not None:
                raise _not_started(state)
        if time.monotonic() > deadline:
            raise _not_started(state)
        time.sleep(_LOOK_EVERY)
    return process


def _answers(state: State) -> bool:
    with suppress(qmp.NoAnswerError):
        if running.is_running(state) and os.path.exists(state.ready):
            qmp.ssh_port(state)
            return True
    return False


def _up(state: State) -> subprocess.Popen[bytes]:
    """Run `vm up` in the background; it outlives this process and the terminal."""
    own = ("vm", "up", "--project", state.project, "--", UNTIL_STOPPED)
    # Another connection may write to it too.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    log = os.open(state.path(LOG), flags, 0o600)
    try:
        return subprocess.Popen(
            installation.command(*own, program="gitguard"),
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True, cwd=state.directory,
        )  # fmt: skip
    finally:
        os.close(log)


def _not_started(state: State) -> UserError:
    return UserError("the VM did not start", f"{shown(state.path(LOG))} says why", Exit.SYSTEM)
