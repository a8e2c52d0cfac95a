"""Starting the proxy as a process of its own, which ends with the one that starts it."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gitguardfs import program
from gitguardfs.egress.files import make_private_directory
from gitguardfs.errors import Exit, UserError

LISTENING = "listening on "
"""Begins the line that the proxy prints once it listens; HOST:PORT follows."""
START_LIMIT = 60.0
"""Seconds that the proxy may take to listen: it makes a key, on a slow machine."""
STOP_LIMIT = 5.0
"""Seconds that it has to end before it is killed; nothing is lost with it."""
COMMAND = (
    sys.executable,
    "-P",  # it is started in the project, where the agent could put a module of any name
    "-c",
    f"import sys; sys.path.insert(0, {program.HOLDER!r});"
    " from gitguardfs.egress.proxy import main; sys.exit(main())",
)


@dataclass
class RunningProxy:
    """A proxy that was started here."""

    port: int
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def is_alive(self) -> bool:
        """Return whether it still runs."""
        return self.process.poll() is None

    def stop(self) -> None:
        """End it, and wait until it has ended; nothing happens if it has."""
        _stop(self.process)


def start_proxy(state_dir: Path, port: int = 0, command: Sequence[str] = COMMAND) -> RunningProxy:
    """Start the proxy for a state directory and wait until it listens.

    It gets no terminal signals, and ends when this process does. Raises UserError with what it
    said if it does not come to listen; OSError.
    """
    make_private_directory(state_dir)
    process = subprocess.Popen(
        [*command, str(state_dir), "--port", str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        said = _first_line(process)
        host, _, number = said.removeprefix(LISTENING).rpartition(":")
        if said.startswith(LISTENING) and host and number.isdigit():
            return RunningProxy(int(number), process)
    except BaseException:
        _stop(process)
        raise
    _stop(process)
    raise UserError(f"the proxy did not start: {said}", code=Exit.SYSTEM)


def _first_line(process: subprocess.Popen[bytes]) -> str:
    """Return the line with the port, or the last that the proxy says before it ends."""
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    deadline = time.monotonic() + START_LIMIT
    text = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            if not selector.select(left):
                continue
            part = os.read(descriptor, 65536)
            text += part
            lines = text.decode(errors="replace").splitlines()
            for line in lines:
                if line.startswith(LISTENING) and text.endswith(b"\n"):
                    return line
            if not part:
                return lines[-1] if lines else f"it ended with status {process.wait()}"
    return f"it does not listen after {START_LIMIT:.0f} seconds"


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask once: what closes its input and then sends a signal could hit it while it ends."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
