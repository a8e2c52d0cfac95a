"""pyfuse3's requests translated to the tree's operations, and its answers back.

All handlers run on the event loop's thread. The tree's methods run there without an await in
between; what may wait for a disk or a server (reads that are not in memory, large or
synchronous writes, fsync) goes to worker threads, which get a descriptor and bytes only, unless
the source is local and such calls have been quick of late (``blocking``).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from stat import S_ISDIR
from typing import Any, TypeVar

import pyfuse3
from pyfuse3 import EntryAttributes, FileInfo, FUSEError, ReaddirToken, RequestContext

from gitguardfs.fs import source
from gitguardfs.fs.attributes import Attributes
from gitguardfs.fs.mount_state import Caller
from gitguardfs.fs.nodes import Node
from gitguardfs.guard.rules import Refused
from gitguardfs.protocol import Later
from gitguardfs.serving.audit_log import AuditLog
from gitguardfs.serving.blocking import Pace
from gitguardfs.serving.boundary import Guarded, errno_of
from gitguardfs.serving.files import Opened
from gitguardfs.serving.operations import Changes, Entry, Tree
from gitguardfs.sessions.pyfuse3_session.answers import ReadData
from gitguardfs.sessions.pyfuse3_session.handler import handler
from gitguardfs.sessions.pyfuse3_session.names_only import Appetite, NameEntry
from gitguardfs.sessions.pyfuse3_session.request_loop import Requests
from gitguardfs.sessions.pyfuse3_session.waiting import Waiting

AT_ONCE = 128 * 1024
"""Bytes up to which a transfer may be done without a thread, and a write to a local file always
is: it goes to memory, and a change of thread costs more than the copying."""

R = TypeVar("R")


class Operations(pyfuse3.Operations):
    """One mount."""

    supports_dot_lookup = False
    enable_writeback_cache = False
    enable_acl = False

    def __init__(
        self,
        tree: Tree,
        audit: AuditLog,
        *,
        cache_timeout: float,
        same_for_all: bool = True,
        direct_io: bool = False,
        closes_late: bool = False,
        invalidate: Callable[[int], None],
    ) -> None:
        """Serve ``tree``.

        ``cache_timeout`` is in seconds; attributes are remembered by the kernel only if they are
        the ``same_for_all``. ``direct_io`` keeps no pages at all. ``closes_late`` says that the
        source may report errors of writing at close(2) only. ``invalidate`` makes the kernel ask
        for the attributes of a node anew.
        """
        super().__init__()
        self._tree = tree
        self._audit = audit
        self._timeout = cache_timeout
        self._attr_timeout = cache_timeout if same_for_all else 0.0
        self._direct_io = direct_io
        self._closes_late = closes_late
        self._invalidate = invalidate
        self.requests = Requests()
        self._waiting = Waiting(self.requests)
        self._reading, self._writing, self._syncing, self._closing = Pace(), Pace(), Pace(), Pace()
        self._appetite = Appetite()
        self._name_entry = NameEntry()
        self._lists_names = tree.can_list_names_only and self._name_entry.works
        self._listing: dict[int, int] = {}
        """By the handle of an open directory, the process that opened it."""
        self._absent = EntryAttributes()
        self._absent.st_ino = 0
        self._absent.entry_timeout = cache_timeout

    def note_refusal(self, operation: str, refused: Refused, args: Sequence[Any]) -> None:
        """Hand a refusal to the audit log; the request's context is its last argument."""
        context = args[-1] if args and isinstance(args[-1], RequestContext) else None
        uid, pid = (context.uid, context.pid) if context is not None else (-1, 0)
        self._audit.refuse(operation, refused, uid, pid)

    async def ask_again(self, name: str, later: Later, call: Callable[[], Awaitable[R]]) -> R:
        """Make ``call`` again, which has raised ``later``, until it is done or fails."""
        return await self._waiting.ask_again(name, later, call)

    def _entry(self, attributes: Attributes) -> EntryAttributes:
        entry = EntryAttributes()
        (
            entry.st_ino,
            entry.st_mode,
            entry.st_nlink,
            entry.st_uid,
            entry.st_gid,
            entry.st_rdev,
            entry.st_size,
            entry.st_blocks,
            entry.st_blksize,
            entry.st_atime_ns,
            entry.st_mtime_ns,
            entry.st_ctime_ns,
            lasts,
        ) = attributes
        entry.entry_timeout = self._timeout if lasts else 0.0
        entry.attr_timeout = self._attr_timeout
        return entry

    # Names and attributes

    @handler(Guarded.NAME)
    async def lookup(self, parent_inode: int, name: bytes, ctx: RequestContext) -> EntryAttributes:
        found = self._tree.lookup(parent_inode, name, ctx.uid)
        if found is None:
            if not self._timeout:
                raise FUSEError(errno.ENOENT)
            return self._absent
        if not S_ISDIR(found.mode):
            self._appetite.note_look(ctx.pid)
        return self._entry(found)

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        for inode, times in inode_list:
            try:
                self._tree.forget(inode, times)
            except Exception as error:  # nobody is answered, and pyfuse3 takes no FUSEError here
                errno_of(error, "forget", lambda _: None)

    @handler(Guarded.NODE)
    async def getattr(self, inode: int, ctx: RequestContext) -> EntryAttributes:
        return self._entry(self._tree.getattr(inode, ctx.uid))

    @handler(Guarded.NODE)
    async def setattr(
        self,
        inode: int,
        attr: EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: int | None,
        ctx: RequestContext,
    ) -> EntryAttributes:
        changes = Changes(
            size=attr.st_size if fields.update_size else None,
            mode=attr.st_mode if fields.update_mode else None,
            uid=attr.st_uid if fields.update_uid else None,
            gid=attr.st_gid if fields.update_gid else None,
            atime_ns=attr.st_atime_ns if fields.update_atime else None,
            mtime_ns=attr.st_mtime_ns if fields.update_mtime else None,
        )
        return self._entry(self._tree.setattr(inode, changes, fh, ctx.uid))

    @handler(Guarded.NODE)
    async def readlink(self, inode: int, ctx: RequestContext) -> bytes:
        return self._tree.readlink(inode)

    @handler(Guarded.NODE)
    async def access(self, inode: int, mode: int, ctx: RequestContext) -> bool:
        self._tree.access(inode, mode)
        return True

    @handler(Guarded.NOTHING)
    async def statfs(self, ctx: RequestContext) -> pyfuse3.StatvfsData:
        have = self._tree.statfs()
        data = pyfuse3.StatvfsData()
        for field in (
            "f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail",
            "f_files", "f_ffree", "f_favail", "f_namemax",
        ):  # fmt: skip
            setattr(data, field, getattr(have, field))
        return data

    # Names that come, go or move

    @handler(Guarded.NAME)
    async def mknod(
        self, parent_inode: int, name: bytes, mode: int, rdev: int, ctx: RequestContext
    ) -> EntryAttributes:
        return self._entry(self._tree.mknod(_caller(ctx), parent_inode, name, mode, rdev))

    @handler(Guarded.NAME)
    async def mkdir(
        self, parent_inode: int, name: bytes, mode: int, ctx: RequestContext
    ) -> EntryAttributes:
        return self._entry(self._tree.mkdir(_caller(ctx), parent_inode, name, mode))

    @handler(Guarded.NAME)
    async def symlink(
        self, parent_inode: int, name: bytes, target: bytes, ctx: RequestContext
    ) -> EntryAttributes:
        return self._entry(self._tree.symlink(_caller(ctx), parent_inode, name, target))

    @handler(Guarded.NAME)
    async def link(
        self, inode: int, new_parent_inode: int, new_name: bytes, ctx: RequestContext
    ) -> EntryAttributes:
        return self._entry(self._tree.link(_caller(ctx), inode, new_parent_inode, new_name))

    @handler(Guarded.NAME)
    async def create(
        self, parent_inode: int, name: bytes, mode: int, flags: int, ctx: RequestContext
    ) -> tuple[FileInfo, EntryAttributes]:
        opened, attributes = self._tree.create(_caller(ctx), parent_inode, name, mode, flags)
        return self._file_info(opened), self._entry(attributes)

    @handler(Guarded.NAME)
    async def unlink(self, parent_inode: int, name: bytes, ctx: RequestContext) -> None:
        self._tree.unlink(_caller(ctx), parent_inode, name)

    @handler(Guarded.NAME)
    async def rmdir(self, parent_inode: int, name: bytes, ctx: RequestContext) -> None:
        self._tree.rmdir(_caller(ctx), parent_inode, name)

    @handler(Guarded.NAME)
    async def rename(
        self,
        parent_inode_old: int,
        name_old: bytes,
        parent_inode_new: int,
        name_new: bytes,
        flags: int,
        ctx: RequestContext,
    ) -> None:
        self._tree.rename(
            _caller(ctx), parent_inode_old, name_old, parent_inode_new, name_new, flags
        )

    # Open files

    @handler(Guarded.NODE)
    async def open(self, inode: int, flags: int, ctx: RequestContext) -> FileInfo:
        opened: Opened = self._tree.open(_caller(ctx), inode, flags)
        if opened.attributes_changed:
            # Only the attributes: that takes no lock which this request could be holding.
            with suppress(OSError):
                self._invalidate(inode)
        return self._file_info(opened)

    async def _paced(
        self, pace: Pace, small: bool, is_local: bool, call: Callable[..., R], *args: Any
    ) -> R:
        """Do what may wait: on a thread, unless it is small and local, and such have been quick."""
        quick = small and pace.is_quick
        with pace.under_way():
            if quick and is_local:
                return pace.timed(call, *args)
            return await self.requests.wait(pace.timed, call, *args, quick=quick)

    def _file_info(self, opened: Opened) -> FileInfo:
        return FileInfo(fh=opened.handle, keep_cache=opened.keep_pages, direct_io=self._direct_io)

    @handler(Guarded.HANDLE)
    async def read(self, fh: int, off: int, size: int) -> ReadData:  # type: ignore[override]
        handle = self._tree.handles.file(fh)
        if handle.is_local and handle.tells_waiting:
            try:
                data = source.read_cached(handle.fd, off, size, handle.size)
            except OSError as error:
                if error.errno != errno.EOPNOTSUPP:
                    raise
                handle.tells_waiting = False
            else:
                if data is not None:
                    return data
        small = size <= AT_ONCE
        return await self._paced(
            self._reading, small, handle.is_local, source.read, handle.fd, off, size
        )

    @handler(Guarded.HANDLE)
    async def write(self, fh: int, off: int, buf: bytes) -> int:
        handle = self._tree.handles.file(fh)
        fd = self._tree.write_target(handle, off, len(buf))
        small = len(buf) <= AT_ONCE
        if small and handle.is_local and not handle.synchronous:
            done = source.write(fd, off, buf)
        else:
            done = await self._paced(
                self._writing, small, handle.is_local, source.write, fd, off, buf
            )
        self._tree.wrote(handle, off, done)
        return done

    @handler(Guarded.HANDLE)
    async def flush(self, fh: int) -> None:
        if not self._closes_late:  # the kernel stops asking after the first ENOSYS
            raise FUSEError(errno.ENOSYS)
        handle = self._tree.handles.file(fh)
        if not handle.is_local:
            copies = self._tree.duplicates(handle)
            await self._paced(self._closing, True, False, source.close_all, copies)

    @handler(Guarded.HANDLE)
    async def fsync(self, fh: int, datasync: bool) -> None:
        handle = self._tree.handles.file(fh)
        unsynced, handle.node.unsynced = handle.node.unsynced, 0
        sync = os.fdatasync if datasync else os.fsync
        small = unsynced <= AT_ONCE
        await self._paced(self._syncing, small, handle.is_local, sync, handle.fd)

    @handler(Guarded.HANDLE)
    async def release(self, fh: int) -> None:
        self._tree.release(fh)

    # Directories

    @handler(Guarded.NODE)
    async def opendir(self, inode: int, ctx: RequestContext) -> int:
        handle = self._tree.opendir(inode, ctx.uid)
        if self._lists_names:
            self._listing[handle] = ctx.pid
        return handle

    @handler(Guarded.NODE)
    async def readdir(self, fh: int, start_id: int, token: ReaddirToken) -> None:
        pid = self._listing.get(fh)
        names_only = pid is not None and self._appetite.is_for_names(pid)
        told: list[Node] = []
        try:
            for entry in self._tree.read_directory(fh, start_id, names_only):
                if entry.node is not None:
                    entry.node.lookup_count += 1
                    told.append(entry.node)
                if not self._tell(token, entry):
                    self._untell(told[-1:] if entry.node is not None else [])
                    break
        except BaseException:
            self._untell(told)
            raise

    def _tell(self, token: ReaddirToken, entry: Entry) -> bool:
        """Add an entry to a reply; returns False if there is no room for it."""
        attributes = entry.attributes
        reply = self._name_entry.of(entry) if attributes is None else self._entry(attributes)
        return pyfuse3.readdir_reply(token, entry.name, reply, entry.position)

    def _untell(self, nodes: list[Node]) -> None:
        for node in nodes:
            node.lookup_count -= 1
            self._tree.unreport(node)

    @handler(Guarded.NODE)
    async def fsyncdir(self, fh: int, datasync: bool) -> None:
        fd, is_local = self._tree.directory_descriptor(fh)
        sync = os.fdatasync if datasync else os.fsync
        try:
            await self._paced(self._syncing, True, is_local, sync, fd)
        finally:
            os.close(fd)

    @handler(Guarded.HANDLE)
    async def releasedir(self, fh: int) -> None:
        self._listing.pop(fh, None)
        self._tree.releasedir(fh)

    # Extended attributes

    @handler(Guarded.NODE)
    async def getxattr(self, inode: int, name: bytes, ctx: RequestContext) -> bytes:
        return self._tree.getxattr(inode, name)

    @handler(Guarded.NODE)
    async def listxattr(self, inode: int, ctx: RequestContext) -> Sequence[bytes]:
        return self._tree.listxattr(inode)

    @handler(Guarded.NODE)
    async def setxattr(self, inode: int, name: bytes, value: bytes, ctx: RequestContext) -> None:
        self._tree.setxattr(inode, name, value)

    @handler(Guarded.NODE)
    async def removexattr(self, inode: int, name: bytes, ctx: RequestContext) -> None:
        self._tree.removexattr(inode, name)


def _caller(ctx: RequestContext) -> Caller:
    return Caller(ctx.uid, ctx.gid)
