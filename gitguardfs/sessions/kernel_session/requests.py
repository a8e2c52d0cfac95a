"""The requests of the kernel that ``View`` serves: how each is read, and how its reply is packed.

A reader takes the node of the request, the buffer that holds it, and where it ends. It returns a
packer and the arguments for ``View.serve``. A packer returns the reply's bytes, or a list of parts.
What the kernel would not send, or take, raises struct.error or another error of Python: the error
boundary answers EIO.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from mmap import mmap
from stat import S_IFMT
from struct import Struct
from typing import Any, NamedTuple

from gitguardfs.base.protocol import (
    NOW,
    Attributes,
    DirEntry,
    EntryReply,
    GuestGid,
    GuestUid,
    OpenReply,
    ReadData,
    RequestError,
    SetAttr,
)
from gitguardfs.fs.locks import Range
from gitguardfs.sessions.kernel_session import abi
from gitguardfs.sessions.kernel_session.abi import BODY, OUT, Opcode

Sent = mmap | bytes
"""A buffer that begins with a request; a slice of it is bytes."""
Answer = bytes | list[ReadData]
Packer = Callable[[int, Any], Answer]
Arguments = tuple[Any, ...]
Reader = Callable[[int, Sent, int], tuple[Packer, Arguments]]

NO_ATTRIBUTES = bytes(abi.ATTRIBUTES.size)
NO_ENTRY = bytes(abi.ENTRY.size) + NO_ATTRIBUTES
_WORD = 0xFFFFFFFF
_S = 1_000_000_000
"""Nanoseconds in a second."""


# Replies


@lru_cache(64)
def _timeout(seconds: float) -> tuple[int, int]:
    whole = int(seconds)
    return whole, int((seconds - whole) * _S)


@lru_cache(256)
def _listed(length: int) -> Struct:
    """Return the layout of an entry with attributes whose name has ``length`` bytes."""
    return Struct(f"{len(NO_ENTRY)}s{abi.DIRENT}{length + -length % 8}s")


def failed(unique: int, number: int) -> bytes:
    """Return the reply to a request that failed with the errno ``number``."""
    return OUT.pack(OUT.size, -number, unique)


def _invalid(reply: object) -> TypeError:
    return TypeError(f"no valid reply: {reply!r:.100}")


def _nothing(unique: int, reply: None) -> bytes:
    if reply is not None:
        raise _invalid(reply)
    return OUT.pack(OUT.size, 0, unique)


def _data(unique: int, reply: ReadData) -> Answer:
    if not isinstance(reply, (bytes, bytearray, memoryview)):
        raise _invalid(reply)  # writev(2) would fail, outside of the error boundary
    return [OUT.pack(OUT.size + len(reply), 0, unique), reply]


def _bytes(unique: int, reply: bytes) -> bytes:
    return OUT.pack(OUT.size + len(reply), 0, unique) + reply


def _packed(attributes: Attributes) -> bytes:
    """Return ``struct fuse_attr``."""
    ino, mode, nlink, uid, gid, rdev, size, blocks, blksize, atime, mtime, ctime = attributes
    return abi.ATTRIBUTES.pack(
        ino, size, blocks, atime // _S, mtime // _S, ctime // _S, atime % _S, mtime % _S,
        ctime % _S, mode, nlink & _WORD, uid, gid, rdev & _WORD, blksize & _WORD, 0,
    )  # fmt: skip


def _entry(unique: int, reply: EntryReply, size: int = 144) -> bytes:
    """Return a reply of ``size`` bytes that begins with ``struct fuse_entry_out``."""
    node, attributes, entry_timeout, attr_timeout = reply
    valid, valid_ns = _timeout(entry_timeout)
    if attributes is None:
        return abi.OUT_ENTRY.pack(size, 0, unique, 0, 0, valid, 0, valid_ns, 0) + NO_ATTRIBUTES
    attr_valid, attr_valid_ns = _timeout(attr_timeout)
    return abi.OUT_ENTRY.pack(
        size, 0, unique, node, 0, valid, attr_valid, valid_ns, attr_valid_ns
    ) + _packed(attributes)


def _attributes(unique: int, reply: EntryReply) -> bytes:
    _, attributes, _, timeout = reply
    assert attributes is not None  # there is no negative reply to GETATTR
    return abi.OUT_ATTR.pack(120, 0, unique, *_timeout(timeout), 0) + _packed(attributes)


def _opened(unique: int, opened: OpenReply) -> bytes:
    handle, keep_cache, direct_io, _, _, closes_silently = opened
    flags = (
        keep_cache * abi.FOPEN_KEEP_CACHE
        | direct_io * abi.FOPEN_DIRECT_IO
        | closes_silently * abi.FOPEN_NOFLUSH
    )
    return abi.OUT_OPEN.pack(32, 0, unique, handle, flags, 0)


def _created(unique: int, reply: tuple[OpenReply, EntryReply]) -> bytes:
    opened, entry = reply
    return _entry(unique, entry, 160) + _opened(unique, opened)[OUT.size :]


def passed_through(answer: bytes, backing: int) -> bytes:
    """Return the reply to OPEN or CREATE after which the kernel passes reads and writes through.

    ``answer`` is the reply otherwise; ``backing`` is the kernel's number of the source's file.
    """
    flags, _ = abi.TWO_WORDS.unpack_from(answer, len(answer) - 8)
    flags = flags & abi.FOPEN_NOFLUSH | abi.FOPEN_PASSTHROUGH
    return answer[:-8] + abi.TWO_WORDS.pack(flags, backing)


def _opened_directory(unique: int, opened: OpenReply) -> bytes:
    handle, keep_cache, direct_io, *_ = opened
    flags = 0 if direct_io else abi.FOPEN_CACHE_DIR | keep_cache * abi.FOPEN_KEEP_CACHE
    return abi.OUT_OPEN.pack(32, 0, unique, handle, flags, 0)


def _written(unique: int, size: int) -> bytes:
    return abi.OUT_WRITE.pack(abi.OUT_WRITE.size, 0, unique, size, 0)


def _number(unique: int, number: int) -> bytes:
    return OUT.pack(OUT.size + 8, 0, unique) + abi.QWORD.pack(number)


def _with_birth(unique: int, reply: tuple[EntryReply, int]) -> bytes:
    """Return the reply to STATX, from that to GETATTR and the birth time in nanoseconds, or 0."""
    (_, attributes, _, timeout), born = reply
    assert attributes is not None  # as for GETATTR
    ino, mode, nlink, uid, gid, rdev, size, blocks, blksize, atime, mtime, ctime = attributes
    return abi.OUT_STATX.pack(
        abi.OUT_STATX.size, 0, unique, *_timeout(timeout), 0,
        abi.STATX_BASIC_STATS | bool(born) * abi.STATX_BTIME, blksize & _WORD, 0,
        nlink & _WORD, uid, gid, mode, ino, size, blocks, 0,
        *divmod(atime, _S), *divmod(born, _S), *divmod(ctime, _S), *divmod(mtime, _S),
        os.major(rdev), os.minor(rdev),
    )  # fmt: skip


def _copied_out(room: int, unique: int, data: bytes) -> bytes:
    """Pack what a call of ioctl(2) copies out; the kernel takes ``room`` bytes at most."""
    if len(data) > room:
        raise _invalid(data)
    size = abi.OUT_IOCTL.size + len(data)
    return abi.OUT_IOCTL.pack(size, 0, unique, 0, 0, 0, 0) + data


def _space(unique: int, have: os.statvfs_result) -> bytes:
    return abi.OUT_STATFS.pack(
        abi.OUT_STATFS.size, 0, unique, have.f_blocks, have.f_bfree, have.f_bavail, have.f_files,
        have.f_ffree, have.f_bsize, have.f_namemax, have.f_frsize, 0,
    )  # fmt: skip


def _found_lock(unique: int, found: Range) -> bytes:
    return abi.OUT_LK.pack(abi.OUT_LK.size, 0, unique, *found)


def _sized(room: int, unique: int, value: bytes) -> bytes:
    """Pack a value of at most ``room`` bytes; for no room, its size. RequestError(ERANGE)."""
    if not room:
        return abi.OUT_SIZE.pack(abi.OUT_SIZE.size, 0, unique, len(value), 0)
    if len(value) > room:
        raise RequestError(errno.ERANGE)
    return _bytes(unique, value)


def _names(room: int, unique: int, names: Sequence[bytes]) -> bytes:
    return _sized(room, unique, b"".join(name + b"\0" for name in names))


class Listing:
    """The reply to a request for entries of a directory, with their attributes."""

    def __init__(self, room: int) -> None:
        """``room`` is how many bytes the kernel takes."""
        self._room = room
        self._parts: list[bytes] = []

    def add(self, entry: DirEntry) -> bool:
        """Add an entry, if it has room; return whether it had."""
        name, offset, reply, file_type, inode = entry
        form = _listed(len(name))
        if form.size > self._room:
            return False
        self._room -= form.size
        # Node 0 is an entry by name alone (fuse_direntplus_link in fs/fuse/readdir.c).
        head = NO_ENTRY
        if reply is not None and (attributes := reply.attributes) is not None:
            head = _entry(0, reply)[OUT.size :]
            inode, file_type = attributes.ino, S_IFMT(attributes.mode)
        self._parts.append(form.pack(head, inode or 1, offset, len(name), file_type >> 12, name))
        return True

    def packed(self, unique: int, reply: None) -> bytes:
        """Return the reply to the request."""
        return _bytes(unique, b"".join(self._parts))


# Requests


def _named(sent: Sent, start: int, end: int) -> bytes:
    return sent[start : end - 1]


def _two_names(sent: Sent, start: int, end: int) -> list[bytes]:
    one, other = sent[start : end - 1].split(b"\0")
    return [one, other]


def _by_node(pack: Packer) -> Reader:
    return lambda node, sent, end: (pack, (node,))


def _by_name(pack: Packer) -> Reader:
    return lambda node, sent, end: (pack, (node, sent[BODY : end - 1]))


def _by_handle(pack: Packer) -> Reader:
    return lambda node, sent, end: (pack, abi.QWORD.unpack_from(sent, BODY))


def _no_arguments(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    return _space, ()


def _setattr(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    (
        valid, _, handle, size, _, atime, mtime, _, atime_ns, mtime_ns, _, mode, _, uid, gid, _
    ) = abi.SETATTR_IN.unpack_from(sent, BODY)  # fmt: skip
    changes = SetAttr(
        size=size if valid & abi.FATTR_SIZE else None,
        mode=mode if valid & abi.FATTR_MODE else None,
        uid=GuestUid(uid) if valid & abi.FATTR_UID else None,
        gid=GuestGid(gid) if valid & abi.FATTR_GID else None,
        atime_ns=_time(valid, abi.FATTR_ATIME, abi.FATTR_ATIME_NOW, atime, atime_ns),
        mtime_ns=_time(valid, abi.FATTR_MTIME, abi.FATTR_MTIME_NOW, mtime, mtime_ns),
    )
    return _attributes, (node, changes, handle if valid & abi.FATTR_FH else None)


def _time(valid: int, is_set: int, is_now: int, seconds: int, nanoseconds: int) -> int | None:
    if not valid & is_set:
        return None
    if valid & is_now:
        return NOW
    signed = seconds - (1 << 64) if seconds >> 63 else seconds
    return signed * 1_000_000_000 + nanoseconds


def _access(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    return _nothing, (node, abi.TWO_WORDS.unpack_from(sent, BODY)[0])


def _mknod(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    mode, device, _, _ = abi.FOUR_WORDS.unpack_from(sent, BODY)
    return _entry, (node, _named(sent, BODY + 16, end), mode, device)


def _mkdir(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    mode, _ = abi.TWO_WORDS.unpack_from(sent, BODY)
    return _entry, (node, _named(sent, BODY + 8, end), mode)


def _symlink(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    return _entry, (node, *_two_names(sent, BODY, end))


def _link(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    return _entry, (abi.QWORD.unpack_from(sent, BODY)[0], node, _named(sent, BODY + 8, end))


def _rename(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    old, new = _two_names(sent, BODY + 8, end)
    return _nothing, (node, old, abi.QWORD.unpack_from(sent, BODY)[0], new, 0)


def _rename2(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    directory, flags, _ = abi.RENAME2_IN.unpack_from(sent, BODY)
    old, new = _two_names(sent, BODY + 16, end)
    return _nothing, (node, old, directory, new, flags)


def _open(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    return _opened, (node, abi.TWO_WORDS.unpack_from(sent, BODY)[0])


def _create(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    flags, mode, _, _ = abi.FOUR_WORDS.unpack_from(sent, BODY)
    return _created, (node, _named(sent, BODY + 16, end), mode, flags)


def _tmpfile(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    flags, mode, _, _ = abi.FOUR_WORDS.unpack_from(sent, BODY)
    return _created, (node, mode, flags)


def _read(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    handle, offset, size, *_ = abi.READ_IN.unpack_from(sent, BODY)
    return _data, (handle, offset, min(size, abi.MAX_WRITE))


def _write(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    handle, offset, size, *_ = abi.READ_IN.unpack_from(sent, BODY)
    start = BODY + abi.READ_IN.size
    if start + size > end:
        raise ValueError(f"a write of {size} bytes in a request of {end}")
    return _written, (handle, offset, memoryview(sent)[start : start + size])


def _fsync(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    handle, flags, _ = abi.FSYNC_IN.unpack_from(sent, BODY)
    return _nothing, (handle, bool(flags & abi.FSYNC_FDATASYNC))


def _fallocate(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    return _nothing, abi.FALLOCATE_IN.unpack_from(sent, BODY)[:4]


def _lseek(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    return _number, abi.LSEEK_IN.unpack_from(sent, BODY)[:3]


def _copy(pack: Packer) -> Reader:
    def read(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
        handle, offset, _, target, target_offset, size, flags = abi.COPY_IN.unpack_from(sent, BODY)
        return pack, (handle, offset, target, target_offset, size, flags)

    return read


def _flush(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    return _nothing, abi.FLUSH_IN.unpack_from(sent, BODY)


def _lock(pack: Packer) -> Reader:
    def read(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
        handle, owner, *wanted, flags = abi.LK_IN.unpack_from(sent, BODY)
        return pack, (handle, owner, bool(flags & abi.LK_FLOCK), Range(*wanted))

    return read


def _ioctl(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    _, _, command, _, size, room = abi.IOCTL_IN.unpack_from(sent, BODY)
    start = BODY + abi.IOCTL_IN.size
    return partial(_copied_out, room), (node, command, sent[start : min(start + size, end)])


def _readdirplus(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    handle, offset, size, *_ = abi.READ_IN.unpack_from(sent, BODY)
    listing = Listing(min(size, abi.MAX_WRITE))
    return listing.packed, (handle, offset, listing.add)


def _getxattr(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    room, _ = abi.TWO_WORDS.unpack_from(sent, BODY)
    return partial(_sized, room), (node, _named(sent, BODY + 8, end))


def _listxattr(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    return partial(_names, abi.TWO_WORDS.unpack_from(sent, BODY)[0]), (node,)


def _setxattr(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    size, flags = abi.TWO_WORDS.unpack_from(sent, BODY)
    name, _, value = sent[BODY + 8 : end].partition(b"\0")
    return _nothing, (node, name, value[:size], flags)


class Form(NamedTuple):
    """How the requests of one opcode are served."""

    request: str
    """The name of the request, as ``View.serve`` takes it."""
    read: Reader
    least: int
    """Bytes of a request with all that ``read`` takes, but for names and data."""
    has_caller: bool
    """Whether the view is told who asks; requests on a handle carry nobody."""


def _form(
    request: str, read: Reader, layout: Struct | None = None, has_caller: bool = True
) -> Form:
    """Return a form of requests whose bodies begin with ``layout``."""
    return Form(request, read, BODY + (layout.size if layout else 0), has_caller)


FORMS: dict[int, Form] = {
    Opcode.LOOKUP: _form("lookup", _by_name(_entry)),
    Opcode.GETATTR: _form("getattr", _by_node(_attributes)),
    Opcode.SETATTR: _form("setattr", _setattr, abi.SETATTR_IN),
    Opcode.READLINK: _form("readlink", _by_node(_bytes)),
    Opcode.SYMLINK: _form("symlink", _symlink),
    Opcode.MKNOD: _form("mknod", _mknod, abi.FOUR_WORDS),
    Opcode.MKDIR: _form("mkdir", _mkdir, abi.TWO_WORDS),
    Opcode.UNLINK: _form("unlink", _by_name(_nothing)),
    Opcode.RMDIR: _form("rmdir", _by_name(_nothing)),
    Opcode.RENAME: _form("rename", _rename, abi.QWORD),
    Opcode.RENAME2: _form("rename", _rename2, abi.RENAME2_IN),
    Opcode.LINK: _form("link", _link, abi.QWORD),
    Opcode.OPEN: _form("open", _open, abi.TWO_WORDS),
    Opcode.CREATE: _form("create", _create, abi.FOUR_WORDS),
    Opcode.READ: _form("read", _read, abi.READ_IN, has_caller=False),
    Opcode.WRITE: _form("write", _write, abi.READ_IN, has_caller=False),
    Opcode.FLUSH: _form("flush", _flush, abi.FLUSH_IN, has_caller=False),
    Opcode.GETLK: _form("getlk", _lock(_found_lock), abi.LK_IN, has_caller=False),
    Opcode.SETLK: _form("setlk", _lock(_nothing), abi.LK_IN, has_caller=False),
    Opcode.SETLKW: _form("setlk", _lock(_nothing), abi.LK_IN, has_caller=False),
    Opcode.FSYNC: _form("fsync", _fsync, abi.FSYNC_IN, has_caller=False),
    Opcode.RELEASE: _form("release", _by_handle(_nothing), abi.QWORD, has_caller=False),
    Opcode.OPENDIR: _form("opendir", _by_node(_opened_directory)),
    Opcode.READDIRPLUS: _form("readdir", _readdirplus, abi.READ_IN, has_caller=False),
    Opcode.FSYNCDIR: _form("fsyncdir", _fsync, abi.FSYNC_IN, has_caller=False),
    Opcode.RELEASEDIR: _form("releasedir", _by_handle(_nothing), abi.QWORD, has_caller=False),
    Opcode.STATFS: _form("statfs", _no_arguments),
    Opcode.ACCESS: _form("access", _access, abi.TWO_WORDS),
    Opcode.GETXATTR: _form("getxattr", _getxattr, abi.TWO_WORDS),
    Opcode.LISTXATTR: _form("listxattr", _listxattr, abi.TWO_WORDS),
    Opcode.SETXATTR: _form("setxattr", _setxattr, abi.TWO_WORDS),
    Opcode.REMOVEXATTR: _form("removexattr", _by_name(_nothing)),
    Opcode.TMPFILE: _form("tmpfile", _tmpfile, abi.FOUR_WORDS),
    Opcode.STATX: _form("statx", _by_node(_with_birth)),
    Opcode.FALLOCATE: _form("fallocate", _fallocate, abi.FALLOCATE_IN, has_caller=False),
    Opcode.LSEEK: _form("lseek", _lseek, abi.LSEEK_IN, has_caller=False),
    Opcode.COPY_FILE_RANGE: _form(
        "copy_file_range", _copy(_written), abi.COPY_IN, has_caller=False
    ),
    Opcode.COPY_FILE_RANGE_64: _form(
        "copy_file_range", _copy(_number), abi.COPY_IN, has_caller=False
    ),
    Opcode.IOCTL: _form("ioctl", _ioctl, abi.IOCTL_IN),
}
"""By opcode. The session itself takes INIT, DESTROY, INTERRUPT and the two FORGETs."""
