"""A user who exchanges two names in a loop while root uses them."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support import raw_calls
from tests.support.people import AGENT


@contextmanager
def exchanged_in_a_loop(one: Path, other: Path) -> Iterator[None]:
    """Have the agent exchange ``one`` and ``other``, which it may rename, in a loop."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            os.setgroups([])
            os.setresgid(AGENT, AGENT, AGENT)
            os.setresuid(AGENT, AGENT, AGENT)
            raw_calls.renameat2(one, other, raw_calls.RENAME_EXCHANGE)
            os.write(write_end, b"r")
            while True:
                with suppress(OSError):  # EBUSY, as long as something is mounted on one of them
                    raw_calls.renameat2(one, other, raw_calls.RENAME_EXCHANGE)
        os._exit(1)
    os.close(write_end)
    try:
        with os.fdopen(read_end, "rb") as pipe:
            assert pipe.read(1) == b"r", "the agent cannot exchange them"
        yield
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "the agent has stopped exchanging them"
    finally:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(child, signal.SIGKILL)  # it has inherited a mask of signals
            os.waitpid(child, 0)
