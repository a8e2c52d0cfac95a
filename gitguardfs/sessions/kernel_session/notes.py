"""Notes for the next daemon if this one is killed, and replies to requests that are sent again.

Of a request that must not be done twice it is noted that it has begun, and then that it is done.
After a kill the kernel sends again the requests that were not answered. One that was done is
answered by what is there now. One that had only begun is done; an error may show that it had been.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from gitguardfs.base.protocol import Caller, EntryReply, RequestError
from gitguardfs.fs.saved import Saved
from gitguardfs.linux.shared_rows import Row, SharedRows, rows_in
from gitguardfs.sessions.kernel_session import abi
from gitguardfs.sessions.kernel_session.abi import Opcode
from gitguardfs.view.rows import NUMBERS, FormerTables
from gitguardfs.view.view import View

log = logging.getLogger(__name__)

OPENED, CLOSED, BEGUN, DONE = range(NUMBERS + 1, NUMBERS + 5)
"""Kinds of rows, beside those of ``view.rows``."""
ADDS = {"mkdir", "mknod", "symlink", "link", "create"}
"""Requests that fail with EEXIST if they are done twice."""
REMOVES = {"unlink", "rmdir", "rename", "removexattr"}
"""Requests that fail with ENOENT, or ENODATA, if they are done twice."""
ONCE: frozenset[int] = frozenset((
    Opcode.MKDIR, Opcode.MKNOD, Opcode.SYMLINK, Opcode.LINK, Opcode.CREATE, Opcode.UNLINK,
    Opcode.RMDIR, Opcode.RENAME, Opcode.RENAME2, Opcode.SETXATTR, Opcode.REMOVEXATTR, Opcode.WRITE,
))  # fmt: skip
"""Requests that must not be done twice; of WRITE those that append."""
_APPENDS = abi.BODY + 33, os.O_APPEND >> 8
"""Where in a WRITE the second byte of the open file's flags is, and O_APPEND there."""
CLOCK_OF_FILES = 5
"""CLOCK_REALTIME_COARSE: the kernel dates a change by this clock, or by a finer one."""
MOST_ASKED = 1024
"""Requests that are remembered after a kill; fewer are under way at a time."""
MOST_WRITTEN = 64 << 20
"""Bytes behind the former end of a file in which an append is looked for."""


class Opened(NamedTuple):
    """An open file."""

    node: int
    flags: int
    backing: int
    """The kernel's number of the source's file, or 0."""
    unique: int
    """The request that opened it."""
    changed_ns: int
    """The file's ctime then."""


class Asked(NamedTuple):
    """A request that must not be done twice."""

    at: int
    """When the request began: ns."""
    size: int
    """Bytes of the file before an append."""
    result: int | tuple[int, int] | None = None
    """The reply, if it is a number; node and ctime of a file that was made; otherwise 0. None if it
    is not known that it was done."""


class Notes:
    """Notes on one view and its session, in memory that another process holds as well."""

    def __init__(
        self,
        view: View,
        call_soon: Callable[[Callable[[], None]], None],
        files: Mapping[int, Opened],
        asked: Mapping[int, Asked],
    ) -> None:
        """Note all tables as they are, and from now on their changes. Raises OSError.

        ``call_soon`` makes a call between two requests. ``files`` are those that are open at any
        time, by handle; ``asked`` are a killed daemon's requests, by unique.
        """
        self._view = view
        self._rows = SharedRows(partial(call_soon, self.shorten))
        self.fd = self._rows.fd
        """The descriptor that leads to the notes."""
        self._files = files
        self._last: deque[Row] = deque(maxlen=MOST_ASKED)
        """The last rows of requests, of which some may be under way."""
        for unique, one in asked.items():
            self._last.append((BEGUN, unique, one.at, one.size))
            if one.result is not None:
                self._last.append((DONE, unique, one.result))
        view.note_changes(self._rows.add)
        self._rows.replace(self._all())

    def shorten(self) -> None:
        """Note all tables as they are, in place of all notes. To be called between requests."""
        try:
            self._rows.replace(self._all())
        except OSError as error:
            log.error("notes for the next daemon cannot be shortened: %s", error.strerror)

    def _all(self) -> Iterator[Row]:
        yield from self._view.rows()
        for handle, file in self._files.items():
            yield OPENED, handle, *file
        yield from self._last

    def opened(self, handle: int, file: Opened) -> None:
        """Note that a file was opened."""
        self._rows.add((OPENED, handle, *file))

    def closed(self, handle: int) -> None:
        """Note that a file was closed."""
        self._rows.add((CLOSED, handle))

    def begins(self, opcode: int, unique: int, request: mmap.mmap, handle: int) -> bool:
        """Note that a request begins, if it must not be done twice; return whether it must not.

        ``handle`` is its first argument. Raises OSError.
        """
        size = 0
        if opcode == Opcode.WRITE:
            at, bit = _APPENDS
            if not request[at] & bit:
                return False
            size = os.fstat(self._view.file(handle).fd).st_size
        now = time.clock_gettime_ns(CLOCK_OF_FILES)
        self._note_request((BEGUN, unique & ~abi.RESENT, now, size))
        return True

    def done(self, unique: int, reply: object) -> None:
        """Note that a request is done."""
        result: Any = reply if isinstance(reply, int) else 0
        if type(reply) is tuple:
            result = _identity(reply[1])
        self._note_request((DONE, unique & ~abi.RESENT, result))

    def _note_request(self, row: Row) -> None:
        self._last.append(row)
        self._rows.add(row)

    def close(self) -> None:
        """Drop the notes."""
        self._rows.close()


