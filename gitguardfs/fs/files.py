"""Open files, and whether the kernel may keep cached pages and attributes (close-to-open)."""

from __future__ import annotations

import errno
import os
import time
from functools import partial
from stat import S_IFREG, S_IMODE, S_IRUSR, S_ISGID, S_ISUID, S_IWUSR, S_IXGRP

from gitguardfs.base.errors import os_error
from gitguardfs.base.protocol import (
    Caller,
    EntryReply,
    HandleId,
    NodeId,
    OpenReply,
    ReadData,
    RequestError,
    make,
)
from gitguardfs.fs import content
from gitguardfs.fs.attributes import change_key
from gitguardfs.fs.blocking import INLINE_LIMIT, Blocking, done
from gitguardfs.fs.content import PAGE
from gitguardfs.fs.handles import FileHandle
from gitguardfs.fs.locks import Locks, Owner, Range
from gitguardfs.fs.new_entries import NewEntries
from gitguardfs.fs.nodes import UNKNOWN_SIZE, Directory, Node, stale

SOURCE_FLAGS = os.O_ACCMODE | os.O_APPEND | os.O_SYNC | os.O_DSYNC
"""Open flags that a descriptor of the source gets. The guest's kernel handles O_DIRECT (with its
rules of alignment) and the flags that matter only while a name is resolved."""

REPLACED = (errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.EISDIR)
"""The errors of open(2) where a file was, and something else is now."""

SMALL = 64 * 1024
"""Bytes. A file of at most that size, opened to be read alone, is read through the kernel's cache:
that is quicker than to open it once more."""
OWNERS_RW = S_IRUSR | S_IWUSR
RACY_NS = 50_000_000
"""Nanoseconds. A file changed more recently may change again with the same time stamp, since a
clock tick lasts up to 10 ms: its cached pages are not kept."""


