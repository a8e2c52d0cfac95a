"""A child process of the daemon, which gets messages by a socket as its standard input."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Sequence

from gitguardfs.base.installation import PACKAGE_PARENT


class ChildProcess:
    """A running process."""

    def __init__(
        self, module: str, *arguments: str, room: int = 0, pass_fds: Sequence[int] = ()
    ) -> None:
        """Start ``main`` of a module of this package. Raises OSError.

        ``room`` is the size of the largest message, in bytes, if it is not a small one.
        """
        self._calls, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if room:
            for end in (self._calls, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * room)
        self._calls.setblocking(False)
        code = f"import sys; sys.path.insert(0, {PACKAGE_PARENT!r})"
        code += f"; from {module} import main; main()"
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", "-c", code, *arguments],
                stdin=theirs.fileno(), stdout=subprocess.DEVNULL, cwd="/", pass_fds=pass_fds,
            )  # fmt: skip

    def fileno(self) -> int:
        """Return the descriptor that can be read when it has answered, or ended."""
        return self._calls.fileno()

    def end(self) -> None:
        """Kill it. It may go on to wait in the kernel."""
        self._process.kill()
        self._calls.close()
        self._process.poll()

    def has_ended(self) -> bool:
        """Return whether it has ended."""
        return self._process.poll() is not None
