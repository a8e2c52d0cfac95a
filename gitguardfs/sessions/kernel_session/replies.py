"""The replies to the kernel's requests: a packer returns the bytes of one, or a list of parts.

It raises struct.error or another error of Python for what the kernel would not take: the error
boundary answers EIO.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from stat import S_IFMT
from struct import Struct
from typing import Any

from gitguardfs.base.protocol import (
    Attributes,
    DirEntry,
    EntryReply,
    OpenReply,
    ReadData,
    RequestError,
)
from gitguardfs.fs.locks import Range
from gitguardfs.sessions.kernel_session import abi
from gitguardfs.sessions.kernel_session.abi import OUT

Answer = bytes | list[ReadData]
Packer = Callable[[int, Any], Answer]

NO_ATTRIBUTES = bytes(abi.ATTRIBUTES.size)
NO_ENTRY = bytes(abi.ENTRY.size) + NO_ATTRIBUTES
_WORD = 0xFFFFFFFF
_S = 1_000_000_000
"""Nanoseconds in a second."""


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


def pack_nothing(unique: int, reply: None) -> bytes:
    """Pack a reply without a body."""
    if reply is not None:
        raise _invalid(reply)
    return OUT.pack(OUT.size, 0, unique)


def pack_data(unique: int, reply: ReadData) -> Answer:
    """Pack what was read."""
    if not isinstance(reply, (bytes, bytearray, memoryview)):
        raise _invalid(reply)  # writev(2) would fail, outside of the error boundary
    return [OUT.pack(OUT.size + len(reply), 0, unique), reply]


def pack_bytes(unique: int, reply: bytes) -> bytes:
    """Pack bytes, such as a symlink's text."""
    return OUT.pack(OUT.size + len(reply), 0, unique) + reply


def _pack_attributes(attributes: Attributes) -> bytes:
    """Return ``struct fuse_attr``."""
    ino, mode, nlink, uid, gid, rdev, size, blocks, blksize, atime, mtime, ctime = attributes
    return abi.ATTRIBUTES.pack(
        ino, size, blocks, atime // _S, mtime // _S, ctime // _S, atime % _S, mtime % _S,
        ctime % _S, mode, nlink & _WORD, uid, gid, rdev & _WORD, blksize & _WORD, 0,
    )  # fmt: skip


def pack_entry(unique: int, reply: EntryReply, size: int = 144) -> bytes:
    """Return a reply of ``size`` bytes that begins with ``struct fuse_entry_out``."""
    node, attributes, entry_timeout, attr_timeout = reply
    valid, valid_ns = _timeout(entry_timeout)
    if attributes is None:
        return abi.OUT_ENTRY.pack(size, 0, unique, 0, 0, valid, 0, valid_ns, 0) + NO_ATTRIBUTES
    attr_valid, attr_valid_ns = _timeout(attr_timeout)
    return abi.OUT_ENTRY.pack(
        size, 0, unique, node, 0, valid, attr_valid, valid_ns, attr_valid_ns
    ) + _pack_attributes(attributes)


def pack_attributes(unique: int, reply: EntryReply) -> bytes:
    """Pack attributes."""
    _, attributes, _, timeout = reply
    assert attributes is not None  # there is no negative reply to GETATTR
    return abi.OUT_ATTR.pack(120, 0, unique, *_timeout(timeout), 0) + _pack_attributes(attributes)


def pack_opened(unique: int, opened: OpenReply) -> bytes:
    """Pack the reply to OPEN."""
    handle, keep_cache, direct_io, _, _, closes_silently = opened
    flags = (
        keep_cache * abi.FOPEN_KEEP_CACHE
        | direct_io * abi.FOPEN_DIRECT_IO
        | closes_silently * abi.FOPEN_NOFLUSH
    )
    return abi.OUT_OPEN.pack(32, 0, unique, handle, flags, 0)


