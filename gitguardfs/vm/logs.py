"""Prints the logs of a VM without control characters, and limits the size of the console's.

The guest writes the console: what it writes must neither act on a terminal nor fill the disk.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from gitguardfs.egress.files import StateFiles
from gitguardfs.egress.tail import Tail
from gitguardfs.errors import shown
from gitguardfs.vm.boot import plain
from gitguardfs.vm.state import State

MAX_CONSOLE_BYTES = 10 << 20
"""The size at which the console's log is truncated."""
KEPT_BYTES = 1 << 20
"""Bytes of its end that are kept then, in ``console.log.1``."""
_BOUND_EVERY = 1.0
_LOOK_EVERY = 0.3
"""Seconds between two reads: Linux and macOS have no common way to wait for a file."""


@contextmanager
def size_limited(path: str) -> Iterator[None]:
    """Truncate the log at ``path`` whenever it is too long, until the context ends."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_BOUND_EVERY):
            with suppress(OSError):
                truncate(path)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def truncate(path: str) -> None:
    """Truncate a log that is too long; its end is kept in ``.1``. Raises OSError.

    QEMU has the file open for appending, so it goes on writing at the new end.
    """
    with open(path, "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        if size <= MAX_CONSOLE_BYTES:
            return
        file.seek(size - KEPT_BYTES)
        end = file.read(KEPT_BYTES)
        with open(f"{path}.new", "wb") as new:
            new.write(end)
        os.rename(f"{path}.new", f"{path}.1")
        file.truncate(0)


def lines(state: State) -> Iterator[str]:
    """Yield the lines of all logs, one log after the other, each after a line with its path."""
    for path in _paths(state):
        yield f"== {path}"
        with closing(Tail(path)) as tail:
            yield from map(_printable, tail.new_lines())
            yield from map(_printable, tail.rest())


def follow(state: State) -> Iterator[str]:
    """Yield all lines and then new ones as they come, each with its log's name. Never ends."""
    with ExitStack() as stack:
        tails = [stack.enter_context(closing(Tail(path))) for path in _paths(state)]
        while True:
            for tail in tails:
                name = os.path.basename(tail.path).partition(".")[0]
                for line in tail.new_lines():
                    yield f"{name}: {_printable(line)}"
            time.sleep(_LOOK_EVERY)


def _paths(state: State) -> list[str]:
    return [state.console, state.qemu_log, str(StateFiles(Path(state.directory)).log)]


def _printable(line: bytes) -> str:
    return shown(plain(line.decode(errors="surrogateescape")), keep="\t")
