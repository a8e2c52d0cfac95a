"""Prints the logs of a VM without control characters, and limits the size of the console's.

The guest writes the console: what it writes must neither act on a terminal nor fill the disk. Each
row of a terminal begins with the log's name, so that none of them is the guest's alone.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import chain

from gitguardfs.base.errors import ascii_shown, shown
from gitguardfs.host.egress.tail import Tail
from gitguardfs.host.vm.state import State

MAX_CONSOLE_BYTES = 10 << 20
"""The size at which the console's log is truncated."""
KEPT_BYTES = 1 << 20
"""Bytes of its end that are kept then, in ``console.log.1``."""
_BOUND_EVERY = 1.0
END = 64 << 10
"""Bytes at the end of a log that are searched: a panic is the last thing that a kernel writes."""
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\r\x00-\x08\x0b-\x1f\x7f]")
_MIN_ROOM = 20
"""Columns for a log's text, also in a terminal that has fewer."""
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


def lines(state: State, width: int | None = None) -> Iterator[str]:
    """Yield the lines of all logs, one log after the other, each with its log's name.

    With a terminal's ``width``, yield its rows.
    """
    for path in _paths(state):
        yield f"== {shown(path)}"
        with closing(Tail(path)) as tail:
            for line in chain(tail.new_lines(), tail.rest()):
                yield from _rows(path, line, width)


def follow(state: State, width: int | None = None) -> Iterator[str]:
    """Yield lines as ``lines`` does, and then new ones as they come. Never ends."""
    with ExitStack() as stack:
        tails = [stack.enter_context(closing(Tail(path))) for path in _paths(state)]
        while True:
            for tail in tails:
                for line in tail.new_lines():
                    yield from _rows(tail.path, line, width)
            time.sleep(_LOOK_EVERY)


def end_of(path: str) -> bytes:
    """Return the last END bytes of a log, which the guest can make long; b"" if it is not there."""
    with suppress(OSError), open(path, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - END))
        return file.read(END)
    return b""


def last_lines(path: str, number: int) -> list[str]:
    """Return the last lines of a log that are not empty, with no character that acts."""
    found = (_plain(line).strip() for line in end_of(path).decode(errors="replace").split("\n"))
    return [ascii_shown(line) for line in found if line][-number:]


def _plain(line: str) -> str:
    """Return a line without escape sequences and control characters."""
    return _CONTROL.sub("", line)


def delete_others(state: State) -> bool:
    """Delete all but the logs of a state directory; return whether there are any. Raises OSError.

    The caller holds the locks in it.
    """
    names = {os.path.basename(path) for path in (*_paths(state), str(state.files.blocked))}
    kept = {f"{name}{end}" for name in names for end in ("", ".1")}
    found = os.listdir(state.directory)
    for path in (state.path(name) for name in found if name not in kept):
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    return not kept.isdisjoint(found)


def _paths(state: State) -> list[str]:
    return [state.console, state.qemu_log, str(state.files.log)]


def _rows(path: str, line: bytes, width: int | None) -> list[str]:
    """Return a line with its log's name, in rows of a terminal that all begin with it."""
    begin = os.path.basename(path).partition(".")[0] + ": "
    text = re.sub(r"[ \t]+", " ", _plain(line.decode(errors="surrogateescape")))
    if width is None:
        return [begin + shown(text)]
    text, room = ascii_shown(text), max(_MIN_ROOM, width - 1 - len(begin))
    return [begin + text[at : at + room] for at in range(0, len(text) or 1, room)]