def pack_created(unique: int, reply: tuple[OpenReply, EntryReply]) -> bytes:
    """Pack the reply to CREATE."""
    opened, entry = reply
    return pack_entry(unique, entry, 160) + pack_opened(unique, opened)[OUT.size :]


def passed_through(answer: bytes, backing: int) -> bytes:
    """Return the reply to OPEN or CREATE after which the kernel passes reads and writes through.

    ``answer`` is the reply otherwise; ``backing`` is the kernel's number of the source's file.
    """
    flags, _ = abi.TWO_WORDS.unpack_from(answer, len(answer) - 8)
    flags = flags & abi.FOPEN_NOFLUSH | abi.FOPEN_PASSTHROUGH
    return answer[:-8] + abi.TWO_WORDS.pack(flags, backing)


def pack_opened_directory(unique: int, opened: OpenReply) -> bytes:
    """Pack the reply to OPENDIR."""
    handle, keep_cache, direct_io, *_ = opened
    flags = 0 if direct_io else abi.FOPEN_CACHE_DIR | keep_cache * abi.FOPEN_KEEP_CACHE
    return abi.OUT_OPEN.pack(32, 0, unique, handle, flags, 0)


def pack_written(unique: int, size: int) -> bytes:
    """Pack the number of bytes that were written."""
    return abi.OUT_WRITE.pack(abi.OUT_WRITE.size, 0, unique, size, 0)


def pack_number(unique: int, number: int) -> bytes:
    """Pack a number of 64 bits."""
    return OUT.pack(OUT.size + 8, 0, unique) + abi.QWORD.pack(number)


def pack_with_birth(unique: int, reply: tuple[EntryReply, int]) -> bytes:
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


def pack_copied_out(room: int, unique: int, data: bytes) -> bytes:
    """Pack what a call of ioctl(2) copies out; the kernel takes ``room`` bytes at most."""
    if len(data) > room:
        raise _invalid(data)
    size = abi.OUT_IOCTL.size + len(data)
    return abi.OUT_IOCTL.pack(size, 0, unique, 0, 0, 0, 0) + data


def pack_space(unique: int, have: os.statvfs_result) -> bytes:
    """Pack the size and the free space of a file system."""
    return abi.OUT_STATFS.pack(
        abi.OUT_STATFS.size, 0, unique, have.f_blocks, have.f_bfree, have.f_bavail, have.f_files,
        have.f_ffree, have.f_bsize, have.f_namemax, have.f_frsize, 0,
    )  # fmt: skip


def pack_found_lock(unique: int, found: Range) -> bytes:
    """Pack a lock."""
    return abi.OUT_LK.pack(abi.OUT_LK.size, 0, unique, *found)


def pack_sized(room: int, unique: int, value: bytes) -> bytes:
    """Pack a value of at most ``room`` bytes; for no room, its size. RequestError(ERANGE)."""
    if not room:
        return abi.OUT_SIZE.pack(abi.OUT_SIZE.size, 0, unique, len(value), 0)
    if len(value) > room:
        raise RequestError(errno.ERANGE)
    return pack_bytes(unique, value)


def pack_names(room: int, unique: int, names: Sequence[bytes]) -> bytes:
    """Pack the names of extended attributes, as ``pack_sized`` does."""
    return pack_sized(room, unique, b"".join(name + b"\0" for name in names))


class Listing:
    """The reply to a request for entries of a directory, with their attributes."""

    def __init__(self, room: int, base: int = 0) -> None:
        """``room`` is how many bytes the kernel takes; ``base`` is added to each offset."""
        self._room = room
        self._base = base
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
            head = pack_entry(0, reply)[OUT.size :]
            inode, file_type = attributes.ino, S_IFMT(attributes.mode)
        at = self._base + offset
        self._parts.append(form.pack(head, inode or 1, at, len(name), file_type >> 12, name))
        return True

    @property
    def is_empty(self) -> bool:
        """Whether it has no entries."""
        return not self._parts

    def packed(self, unique: int, reply: None) -> bytes:
        """Return the reply to the request."""
        return pack_bytes(unique, b"".join(self._parts))
