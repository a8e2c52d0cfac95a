"""Starts the proxy as a process that ends when the process that started it ends."""

from __future__ import annotations

import functools
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gitguardfs.base import installation
from gitguardfs.base.errors import Exit, UserError
from gitguardfs.host.egress import die_with_parent
from gitguardfs.options.config_files import make_private_directory

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


class StartedProxy:
    """A proxy that this process has started. It gets no signals of the terminal."""

    def __init__(self, state_dir: Path, command: Sequence[str] = COMMAND) -> None:
        """Start the proxy of a state directory. Raises OSError."""
        make_private_directory(state_dir)
        self.process = subprocess.Popen(
            die_with_parent.command([*command, str(state_dir)]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @functools.cached_property
    def port(self) -> int:
        """The port of 127.0.0.1 at which it listens; waits until it does.

        Raises UserError with its last line if it does not.
        """
        said = self._first_line()
        host, _, number = said.removeprefix(LISTENING).rpartition(":")
        if not (said.startswith(LISTENING) and host and number.isdigit()):
            raise UserError(f"the proxy did not start: {said}", code=Exit.SYSTEM)
        return int(number)

    def stop(self) -> None:
        """Kill the proxy, which has nothing to save, and wait for it."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()

    def _first_line(self) -> str:
        """Return the line with the port; if the proxy ends first, its last line."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + START_LIMIT
        text = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while (left := deadline - time.monotonic()) > 0:
                if not selector.select(left):
                    continue
                part = os.read(self.process.stdout.fileno(), 65536)
                text += part
                lines = text.decode(errors="replace").splitlines()
                for line in lines:
                    if line.startswith(LISTENING) and text.endswith(b"\n"):
                        return line
                if not part:
                    return lines[-1] if lines else f"exit status {self.process.wait()}"
        return f"not listening after {START_LIMIT:.0f} seconds"
