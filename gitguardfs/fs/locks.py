"""The locks that programs of the guest hold on files of the source, which its programs see too.

A lock belongs to an owner: a process for POSIX's locks, an open file for the others. On the source
it belongs to an open file (``F_OFD_SETLK``, flock(2)), so each owner has one of its own there, and
all its locks go when that is closed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from gitguardfs.fs.handles import FileHandle
from gitguardfs.fs.nodes import Node
from gitguardfs.fs.source import Source
from gitguardfs.linux.file_locks import ranges_of

LAST = (1 << 63) - 1
"""The last byte of a file, as the kernel counts."""
_FLOCK = struct.Struct("hhqqi4x")
"""``struct flock`` of fcntl(2)."""
_FLOCK_KINDS = {fcntl.F_RDLCK: fcntl.LOCK_SH, fcntl.F_WRLCK: fcntl.LOCK_EX}


class Range(NamedTuple):
    """A lock of a range of bytes."""

    start: int
    end: int
    """The last byte; ``LAST`` for the end of the file, wherever that is."""
    kind: int
    """F_RDLCK, F_WRLCK or F_UNLCK."""
    pid: int
    """The process that holds it; 0 if that is not known."""


class Owner(NamedTuple):
    """Who holds locks on a file."""

    node: Node
    number: int
    """The kernel's number of a process or of an open file."""
    is_whole: bool
    """Whether its locks are flock(2)'s, of the whole file."""


@dataclass
class _Held:
    fd: int
    """The open file that has the owner's locks."""
    is_writable: bool
    """Whether it can have locks for writing."""
    handle: FileHandle
    """The first one by which the owner asked."""


class Locks:
    """The locks on one source. Only descriptors are kept: which ranges, the kernel knows."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._held: dict[Owner, _Held] = {}
        self._owners: defaultdict[FileHandle, set[Owner]] = defaultdict(set)
        """By the handle by which they asked first."""

    def set(self, handle: FileHandle, owner: Owner, wanted: Range) -> None:
        """Take, change or drop a lock, without waiting.

        Raises OSError: EAGAIN if another one is in the way, ENFILE if descriptors run out, and that
        of the source.
        """
        held = self._held.get(owner)
        if held is None:
            if wanted.kind == fcntl.F_UNLCK:
                return
            held = self._held[owner] = _Held(self._opened(handle), handle.writable, handle)
            self._owners[handle].add(owner)
        if owner.is_whole and wanted.kind == fcntl.F_UNLCK:
            return self.drop(owner)
        try:
            _take(held.fd, owner, wanted)
        except OSError as error:
            if error.errno != errno.EBADF or held.is_writable or not handle.writable:
                raise
            self._make_writable(held, handle)
            _take(held.fd, owner, wanted)

    def _make_writable(self, held: _Held, handle: FileHandle) -> None:
        """Move an owner's locks to an open file that can have locks for writing, too.

        All are locks for reading, which both files can have at a time: nobody gets in between.
        """
        fd = self._source.open_file(handle.fd, os.O_RDWR)
        try:
            for start, end in ranges_of(held.fd, LAST):
                lock = Range(start, end, fcntl.F_RDLCK, 0)
                fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _packed(lock))
        except BaseException:
            os.close(fd)
            raise
        os.close(held.fd)
        held.fd, held.is_writable = fd, True

    def find(self, handle: FileHandle, owner: Owner, wanted: Range) -> Range:
        """Return a lock that is in the way of a range, or the range as unlocked. Raises OSError."""
        held = self._held.get(owner)
        fd = self._opened(handle) if held is None else held.fd
        try:
            found = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _packed(wanted))
        finally:
            if held is None:
                os.close(fd)
        kind, _, start, length, pid = _FLOCK.unpack(found)
        if kind == fcntl.F_UNLCK:
            return wanted._replace(kind=kind)
        return Range(start, start + length - 1 if length else LAST, kind, max(pid, 0))

    def _opened(self, handle: FileHandle) -> int:
        """Open a handle's file to lock it; for both kinds of locks if the handle can write.

        For one that only reads, a file that is open to be written would keep the host from
        executing it.
        """
        if not handle.writable:
            return self._source.open_file(handle.fd, os.O_RDONLY)
        try:
            return self._source.open_file(handle.fd, os.O_RDWR)
        except OSError:
            return self._source.open_file(handle.fd, os.O_WRONLY)

    def drop(self, owner: Owner) -> None:
        """Drop all locks of an owner."""
        held = self._held.pop(owner, None)
        if held is not None:
            os.close(held.fd)
            self._owners[held.handle].discard(owner)

    def drop_of(self, handle: FileHandle) -> None:
        """Drop the locks of all owners that asked by an open file which is closed now."""
        for owner in tuple(self._owners.get(handle, ())):
            self.drop(owner)
        self._owners.pop(handle, None)


def _take(fd: int, owner: Owner, wanted: Range) -> None:
    if owner.is_whole:
        fcntl.flock(fd, _FLOCK_KINDS[wanted.kind] | fcntl.LOCK_NB)
    else:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _packed(wanted))


def _packed(wanted: Range) -> bytes:
    length = 0 if wanted.end >= LAST else wanted.end - wanted.start + 1
    return _FLOCK.pack(wanted.kind, os.SEEK_SET, wanted.start, length, 0)
