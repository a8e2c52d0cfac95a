"""Lets the mount of a session outlive its daemon: leaves a state, and takes a former one over.

At a planned end the tables are left as they are. In case of a kill, another process has the
connection and ``Notes`` from the start; the kernel then sends again the unanswered requests.
"""

from __future__ import annotations

import logging
import mmap
import os
from collections.abc import Callable
from typing import Any

from gitguardfs.base.protocol import Caller, make
from gitguardfs.fs.saved import Saved
from gitguardfs.sessions.base import CONNECTION
from gitguardfs.sessions.kernel_session import abi
from gitguardfs.sessions.kernel_session.abi import RESENT, WORD, Opcode
from gitguardfs.sessions.kernel_session.connection import Connection
from gitguardfs.sessions.kernel_session.notes import (
    ONCE,
    Asked,
    AskedAgain,
    Notes,
    Opened,
    read_notes,
)
from gitguardfs.sessions.kernel_session.open_files import OpenFiles
from gitguardfs.sessions.kernel_session.replies import Packer
from gitguardfs.sessions.kernel_session.requests import Arguments, Form, Reader, Sent
from gitguardfs.view.view import View

log = logging.getLogger(__name__)

NOTES = "notes"
"""The name of the notes' descriptor among those for the next daemon."""
_ON_DIRECTORIES = Opcode.READDIRPLUS, Opcode.FSYNCDIR


class Outliving:
    """The state that a session has from the former daemon, and leaves to the next."""

    def __init__(
        self,
        connection: Connection,
        view: View,
        open_files: OpenFiles,
        call_soon: Callable[[Callable[[], None]], None],
    ) -> None:
        """``call_soon`` makes a call between two requests."""
        self._connection = connection
        self._view = view
        self._open_files = open_files
        self._call_soon = call_soon
        self._opened: dict[int, Opened] = {}
        """The files that are open, by handle."""
        self._asked: dict[int, Asked] = {}
        """The last requests of a killed daemon, by unique."""
        self.serve_again = AskedAgain(view, self._asked).serve
        """Returns the reply to a request that was sent again, as ``View.serve`` does."""
        self._notes: Notes | None = None
        self.is_taken_over = False
        """Whether this is a former daemon's connection."""
        self.asks_again = False
        """Whether the kernel can send requests again that a killed daemon has read."""
        self.once: frozenset[int] = frozenset()
        """The requests whose beginning and end are noted: by ``begins`` and ``done``."""

    # To the next daemon

    def left_at_the_end(self, descriptors: dict[str, int]) -> Any:
        """Return the state that ``take_over`` takes, if any; add descriptors, by name."""
        if not self._view.can_be_taken_over:
            return None
        view = self._view.saved(descriptors)
        descriptors[CONNECTION] = os.dup(self._connection.fd)
        opened = tuple((handle, *file) for handle, file in self._opened.items())
        asked = tuple((unique, *one) for unique, one in self._asked.items())
        return self.asks_again, self._open_files.passes_through, (opened, asked, view)

    def left_if_killed(self, descriptors: dict[str, int]) -> Any:
        """Return the state that ``take_over`` takes after a kill, if any; add descriptors."""
        if not (self.asks_again and self._view.can_be_taken_over):
            return None
        if self._notes is None:
            notes = self._notes = Notes(self._view, self._call_soon, self._opened, self._asked)
            self.once, self.begins, self.done = ONCE, notes.begins, notes.done
        descriptors[CONNECTION] = os.dup(self._connection.fd)
        descriptors[NOTES] = os.dup(self._notes.fd)
        return True, self._open_files.passes_through, None

    # From the former daemon

    def take_over(self, descriptors: dict[str, int], state: Any) -> None:
        """Go on with a former daemon's connection."""
        self.is_taken_over = True
        device = self._connection.fd = descriptors.pop(CONNECTION)
        os.set_blocking(device, True)
        self.asks_again, self._open_files.passes_through, tables = state
        if tables is not None:
            opened, asked, view = tables
            self._opened.update((handle, Opened(*file)) for handle, *file in opened)
            self._asked.update((unique, Asked(*one)) for unique, *one in asked)
        else:
            view = self._read(descriptors.pop(NOTES))
        self._open_files.restore((file.node, file.backing) for file in self._opened.values())
        self._view.restore(view, descriptors)
        if tables is None:
            self._connection.ask_for_unanswered()

    def _read(self, notes: int) -> Saved:
        """Read and close the notes of a killed daemon; return the tables of the view."""
        try:
            view, opened, asked = read_notes(notes)
        finally:
            os.close(notes)
        self._opened.update(opened)
        self._asked.update(asked)
        return view

    def reopening(self, forms: dict[int, Form]) -> dict[int, Form]:
        """Return forms that open directories again: a killed daemon's handles are not noted.

        Since it may be some daemons ago that one was killed, this is for all that take over.
        """
        return forms | {opcode: self._reopening(forms[opcode]) for opcode in _ON_DIRECTORIES}

    def _reopening(self, form: Form) -> Form:
        """Return a form of a request on an open directory, which says who has it open."""

        def read_and_open(node: int, sent: Sent, size: int) -> tuple[Packer, Arguments]:
            pack, arguments = read(node, sent, size)
            caller = make(Caller, abi.IN.unpack_from(sent)[4:])
            self._view.open_directory_again(caller, arguments[0], node)
            return pack, arguments

        read: Reader = form.read
        return form._replace(read=read_and_open)

    # Meanwhile

    def open_file(self, unique: int, request: mmap.mmap, node: int, handle: int, fd: int) -> int:
        """Count an open file, as ``OpenFiles.open``; ``request`` has the flags first."""
        if unique >= RESENT:
            self._close_opened_by(unique & ~RESENT)
        backing = self._open_files.open(node, fd)
        (flags,) = WORD.unpack_from(request, abi.BODY)
        changed_ns = self._view.file(handle).changed_ns
        file = Opened(node, flags, backing, unique & ~RESENT, changed_ns)
        self._opened[handle] = file
        if self._notes is not None:
            self._notes.opened(handle, file)
        return backing

    def _close_opened_by(self, unique: int) -> None:
        """Close the handle that a killed daemon has opened, and the kernel was not told."""
        for handle, file in list(self._opened.items()):
            if file.unique == unique:
                self.close_file(handle, file.node)
                self._view.serve("release", None, handle)

    def close_file(self, handle: int, node: int) -> None:
        """Count a file that was closed, unless that was done before."""
        if self._opened.pop(handle, None) is not None:
            self._open_files.close(node)
            if self._notes is not None:
                self._notes.closed(handle)

    def close(self) -> None:
        """Drop the notes."""
        if self._notes is not None:
            self._notes.close()
