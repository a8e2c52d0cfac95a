"""The handlers, which translate pyfuse3's requests to ``sessions.base.Requests`` and replies back.

All handlers run on the event loop's thread, without an await between the first check of a request
and its last change of the tables. A call that may wait for a disk or a server is returned as a
``Blocking``: reads of data not in memory, large or synchronous writes, fsync. It runs on a worker
thread, unless the source is local and the last calls of that kind were quick.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import cast

import pyfuse3
from pyfuse3 import EntryAttributes, FileInfo, ReaddirToken, RequestContext

from gitguardfs.base.protocol import (
    Caller,
    DirEntry,
    DirOffset,
    EntryReply,
    GuestGid,
    GuestUid,
    HandleId,
    NodeId,
    OpenReply,
    ReadData,
    SetAttr,
    make,
)
from gitguardfs.fs.blocking import Blocking
from gitguardfs.sessions.base import Requests
from gitguardfs.sessions.pyfuse3_session.handler_decorator import handler
from gitguardfs.sessions.pyfuse3_session.names_only import NamesOnlyEntry
from gitguardfs.sessions.pyfuse3_session.request_loop import RequestLoop

STATFS_FIELDS = (
    "f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail",
    "f_files", "f_ffree", "f_favail", "f_namemax",
)  # fmt: skip


class Handlers(pyfuse3.Operations):
    """The handlers of one mount."""

    supports_dot_lookup = False
    enable_writeback_cache = False
    enable_acl = False

    def __init__(
        self,
        operations: Requests,
        invalidate: Callable[[NodeId], None],
        *,
        no_cpu_idle: bool = False,
    ) -> None:
        """Serve ``operations``.

        ``invalidate`` makes the kernel drop the cached attributes of a node. ``no_cpu_idle`` keeps
        processors from halting while requests come in a row.
        """
        super().__init__()
        self._operations = operations
        self._invalidate = invalidate
        self.boundary = operations.boundary
        self.request_loop = RequestLoop(no_cpu_idle=no_cpu_idle)
        self._names_only = NamesOnlyEntry()

    # Names and attributes

    @handler
    def lookup(self, parent_inode: NodeId, name: bytes, ctx: RequestContext) -> EntryAttributes:
        return _entry(self._operations.lookup(_caller(ctx), parent_inode, name))

    async def forget(  # type: ignore[override]
        self, inode_list: Sequence[tuple[NodeId, int]]
    ) -> None:
        for inode, times in inode_list:
            try:
                self._operations.forget(inode, times)
            except Exception as error:  # FORGET has no reply, and pyfuse3 takes no FUSEError here
                self.boundary.errno_of(error, "forget")

    @handler
    def getattr(self, inode: NodeId, ctx: RequestContext) -> EntryAttributes:
        return _entry(self._operations.getattr(_caller(ctx), inode))

    @handler
    def setattr(
        self,
        inode: NodeId,
        attr: EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: HandleId | None,
        ctx: RequestContext,
    ) -> EntryAttributes:
        changes = SetAttr(
            size=attr.st_size if fields.update_size else None,
            mode=attr.st_mode if fields.update_mode else None,
            uid=GuestUid(attr.st_uid) if fields.update_uid else None,
            gid=GuestGid(attr.st_gid) if fields.update_gid else None,
            atime_ns=attr.st_atime_ns if fields.update_atime else None,
            mtime_ns=attr.st_mtime_ns if fields.update_mtime else None,
        )
        return _entry(self._operations.setattr(_caller(ctx), inode, changes, fh))

    @handler
    def readlink(self, inode: NodeId, ctx: RequestContext) -> bytes:
        return self._operations.readlink(_caller(ctx), inode)

    @handler
    def access(self, inode: NodeId, mode: int, ctx: RequestContext) -> bool:
        self._operations.access(_caller(ctx), inode, mode)
        return True

    @handler
    def statfs(self, ctx: RequestContext) -> pyfuse3.StatvfsData:
        have = self._operations.statfs(_caller(ctx))
        data = pyfuse3.StatvfsData()
        for field in STATFS_FIELDS:
            setattr(data, field, getattr(have, field))
        return data

    # Names that are added, removed or moved

    @handler
    def mknod(
        self, parent_inode: NodeId, name: bytes, mode: int, rdev: int, ctx: RequestContext
    ) -> EntryAttributes:
        return _entry(self._operations.mknod(_caller(ctx), parent_inode, name, mode, rdev))

    @handler
    def mkdir(
        self, parent_inode: NodeId, name: bytes, mode: int, ctx: RequestContext
    ) -> EntryAttributes:
        return _entry(self._operations.mkdir(_caller(ctx), parent_inode, name, mode))

    @handler
    def symlink(
        self, parent_inode: NodeId, name: bytes, target: bytes, ctx: RequestContext
    ) -> EntryAttributes:
        return _entry(self._operations.symlink(_caller(ctx), parent_inode, name, target))

    @handler
    def link(
        self, inode: NodeId, new_parent_inode: NodeId, new_name: bytes, ctx: RequestContext
    ) -> EntryAttributes:
        return _entry(self._operations.link(_caller(ctx), inode, new_parent_inode, new_name))

    @handler
    def create(
        self, parent_inode: NodeId, name: bytes, mode: int, flags: int, ctx: RequestContext
    ) -> tuple[FileInfo, EntryAttributes]:
        opened, entry = self._operations.create(_caller(ctx), parent_inode, name, mode, flags)
        return _file_info(opened), _entry(entry)

    @handler
    def unlink(self, parent_inode: NodeId, name: bytes, ctx: RequestContext) -> None:
        self._operations.unlink(_caller(ctx), parent_inode, name)

    @handler
    def rmdir(self, parent_inode: NodeId, name: bytes, ctx: RequestContext) -> None:
        self._operations.rmdir(_caller(ctx), parent_inode, name)

    @handler
    def rename(
        self,
        parent_inode_old: NodeId,
        name_old: bytes,
        parent_inode_new: NodeId,
        name_new: bytes,
        flags: int,
        ctx: RequestContext,
    ) -> None:
        self._operations.rename(
            _caller(ctx), parent_inode_old, name_old, parent_inode_new, name_new, flags
        )

    # Open files

    @handler
    def open(self, inode: NodeId, flags: int, ctx: RequestContext) -> FileInfo | Blocking[FileInfo]:
        opened = self._operations.open(_caller(ctx), inode, flags)
        if isinstance(opened, Blocking):
            opened.translate = _file_info
            return cast("Blocking[FileInfo]", opened)
        if opened.attributes_changed:
            # Attributes only: invalidating pages takes locks that this request may hold.
            with suppress(OSError):
                self._invalidate(inode)
        return _file_info(opened)

    @handler  # type: ignore[arg-type]
    def read(  # type: ignore[override]
        self, fh: HandleId, off: int, size: int
    ) -> ReadData | Blocking[ReadData]:
        return self._operations.read(fh, off, size)

    @handler
    def write(self, fh: HandleId, off: int, buf: bytes) -> int | Blocking[int]:
        return self._operations.write(fh, off, buf)

    @handler
    def flush(self, fh: HandleId) -> Blocking[None] | None:
        return self._operations.flush(fh)

    @handler
    def fsync(self, fh: HandleId, datasync: bool) -> Blocking[None] | None:
        return self._operations.fsync(fh, datasync)

    @handler
    def release(self, fh: HandleId) -> None:
        self._operations.release(fh)

    # Directories

    @handler
    def opendir(self, inode: NodeId, ctx: RequestContext) -> int:
        return self._operations.opendir(_caller(ctx), inode)

    @handler
    def readdir(self, fh: HandleId, start_id: DirOffset, token: ReaddirToken) -> None:
        def add(entry: DirEntry) -> bool:
            reply = self._names_only.of(entry) if entry.reply is None else _entry(entry.reply)
            return pyfuse3.readdir_reply(token, entry.name, reply, entry.offset)

        self._operations.readdir(fh, start_id, add)

    @handler
    def fsyncdir(self, fh: HandleId, datasync: bool) -> Blocking[None] | None:
        return self._operations.fsyncdir(fh, datasync)

    @handler
    def releasedir(self, fh: HandleId) -> None:
        self._operations.releasedir(fh)

    # Extended attributes

    @handler
    def getxattr(self, inode: NodeId, name: bytes, ctx: RequestContext) -> bytes:
        return self._operations.getxattr(_caller(ctx), inode, name)

    @handler
    def listxattr(self, inode: NodeId, ctx: RequestContext) -> Sequence[bytes]:
        return self._operations.listxattr(_caller(ctx), inode)

    @handler
    def setxattr(self, inode: NodeId, name: bytes, value: bytes, ctx: RequestContext) -> None:
        self._operations.setxattr(_caller(ctx), inode, name, value)
        with suppress(OSError):  # an access list changes the mode
            self._invalidate(inode)

    @handler
    def removexattr(self, inode: NodeId, name: bytes, ctx: RequestContext) -> None:
        self._operations.removexattr(_caller(ctx), inode, name)


def _caller(ctx: RequestContext) -> Caller:
    return make(Caller, (ctx.uid, ctx.gid, ctx.pid))


def _entry(reply: EntryReply) -> EntryAttributes:
    _, attributes, entry_timeout, attr_timeout = reply
    entry = EntryAttributes()
    if attributes is None:
        entry.st_ino = 0
    else:
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
        ) = attributes
    entry.entry_timeout = entry_timeout
    entry.attr_timeout = attr_timeout
    return entry


def _file_info(opened: OpenReply) -> FileInfo:
    return FileInfo(fh=opened.handle, keep_cache=opened.keep_cache, direct_io=opened.direct_io)
