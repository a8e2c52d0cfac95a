"""Starts the proxy as a process that ends when the process that started it ends."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gitguardfs.base import installation
from gitguardfs.base.config_files import make_private_directory
from gitguardfs.base.errors import Exit, UserError

LISTENING = "listening on "
"""Begins the line that the proxy prints once it listens; HOST:PORT follows."""
START_LIMIT = 60.0
"""Seconds until the proxy must listen. At its first start it makes a key, which takes time."""
COMMAND = (
    sys.executable,
    "-P",  # the working directory is the project, where the agent could put a module of any name
    "-c",
    f"import sys; sys.path.insert(0, {installation.PACKAGE_PARENT!r});"
    " from gitguardfs.host.egress.proxy import main; sys.exit(main())",
)


@dataclass
class RunningProxy:
    """A proxy that this process has started."""

    port: int
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        """The proxy's process id."""
        return self.process.pid

    def stop(self) -> None:
        """End the proxy and wait for it; do nothing if it has ended."""
        _stop(self.process)


@dataclass
class StartingProxy:
    """A proxy that this process has started, and that may not listen yet."""

    process: subprocess.Popen[bytes]
    _running: RunningProxy | None = None

    def listening(self) -> RunningProxy:
        """Wait until the proxy listens. Raises UserError with its last line if it does not."""
        if self._running is None:
            said = _first_line(self.process)
            host, _, number = said.removeprefix(LISTENING).rpartition(":")
            if not (said.startswith(LISTENING) and host and number.isdigit()):
                raise UserError(f"the proxy did not start: {said}", code=Exit.SYSTEM)
            self._running = RunningProxy(int(number), self.process)
        return self._running

    def stop(self) -> None:
        """End the proxy and wait for it; do nothing if it has ended."""
        _stop(self.process)


def begin_proxy(state_dir: Path, port: int = 0, command: Sequence[str] = COMMAND) -> StartingProxy:
    """Start the proxy for a state directory.

    The proxy gets no signals of the terminal, and ends when this process ends. Raises OSError.
    """
    make_private_directory(state_dir)
    process = subprocess.Popen(
        [*command, str(state_dir), "--port", str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    return StartingProxy(process)


def start_proxy(state_dir: Path, port: int = 0, command: Sequence[str] = COMMAND) -> RunningProxy:
    """Start the proxy for a state directory and wait until it listens. As ``begin_proxy``.

    Raises UserError with the proxy's last line if it does not listen; OSError.
    """
    proxy = begin_proxy(state_dir, port, command)
    try:
        return proxy.listening()
    except BaseException:
        proxy.stop()
        raise


def _first_line(process: subprocess.Popen[bytes]) -> str:
    """Return the line with the port; if the proxy ends first, its last line."""
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
                return lines[-1] if lines else f"exit status {process.wait()}"
    return f"not listening after {START_LIMIT:.0f} seconds"


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Kill the proxy, which has nothing to save, and wait for it."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