class Files(NewEntries):
    """The requests on open files. Errors: see ``tree``."""

    def open(self, caller: Caller, node_id: NodeId, flags: int) -> OpenReply:
        """Open a file; the reply says whether the kernel may keep cached pages and attributes.

        Also raises OSError(ENXIO) for an object without content.
        """
        writes = flags & os.O_ACCMODE != os.O_RDONLY
        node = self.check.node(node_id, change=writes or bool(flags & os.O_TRUNC))
        self.check.check_place(node)
        if node.file_type not in self.content_types:
            raise os_error(errno.ENXIO)
        fd, st = self._open(node, flags & SOURCE_FLAGS)
        try:
            if writes or flags & os.O_TRUNC:
                bits = self.attributes.bits_without_setid(st.st_mode)
                if bits is not None:
                    self.source.chmod(fd, bits)
            if flags & os.O_TRUNC and node.file_type == S_IFREG:
                if caller.uid != 0:
                    self._drop_set_id(fd, st)
                self.source.truncate(fd, 0, writable=writes)
                st = self.source.stat(fd)
                node.size = 0
            return self.opened(node, fd, st, flags)
        except BaseException:
            os.close(fd)
            raise

    def open_again(self, node_id: NodeId, flags: int, changed_ns: int, fd: int = -1) -> FileHandle:
        """Open a file that a former daemon had open, by the checks of ``open``.

        ``changed_ns`` was its ctime then. ``fd`` is that daemon's descriptor, if it has handed it
        over; an error closes it. A file that has lost its name is known by nothing else.
        """
        try:
            node = self.nodes.get(node_id)
            if node.parent is not None or fd < 0:
                node = self.check.node(node_id, change=flags & os.O_ACCMODE != os.O_RDONLY)
            if fd < 0:
                fd, st = self._open(node, flags & SOURCE_FLAGS)
                if self.source.btime_ns(fd) > changed_ns:  # it got the inode number since
                    raise stale()
            else:
                st = self.source.stat(fd)
                if not node.matches(st):
                    raise stale()
        except BaseException:
            if fd >= 0:
                os.close(fd)
            raise
        if node.size == UNKNOWN_SIZE:
            node.size = st.st_size
        is_local = self.source.is_local(node.dev)
        return FileHandle(node, fd, flags, st.st_size, is_local, changed_ns)

    def opened(self, node: Node, fd: int, st: os.stat_result, flags: int) -> OpenReply:
        """Add the handle of an open file, whose attributes are ``st``; return the reply."""
        # node.size is not updated: the kernel uses its cached size until it asks again.
        lent = self.lent(node, fd, flags, st.st_size)
        key = change_key(st)
        is_same = key == node.reported
        node.reported = key
        is_local = self.source.is_local(node.dev)
        handle = FileHandle(node, fd, flags, st.st_size, is_local, st.st_ctime_ns)
        number = self.handles.add_file(handle)
        keeps = is_same and time.time_ns() - st.st_ctime_ns > RACY_NS
        return make(
            OpenReply,
            (
                number, keeps or self.is_exclusive, self.direct_io, not is_same, lent,
                not (handle.writable or self.locks),
            ),
        )  # fmt: skip

    def lent(self, node: Node, fd: int, flags: int, size: int, mode: int = OWNERS_RW) -> int:
        """Return the descriptor of an open file if the kernel may read and write it, or -1.

        ``mode`` has the permission bits with which the file was made just now.
        """
        if not self.lends_files or node.file_type != S_IFREG:
            return -1
        access = flags & os.O_ACCMODE
        node.was_mappable = node.was_mappable or access == os.O_RDWR
        is_read_once = access == os.O_RDONLY and not node.was_mappable and size <= SMALL
        # The kernel opens the file once more: a share's server may not have the right to that.
        may_open = mode & OWNERS_RW == OWNERS_RW or self.source.is_local(node.dev)
        return fd if may_open and not is_read_once else -1

    def _drop_set_id(self, fd: int, st: os.stat_result) -> None:
        # The kernel does this for truncate(2), but not for O_TRUNC.
        bits = S_ISUID | (S_ISGID if st.st_mode & S_IXGRP else 0)
        if st.st_mode & bits:
            self.source.chmod(fd, S_IMODE(st.st_mode) & ~bits)

    def _open(self, node: Node, flags: int) -> tuple[int, os.stat_result]:
        known = self.descriptors.known(node)
        if known >= 0:
            fd = self.source.open_file(known, flags)
        else:
            dir_fd = self.descriptors.parent_of(node)
            try:
                fd = self.source.open_file_at(dir_fd, node.name, flags)
            except OSError as error:
                if error.errno in REPLACED:
                    raise stale() from None
                raise
        try:
            st = self.source.stat(fd)
            if known < 0 and not node.is_found(st):
                self.descriptors.note_replaced(node)
                raise stale()
        except OSError:
            os.close(fd)
            raise
        return fd, st

    def _write_target(self, handle: FileHandle, offset: int, length: int) -> int:
        """Return the descriptor to write to at ``offset``.

        For O_APPEND the kernel writes at the end of the file by its cached size, but the host may
        have made the file longer. So an append handle's descriptor has O_APPEND, with which
        pwrite(2) appends at any offset, also on the host's side of a share.

        A page of a shared mapping must go to its offset. The kernel may write it back through any
        handle, and does not mark such a write.
        """
        if not handle.append or not self._is_mapped_page(handle.node, offset, length):
            return handle.fd
        if handle.positional_fd < 0:
            handle.positional_fd = self._open(handle.node, os.O_WRONLY)[0]
        return handle.positional_fd

    def _is_mapped_page(self, node: Node, offset: int, length: int) -> bool:
        # A shared writable mapping needs a handle for reading and writing, and keeps it open.
        whole = length % PAGE == 0 or offset + length == node.size
        return offset < node.size and offset % PAGE == 0 and whole and self._may_be_mapped(node)

    def _may_be_mapped(self, node: Node) -> bool:
        """Return whether a process may have a shared writable mapping of a file.

        The guest's kernel alone has what was stored there, perhaps in a hole of the source's file.
        """
        files = self.handles.files.values()
        return any(handle.node is node and handle.mappable for handle in files)

    def create(
        self, caller: Caller, parent_id: NodeId, name: bytes, mode: int, flags: int
    ) -> tuple[OpenReply, EntryReply]:
        """Make a file and open it.

        Also raises OSError for a file that exists: EEXIST with O_EXCL, otherwise ESTALE.
        The kernel has not checked the permissions of a file that was made meanwhile. After ESTALE
        it looks the name up again and opens what it finds (do_filp_open).
        """
        mode = self.new_mode(S_IFREG, mode)
        try:
            ref = self.check.name(parent_id, name, change=True)
            call = partial(self.source.create, ref.fd, name, flags & SOURCE_FLAGS, S_IMODE(mode))
            node, entry, fd = self.add(caller, ref, mode, call)
        except FileExistsError:
            if flags & os.O_EXCL:
                raise
            raise stale() from None
        return self._created(node, fd, flags, mode, entry), entry

    def tmpfile(
        self, caller: Caller, parent_id: NodeId, mode: int, flags: int
    ) -> tuple[OpenReply, EntryReply]:
        """Make a file without a name and open it (O_TMPFILE); ``link`` can give it a name.

        Also raises OSError(EOPNOTSUPP) if the source has no such files.
        """
        mode = self.new_mode(S_IFREG, mode)
        parent = self.check.node(parent_id, change=True)
        if not isinstance(parent, Directory):
            raise os_error(errno.ENOTDIR)
        if not self.descriptors.holds_objects:
            raise os_error(errno.EOPNOTSUPP)
        dir_fd = self.descriptors.of(parent)
        owner = self.owner_in(self.source.stat(dir_fd), caller)
        fd = self.source.create_nameless(dir_fd, flags & SOURCE_FLAGS, S_IMODE(mode))
        try:
            st = self.source.stat(fd)
            if owner is not None and owner != (st.st_uid, st.st_gid):
                st = self._give(owner, fd, st, mode)
            node, entry = self.resolver.add_nameless(st, fd, caller.uid)
        except BaseException:
            os.close(fd)
            raise
        return self._created(node, fd, flags, mode, entry), entry

    def _created(self, node: Node, fd: int, flags: int, mode: int, entry: EntryReply) -> OpenReply:
        """Add the handle of a file that was made with ``mode``; return the reply."""
        is_local = self.source.is_local(node.dev)
        changed_ns = 0 if entry.attributes is None else entry.attributes.ctime_ns
        handle = self.handles.add_file(FileHandle(node, fd, flags, 0, is_local, changed_ns))
        lent = self.lent(node, fd, flags, 0, mode)
        return make(OpenReply, (handle, False, self.direct_io, False, lent, False))

    def read(self, handle_id: HandleId, offset: int, size: int) -> ReadData | Blocking[ReadData]:
        """Read from an open file; at once if that needs no wait."""
        handle = self.handles.file(handle_id)
        if handle.is_local and handle.supports_nowait:
            try:
                data = content.read_nowait(handle.fd, offset, size, handle.size)
            except OSError as error:
                if error.errno != errno.EOPNOTSUPP:
                    raise
                handle.supports_nowait = False
            else:
                if data is not None:
                    limit = self.reads
                    return data if limit is None else done(data, limit)
        return Blocking(
            self.reading, content.read, handle.fd, offset, size,
            is_small=size <= INLINE_LIMIT, is_local=handle.is_local, rate=self.reads,
        )  # fmt: skip

    def write(self, handle_id: HandleId, offset: int, data: bytes) -> int | Blocking[int]:
        """Write to an open file; return the number of bytes written."""
        handle = self.handles.file(handle_id)
        fd = self._write_target(handle, offset, len(data))
        is_small = len(data) <= INLINE_LIMIT
        if is_small and handle.is_local and not handle.synchronous:
            written = self.source.write(fd, offset, data)
            note_write(handle, offset, written)
            if self.writes is None:
                return written
            return done(written, self.writes)
        return Blocking(
            self.writing, self.source.write, fd, offset, data,
            is_small=is_small, is_local=handle.is_local, rate=self.writes,
            finish=partial(note_write, handle, offset),
        )  # fmt: skip

    def flush(self, handle_id: HandleId, owner: int = 0) -> Blocking[None] | None:
        """Report write errors at close(2), if the source may report them only then.

        ``owner`` is the process that closes the file, as the kernel names owners of locks: its
        locks end. Raises RequestError(ENOSYS) if there is nothing to do for any file.
        """
        if not self.closes_late and self.locks is None:
            raise RequestError(errno.ENOSYS)  # the kernel stops asking after the first
        handle = self.handles.file(handle_id)
        if self.locks is not None:
            self.locks.drop(Owner(handle.node, owner, is_whole=False))
            if not self.closes_late:
                return None
        if handle.is_local or not handle.writable:
            return None
        if self.source.closes_at_once:
            content.close_all(self._duplicates(handle))
            return None
        return Blocking(
            self.closing, content.close_all, self._duplicates(handle),
            is_small=True, is_local=False,
        )  # fmt: skip

    def _duplicates(self, handle: FileHandle) -> tuple[int, ...]:
        """Return copies of the descriptors that were written to, for the caller to close.

        On a network file system, close(2) may be the first call that reports a full disk.
        """
        written = [fd for fd in (handle.fd, handle.positional_fd) if fd >= 0]
        copies: list[int] = []
        try:
            for fd in written:
                copies.append(self.descriptors.with_room(os.dup, fd))
        except BaseException:
            content.close_all(tuple(copies))
            raise
        return tuple(copies)

    def fsync(self, handle_id: HandleId, datasync: bool) -> Blocking[None]:
        """Return the call that waits until what was written is on the disk (fsync(2))."""
        handle = self.handles.file(handle_id)
        unsynced, handle.node.unsynced = handle.node.unsynced, 0
        return Blocking(
            self.syncing, os.fdatasync if datasync else os.fsync,
            handle.fd, is_small=unsynced <= INLINE_LIMIT, is_local=handle.is_local,
        )  # fmt: skip

    def release(self, handle_id: HandleId) -> None:
        """Close a file's handle."""
        if self.locks is not None:
            self.locks.drop_of(self.handles.file(handle_id))
        self.handles.release_file(handle_id)

    def setlk(self, handle_id: HandleId, owner: int, is_whole: bool, wanted: Range) -> None:
        """Take, change or drop a lock of an open file. Raises OSError(EAGAIN) instead of waiting.

        ``owner`` is the kernel's number of a process or an open file; ``is_whole`` says that it is
        a lock of flock(2).
        """
        handle = self.handles.file(handle_id)
        self._locks.set(handle, Owner(handle.node, owner, is_whole), wanted)

    def getlk(self, handle_id: HandleId, owner: int, is_whole: bool, wanted: Range) -> Range:
        """Return a lock that is in the way of ``wanted``; that with F_UNLCK if there is none."""
        handle = self.handles.file(handle_id)
        return self._locks.find(handle, Owner(handle.node, owner, is_whole), wanted)

    @property
    def _locks(self) -> Locks:
        if self.locks is None:  # the kernel was not told to ask
            raise RequestError(errno.ENOSYS)
        return self.locks


def note_write(handle: FileHandle, offset: int, length: int) -> None:
    """Note a write that the kernel counts as ``length`` bytes at ``offset``."""
    node = handle.node
    node.unsynced += length
    node.size = max(node.size, offset + length)
    node.reported = 0  # the kernel may discard attributes that it is sent during a write
