"""Ports of this machine that lead into the VM: how they are written, and which are open.

Who opens a port holds the lock on a file that is named after it, as long as the port is open.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from gitguardfs.base.errors import Exit, UserError
from gitguardfs.host.vm.state import State, is_held, take
from gitguardfs.options.config_files import make_private_directory

PUBLISH, FORWARD, LOGIN = "--publish", "vm forward", "vm run"
HIGHEST = 65535
_DIRECTORY = "ports"


class Port(NamedTuple):
    """A port of 127.0.0.1 here, and the guest's port to which it leads."""

    here: int
    there: int

    def __str__(self) -> str:
        """Return the port as the user writes it."""
        return str(self.here) if self.here == self.there else f"{self.here}:{self.there}"


class OpenPort(NamedTuple):
    """A port that leads into the running VM now."""

    port: Port
    by: str
    """PUBLISH, FORWARD or LOGIN."""


def parsed(text: str) -> Port:
    """Return the port that ``PORT`` or ``PORT:GUEST_PORT`` means. Raises UserError."""
    here, colon, there = text.partition(":")
    return Port(_number(here), _number(there if colon else here))


def merged(old: Iterable[str], new: Iterable[str]) -> tuple[str, ...]:
    """Return ``old`` with ``new``, which count for the same port of this machine.

    Raises UserError if one is no port, or if ``new`` has a port of this machine twice.
    """
    given = list(dict.fromkeys(map(parsed, new)))
    numbers = [port.here for port in given]
    for number in numbers:
        if numbers.count(number) > 1:
            raise UserError(
                f"port {number} of this machine cannot lead to two ports of the guest",
                "give another port before the colon",
            )
    found = {port.here: port for port in (*map(parsed, old), *given)}
    return tuple(map(str, found.values()))


@contextmanager
def noted(state: State, port: Port, by: str) -> Iterator[int]:
    """Note that a port is open; yield the descriptor whose last copy's end says that it is closed.

    The caller gives a copy to the process that opens the port. Raises UserError if it is open
    already, OSError.
    """
    make_private_directory(Path(state.path(_DIRECTORY)))
    fd = take(os.path.join(state.path(_DIRECTORY), str(port.here)))
    if fd is None:
        raise UserError(f"port {port.here} leads into this VM already", code=Exit.SYSTEM)
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps({"guest_port": port.there, "by": by}).encode(), 0)
        yield fd
    finally:
        os.close(fd)


def opened(state: State) -> list[OpenPort]:
    """Return the ports that lead into the VM now. Raises OSError."""
    found = []
    with suppress(FileNotFoundError):
        for name in sorted(os.listdir(state.path(_DIRECTORY)), key=lambda name: (len(name), name)):
            path = os.path.join(state.path(_DIRECTORY), name)
            # A file that is damaged was not written here; one without content is being written.
            with suppress(OSError, ValueError, KeyError, TypeError, RecursionError, UserError):
                if is_held(path):
                    fields = json.loads(Path(path).read_bytes())
                    port = Port(_number(name), _number(str(fields["guest_port"])))
                    found.append(OpenPort(port, str(fields["by"])))
    return found


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text) <= HIGHEST):
        raise UserError(
            f"{text!r} is not a port", "give PORT or PORT:GUEST_PORT, each from 1 to 65535"
        )
    return int(text)
