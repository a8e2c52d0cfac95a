"""The handlers: each translates a request of pyfuse3 for ``View.serve``, and the reply back.

All handlers run on the event loop's thread, without an await between the first check of a request
and its last change of the tables. A call that may wait for a disk or a server is returned as a
``Blocking``: reads of data not in memory, large or synchronous writes, fsync. It runs on a worker
thread, unless the source is local and the last calls of that kind were quick.

pyfuse3 ends the mount on any exception other than FUSEError, and on a reply that it cannot
translate. A handler turns each of these into an errno.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

import pyfuse3
from pyfuse3 import EntryAttributes, FileInfo, FUSEError, ReaddirToken, RequestContext

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
    RequestError,
    SetAttr,
    make,
)
from gitguardfs.fs.blocking import Blocking
from gitguardfs.sessions.pyfuse3_session.internals import NamesOnlyEntry
from gitguardfs.sessions.pyfuse3_session.request_loop import RequestLoop
from gitguardfs.view.view import View

STATFS_FIELDS = (
    "f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail",
    "f_files", "f_ffree", "f_favail", "f_namemax",
)  # fmt: skip
_END_OF_NUMBERS = 1 << 63

Handler = Callable[..., Coroutine[Any, Any, Any]]


# Replies: each function raises an error for a reply that pyfuse3 could not translate.


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


def _created(reply: tuple[OpenReply, EntryReply]) -> tuple[FileInfo, EntryAttributes]:
    opened, entry = reply
    return _file_info(opened), _entry(entry)


def _space(have: Any) -> pyfuse3.StatvfsData:
    data = pyfuse3.StatvfsData()
    for field in STATFS_FIELDS:
        setattr(data, field, getattr(have, field))
    return data


def _of_type(kind: Any) -> Callable[[Any], Any]:
    def check(reply: Any) -> Any:
        if isinstance(reply, kind):
            return reply
        raise TypeError(f"no valid reply: {reply!r:.100}")

    return check


_nothing, _bytes, _data = _of_type(type(None)), _of_type(bytes), _of_type(ReadData)


def _number(reply: int) -> int:
    if not isinstance(reply, int) or not 0 <= reply < _END_OF_NUMBERS:
        raise TypeError(f"no valid reply: {reply!r:.100}")
    return reply


def _yes(reply: None) -> bool:
    return bool(_nothing(reply) is None)


def _names(reply: Sequence[bytes]) -> Sequence[bytes]:
    return [_bytes(name) for name in reply]


# Requests


def _handler(request: str, translate: Callable[[Any], Any], *, has_caller: bool = True) -> Handler:
    """Return the handler of a request. It raises FUSEError only."""

    async def handle(handlers: Handlers, *args: Any) -> Any:
        caller = None
        try:
            if has_caller:
                *args, ctx = args  # type: ignore[assignment]
                caller = make(Caller, (ctx.uid, ctx.gid, ctx.pid))
            reply = handlers.view.serve(request, caller, *args)
            if type(reply) is Blocking:
                reply = await handlers.request_loop.run(reply)
            elif request == "setxattr" or (request == "open" and reply.attributes_changed):
                # Attributes only: invalidating pages takes locks that this request may hold.
                with suppress(OSError):  # an access list changes the mode
                    handlers.invalidate(args[0])
            return translate(reply)
        except RequestError as error:
            number = error.errno
        except Exception as error:
            number = handlers.view.errno_of(error, request, caller)
        raise FUSEError(number)

    return handle


def _on_handle(request: str, translate: Callable[[Any], Any]) -> Handler:
    return _handler(request, translate, has_caller=False)


_setattr = _handler("setattr", _entry)
_readdir = _on_handle("readdir", _nothing)


class Handlers(pyfuse3.Operations):
    """The handlers of one mount. pyfuse3 declares ids as int."""

    supports_dot_lookup = False
    enable_writeback_cache = False
    enable_acl = False

    def __init__(self, view: View, invalidate: Callable[[NodeId], None]) -> None:
        """``invalidate`` makes the kernel drop the cached attributes of a node."""
        super().__init__()
        self.view = view
        self.invalidate = invalidate
        self.request_loop = RequestLoop()
        self._names_only = NamesOnlyEntry()

    lookup = _handler("lookup", _entry)
    getattr = _handler("getattr", _entry)
    readlink = _handler("readlink", _bytes)
    access = _handler("access", _yes)
    statfs = _handler("statfs", _space)
    mknod = _handler("mknod", _entry)
    mkdir = _handler("mkdir", _entry)
    symlink = _handler("symlink", _entry)
    link = _handler("link", _entry)
    create = _handler("create", _created)
    unlink = _handler("unlink", _nothing)
    rmdir = _handler("rmdir", _nothing)
    rename = _handler("rename", _nothing)
    open = _handler("open", _file_info)
    read = _on_handle("read", _data)
    write = _on_handle("write", _number)
    flush = _on_handle("flush", _nothing)
    fsync = _on_handle("fsync", _nothing)
    release = _on_handle("release", _nothing)
    opendir = _handler("opendir", lambda opened: _number(opened.handle))
    fsyncdir = _on_handle("fsyncdir", _nothing)
    releasedir = _on_handle("releasedir", _nothing)
    getxattr = _handler("getxattr", _bytes)
    listxattr = _handler("listxattr", _names)
    setxattr = _handler("setxattr", _nothing)
    removexattr = _handler("removexattr", _nothing)

    async def forget(  # type: ignore[override]
        self, inode_list: Sequence[tuple[NodeId, int]]
    ) -> None:
        for inode, times in inode_list:
            with suppress(Exception):  # FORGET has no reply, and pyfuse3 takes no error here
                self.view.serve("forget", None, inode, times)

    async def setattr(  # type: ignore[override]
        self,
        inode: NodeId,
        attr: EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: HandleId | None,
        ctx: RequestContext,
    ) -> Any:
        changes = SetAttr(
            size=attr.st_size if fields.update_size else None,
            mode=attr.st_mode if fields.update_mode else None,
            uid=GuestUid(attr.st_uid) if fields.update_uid else None,
            gid=GuestGid(attr.st_gid) if fields.update_gid else None,
            atime_ns=attr.st_atime_ns if fields.update_atime else None,
            mtime_ns=attr.st_mtime_ns if fields.update_mtime else None,
        )
        return await _setattr(self, inode, changes, fh, ctx)

    async def readdir(  # type: ignore[override]
        self, fh: HandleId, start_id: DirOffset, token: ReaddirToken
    ) -> None:
        def add(entry: DirEntry) -> bool:
            reply = self._names_only.of(entry) if entry.reply is None else _entry(entry.reply)
            return pyfuse3.readdir_reply(token, entry.name, reply, entry.offset)

        await _readdir(self, fh, start_id, add)
