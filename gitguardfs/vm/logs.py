"""The logs of a VM, in a form that a terminal may be given: the guest writes one of them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gitguardfs.egress.files import StateFiles
from gitguardfs.errors import shown
from gitguardfs.vm.boot import plain
from gitguardfs.vm.state import State

_LOOK_EVERY = 0.3
"""Seconds: files cannot be waited for in the same way on Linux and macOS."""


def lines(state: State) -> Iterator[str]:
    """Yield all logs one after the other, each below its path."""
    for path in _paths(state):
        yield f"== {path}"
        tail = _Tail(path)
        yield from tail.new_lines()
        yield from tail.rest()


def follow(state: State) -> Iterator[str]:
    """Yield what is there and then what comes, each line with its log's name; never ends."""
    tails = [_Tail(path) for path in _paths(state)]
    while True:
        for tail in tails:
            name = os.path.basename(tail.path).partition(".")[0]
            for line in tail.new_lines():
                yield f"{name}: {line}"
        time.sleep(_LOOK_EVERY)


def _paths(state: State) -> list[str]:
    return [state.console, state.qemu_log, str(StateFiles(Path(state.directory)).log)]


@dataclass
class _Tail:
    """A log that grows, and that a new start of the VM begins anew."""

    path: str
    inode: int = 0
    offset: int = 0
    begun: bytes = b""
    """A line that has no end yet."""

    def new_lines(self) -> Iterator[str]:
        """Yield the complete lines that are new since the last call."""
        with suppress(FileNotFoundError), open(self.path, "rb") as file:
            st = os.fstat(file.fileno())
            if st.st_ino != self.inode or st.st_size < self.offset:
                self.inode, self.offset, self.begun = st.st_ino, 0, b""
            file.seek(self.offset)
            data = self.begun + file.read()
            self.offset = file.tell()
            *complete, self.begun = data.split(b"\n")
            for line in complete:
                yield _printable(line)

    def rest(self) -> Iterator[str]:
        """Yield the line without an end, if there is one."""
        if self.begun:
            yield _printable(self.begun)


def _printable(line: bytes) -> str:
    return shown(plain(line.decode(errors="surrogateescape")), keep="\t")
