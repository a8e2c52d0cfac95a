"""How the mount of a session outlives its daemon: what is handed over, kept, and taken over.

At a planned end the tables are handed over as they are. In case of a kill, another process has the
connection and ``Notes`` from the start; the kernel then sends again what was not answered.
"""

from __future__ import annotations

import logging
import mmap
import os
from collections.abc import Callable, Iterator
from typing import Any

from gitguardfs.base.protocol import Caller, make
from gitguardfs.sessions.kernel_session import abi
from gitguardfs.sessions.kernel_session.abi import RESENT, WORD, Opcode
from gitguardfs.sessions.kernel_session.connection import Connection
from gitguardfs.sessions.kernel_session.notes import (
    ONCE,
    AskedAgain,
    KilledDaemon,
    Notes,
    Opened,
    read_notes,
)
from gitguardfs.sessions.kernel_session.open_files import OpenFiles
from gitguardfs.sessions.kernel_session.requests import Arguments, Form, Packer, Reader, Sent
from gitguardfs.view.view import View

log = logging.getLogger(__name__)

CONNECTION, NOTES = "connection", "notes"
"""The names of the descriptors that are handed over; ``NOTES`` in case of a kill."""


class Outliving:
    """What one daemon's session has from the one before it, and leaves to the next."""

    def __init__(self, connection: Connection, view: View, open_files: OpenFiles) -> None:
        self._connection = connection
        self._view = view
        self._open_files = open_files
        self._former = KilledDaemon()
        self._asked_again = AskedAgain(view, self._former.asked)
        self._notes: Notes | None = None
        self.asks_again = False
        """Whether the kernel can send requests again that a killed daemon has read."""
        self.once: frozenset[int] = frozenset()
        """The requests of which it is noted that they begin, and that they are done."""

    # To the next daemon

    def handed_over(self, descriptors: dict[str, int]) -> Any:
        """Return the state that ``take_over`` takes, if any; add descriptors, by name."""
        view = self._view.saved(descriptors)
        descriptors[CONNECTION] = os.dup(self._connection.fd)
        return None if view is None else (self.asks_again, self._open_files.saved(), view)

    def kept(
        self, descriptors: dict[str, int], call_soon: Callable[[Callable[[], None]], None]
    ) -> Any:
        """Return the state for the next daemon, if this one is killed; add descriptors.

        ``call_soon`` makes a call between two requests.
        """
        if not self.asks_again:
            return None
        if self._notes is None:
            notes = Notes(self._view, lambda: call_soon(self._shorten_notes), self._former)
            if not notes.begin():
                notes.close()
                return None
            self._notes, self.once = notes, ONCE
        descriptors[CONNECTION] = os.dup(self._connection.fd)
        descriptors[NOTES] = os.dup(self._notes.fd)
        return True, self._open_files.passes_through, None

    def _shorten_notes(self) -> None:
        if self._notes is not None:
            try:
                self._notes.begin()
            except OSError as error:
                log.error("notes for the next daemon cannot be shortened: %s", error.strerror)

    # From the former daemon

    def take_over(self, descriptors: dict[str, int], state: Any) -> bool:
        """Go on with a former daemon's connection; return whether that daemon was killed."""
        device = self._connection.fd = descriptors.pop(CONNECTION)
        os.set_blocking(device, True)
        self.asks_again, open_files, view = state
        if view is not None:
            self._open_files.restore(open_files)
            self._view.restore(view, descriptors)
            self._former.opened.update(self._opened_in(view))
            return False
        notes = descriptors.pop(NOTES)
        try:
            view, former = read_notes(notes)
        finally:
            os.close(notes)
        self._former.opened.update(former.opened)
        self._former.asked.update(former.asked)
        opened = ((file.node, file.backing) for file in former.opened.values())
        self._open_files.restore_opened(open_files, opened)
        self._view.restore(view, descriptors)
        self._connection.ask_for_unanswered()
        return True

    def _opened_in(self, view: Any) -> Iterator[tuple[int, Opened]]:
        for tree in filter(None, view[:2]):
            for handle, node, flags in tree[3]:
                yield handle, Opened(node, flags, self._open_files.backing_of(node), 0)

    def reopening(self, form: Form) -> Form:
        """Return the form of a request on directories, after a kill: no handle of these is noted.

        The request says who has the directory open.
        """

        def read_and_open(node: int, sent: Sent, size: int) -> tuple[Packer, Arguments]:
            pack, arguments = read(node, sent, size)
            caller = make(Caller, abi.IN.unpack_from(sent)[4:])
            self._view.open_directory_again(caller, arguments[0], node)
            return pack, arguments

        read: Reader = form.read
        return form._replace(read=read_and_open)

    # Meanwhile

    def serve_again(self, unique: int, request: str, caller: Caller | None, *more: Any) -> Any:
        """Return the reply to a request that was sent again, as ``View.serve`` does."""
        return self._asked_again.serve(unique, request, caller, *more)

    def begins(self, opcode: int, unique: int, request: mmap.mmap, handle: int) -> bool:
        """Note that one of the requests of ``once`` begins; return whether its end is noted, too.

        ``handle`` is its first argument. Raises OSError.
        """
        assert self._notes is not None
        return self._notes.begins(opcode, unique, request, handle)

    def is_done(self, unique: int, reply: object) -> None:
        """Note that a request is done whose beginning was noted."""
        assert self._notes is not None
        self._notes.done(unique, reply)

    def open(self, unique: int, request: mmap.mmap, node: int, handle: int, fd: int) -> int:
        """Count an open file, as ``OpenFiles.open``; ``request`` has the flags first."""
        if unique >= RESENT:
            self._close_opened_by(unique & ~RESENT)
        backing = self._open_files.open(node, fd)
        if self._notes is not None:
            (flags,) = WORD.unpack_from(request, abi.BODY)
            self._notes.opened(handle, Opened(node, flags, backing, unique & ~RESENT))
        return backing

    def _close_opened_by(self, unique: int) -> None:
        """Close the handle of which a killed daemon could not tell the kernel any more."""
        for handle, file in list(self._former.opened.items()):
            if file.unique == unique:
                self.close_file(handle, file.node)
                self._view.serve("release", None, handle)

    def close_file(self, handle: int, node: int) -> None:
        """Count a file that was closed, unless that was done before."""
        if self._notes is None or self._notes.closed(handle):
            self._open_files.close(node)

    def close(self) -> None:
        """Drop the notes."""
        if self._notes is not None:
            self._notes.close()


DIRECTORIES = frozenset((Opcode.READDIRPLUS, Opcode.FSYNCDIR))
"""The requests on open directories that ``Outliving.reopening`` is for."""