def read_notes(fd: int) -> tuple[Saved, dict[int, Opened], dict[int, Asked]]:
    """Return the tables that a killed daemon has noted, as ``View.restore`` takes them.

    Returns the open files by handle, and the last requests by unique, as well. Raises OSError,
    ValueError.
    """
    tables, opened, asked = FormerTables(), dict[int, Opened](), OrderedDict[int, Asked]()
    for row in rows_in(fd):
        kind, number, *more = row
        if kind == OPENED:
            opened[number] = Opened(*more)
        elif kind == CLOSED:
            opened.pop(number, None)
        elif kind == BEGUN:
            asked.setdefault(number, Asked(*more))  # the first one: it may be killed again
            asked.move_to_end(number)
            if len(asked) > MOST_ASKED:
                asked.popitem(last=False)
        elif kind == DONE:
            if number in asked:
                asked[number] = asked[number]._replace(result=more[0])
        else:
            tables.add(row)
    files = [(handle, file.node, file.flags, file.changed_ns) for handle, file in opened.items()]
    return tables.restorable(files), opened, asked


class AskedAgain:
    """Serves the requests that were sent again."""

    def __init__(self, view: View, asked: dict[int, Asked]) -> None:
        self._view = view
        self._asked = asked

    def serve(self, unique: int, request: str, caller: Caller | None, *arguments: Any) -> Any:
        """Return the reply to a request, as ``View.serve`` does, and do nothing twice."""
        asked = self._asked.pop(unique & ~abi.RESENT, None)
        if asked is None:
            return self._view.serve(request, caller, *arguments)
        if request == "write":
            if asked.result is not None:
                return asked.result
            if self._is_written(asked, *arguments):
                return len(arguments[2])
        elif asked.result is not None:
            return self._reply(asked, request, caller, arguments)
        try:
            return self._view.serve(request, caller, *arguments)
        except RequestError as error:
            if request in REMOVES and error.errno in (errno.ENOENT, errno.ENODATA):
                if request == "rename":
                    # It was done if the new name is there. The kernel does not know of this lookup.
                    self._forget(self._look(caller, *arguments[2:4]))
                return None
            if request not in ADDS or error.errno != errno.EEXIST:
                raise
            return self._reply(asked, request, caller, arguments)

    def _reply(
        self, asked: Asked, request: str, caller: Caller | None, arguments: tuple[Any, ...]
    ) -> Any:
        """Return the reply to a request that is done, or EEXIST if another may have done it.

        RequestError(ESTALE) if the file that it made is not there any more: the kernel looks what
        is there up, and checks whether the caller may open that.
        """
        if request not in ADDS:
            return None
        # LINK names the file before the directory.
        parent, name = arguments[1:3] if request == "link" else arguments[:2]
        entry = self._look(caller, parent, name)
        if asked.result is None and not _is_new(entry, caller, asked.at):
            number = errno.EEXIST
        elif asked.result and asked.result != _identity(entry):
            number = errno.ESTALE
        elif request != "create":
            return entry
        else:
            flags = arguments[3] & ~(os.O_CREAT | os.O_EXCL | os.O_TRUNC)
            return self._view.serve("open", caller, entry.node, flags), entry
        self._forget(entry)
        raise RequestError(number)

    def _forget(self, entry: EntryReply) -> None:
        self._view.serve("forget", None, entry.node, 1)

    def _look(self, caller: Caller | None, parent: int, name: bytes) -> EntryReply:
        entry: EntryReply = self._view.serve("lookup", caller, parent, name)
        if not entry.node:
            raise RequestError(errno.ENOENT)
        return entry

    def _is_written(self, asked: Asked, handle: int, _: int, data: memoryview) -> bool:
        """Return whether an append has reached the file, whose handle may be for writing only."""
        try:
            fd = os.open(f"/proc/self/fd/{self._view.file(handle).fd}", os.O_RDONLY)
        except OSError:
            return False
        with open(fd, "rb") as file:
            file.seek(asked.size)
            return bytes(data) in file.read(MOST_WRITTEN)


def _identity(entry: EntryReply) -> tuple[int, int]:
    return entry.node, 0 if entry.attributes is None else entry.attributes.ctime_ns


def _is_new(entry: EntryReply, caller: Caller | None, since: int) -> bool:
    """Return whether an entry is of the caller's user, and was changed since then."""
    attributes, uid = entry.attributes, None if caller is None else caller.uid
    return attributes is not None and attributes.uid == uid and attributes.ctime_ns >= since
