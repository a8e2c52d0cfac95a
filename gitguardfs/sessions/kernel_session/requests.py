"""The requests of the kernel that ``View`` serves: how each is read.

A reader takes the node of the request, the buffer that holds it, and where it ends. It returns a
packer for the reply, and the arguments for ``View.serve``. What the kernel would not send raises
struct.error or another error of Python: the error boundary answers EIO.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from mmap import mmap
from struct import Struct
from typing import Any, NamedTuple

from gitguardfs.base.protocol import NOW, GuestGid, GuestUid, SetAttr
from gitguardfs.fs.locks import Range
from gitguardfs.sessions.kernel_session import abi
from gitguardfs.sessions.kernel_session.abi import BODY, Opcode
from gitguardfs.sessions.kernel_session.replies import (
    Listing,
    Packer,
    pack_attributes,
    pack_bytes,
    pack_copied_out,
    pack_created,
    pack_data,
    pack_entry,
    pack_found_lock,
    pack_names,
    pack_nothing,
    pack_number,
    pack_opened,
    pack_opened_directory,
    pack_sized,
    pack_space,
    pack_with_birth,
    pack_written,
)

Sent = mmap | bytes
"""A buffer that begins with a request; a slice of it is bytes."""
Arguments = tuple[Any, ...]
Reader = Callable[[int, Sent, int], tuple[Packer, Arguments]]


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
    return pack_space, ()


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
    return pack_attributes, (node, changes, handle if valid & abi.FATTR_FH else None)


def _time(valid: int, is_set: int, is_now: int, seconds: int, nanoseconds: int) -> int | None:
    if not valid & is_set:
        return None
    if valid & is_now:
        return NOW
    signed = seconds - (1 << 64) if seconds >> 63 else seconds
    return signed * 1_000_000_000 + nanoseconds


def _access(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    return pack_nothing, (node, abi.TWO_WORDS.unpack_from(sent, BODY)[0])


def _mknod(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    mode, device, _, _ = abi.FOUR_WORDS.unpack_from(sent, BODY)
    return pack_entry, (node, _named(sent, BODY + 16, end), mode, device)


def _mkdir(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    mode, _ = abi.TWO_WORDS.unpack_from(sent, BODY)
    return pack_entry, (node, _named(sent, BODY + 8, end), mode)


def _symlink(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    return pack_entry, (node, *_two_names(sent, BODY, end))


def _link(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    return pack_entry, (abi.QWORD.unpack_from(sent, BODY)[0], node, _named(sent, BODY + 8, end))


def _rename(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    old, new = _two_names(sent, BODY + 8, end)
    return pack_nothing, (node, old, abi.QWORD.unpack_from(sent, BODY)[0], new, 0)


def _rename2(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    directory, flags, _ = abi.RENAME2_IN.unpack_from(sent, BODY)
    old, new = _two_names(sent, BODY + 16, end)
    return pack_nothing, (node, old, directory, new, flags)


def _open(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    return pack_opened, (node, abi.TWO_WORDS.unpack_from(sent, BODY)[0])


def _create(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    flags, mode, _, _ = abi.FOUR_WORDS.unpack_from(sent, BODY)
    return pack_created, (node, _named(sent, BODY + 16, end), mode, flags)


def _tmpfile(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    flags, mode, _, _ = abi.FOUR_WORDS.unpack_from(sent, BODY)
    return pack_created, (node, mode, flags)


def _read(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    handle, offset, size, *_ = abi.READ_IN.unpack_from(sent, BODY)
    return pack_data, (handle, offset, min(size, abi.MAX_READ))


def _write(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    handle, offset, size, *_ = abi.READ_IN.unpack_from(sent, BODY)
    start = BODY + abi.READ_IN.size
    if start + size > end:
        raise ValueError(f"a write of {size} bytes in a request of {end}")
    return pack_written, (handle, offset, memoryview(sent)[start : start + size])


def _fsync(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    handle, flags, _ = abi.FSYNC_IN.unpack_from(sent, BODY)
    return pack_nothing, (handle, bool(flags & abi.FSYNC_FDATASYNC))


def _fallocate(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    return pack_nothing, abi.FALLOCATE_IN.unpack_from(sent, BODY)[:4]


def _lseek(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    return pack_number, abi.LSEEK_IN.unpack_from(sent, BODY)[:3]


def _copy(pack: Packer) -> Reader:
    def read(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
        handle, offset, _, target, target_offset, size, flags = abi.COPY_IN.unpack_from(sent, BODY)
        return pack, (handle, offset, target, target_offset, size, flags)

    return read


def _flush(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    return pack_nothing, abi.FLUSH_IN.unpack_from(sent, BODY)


def _lock(pack: Packer) -> Reader:
    def read(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
        handle, owner, *wanted, flags = abi.LK_IN.unpack_from(sent, BODY)
        return pack, (handle, owner, bool(flags & abi.LK_FLOCK), Range(*wanted))

    return read


def _ioctl(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    _, _, command, _, size, room = abi.IOCTL_IN.unpack_from(sent, BODY)
    start = BODY + abi.IOCTL_IN.size
    return partial(pack_copied_out, room), (node, command, sent[start : min(start + size, end)])


def _readdirplus(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    handle, offset, size, *_ = abi.READ_IN.unpack_from(sent, BODY)
    listing = Listing(min(size, abi.MAX_WRITE))
    return listing.packed, (handle, offset, listing.add)


def _getxattr(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    room, _ = abi.TWO_WORDS.unpack_from(sent, BODY)
    return partial(pack_sized, room), (node, _named(sent, BODY + 8, end))


def _listxattr(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    return partial(pack_names, abi.TWO_WORDS.unpack_from(sent, BODY)[0]), (node,)


def _setxattr(node: int, sent: Sent, end: int) -> tuple[Packer, Arguments]:
    size, flags = abi.TWO_WORDS.unpack_from(sent, BODY)
    name, _, value = sent[BODY + 8 : end].partition(b"\0")
    return pack_nothing, (node, name, value[:size], flags)


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
    Opcode.LOOKUP: _form("lookup", _by_name(pack_entry)),
    Opcode.GETATTR: _form("getattr", _by_node(pack_attributes)),
    Opcode.SETATTR: _form("setattr", _setattr, abi.SETATTR_IN),
    Opcode.READLINK: _form("readlink", _by_node(pack_bytes)),
    Opcode.SYMLINK: _form("symlink", _symlink),
    Opcode.MKNOD: _form("mknod", _mknod, abi.FOUR_WORDS),
    Opcode.MKDIR: _form("mkdir", _mkdir, abi.TWO_WORDS),
    Opcode.UNLINK: _form("unlink", _by_name(pack_nothing)),
    Opcode.RMDIR: _form("rmdir", _by_name(pack_nothing)),
    Opcode.RENAME: _form("rename", _rename, abi.QWORD),
    Opcode.RENAME2: _form("rename", _rename2, abi.RENAME2_IN),
    Opcode.LINK: _form("link", _link, abi.QWORD),
    Opcode.OPEN: _form("open", _open, abi.TWO_WORDS),
    Opcode.CREATE: _form("create", _create, abi.FOUR_WORDS),
    Opcode.READ: _form("read", _read, abi.READ_IN, has_caller=False),
    Opcode.WRITE: _form("write", _write, abi.READ_IN, has_caller=False),
    Opcode.FLUSH: _form("flush", _flush, abi.FLUSH_IN, has_caller=False),
    Opcode.GETLK: _form("getlk", _lock(pack_found_lock), abi.LK_IN, has_caller=False),
    Opcode.SETLK: _form("setlk", _lock(pack_nothing), abi.LK_IN, has_caller=False),
    Opcode.SETLKW: _form("setlk", _lock(pack_nothing), abi.LK_IN, has_caller=False),
    Opcode.FSYNC: _form("fsync", _fsync, abi.FSYNC_IN, has_caller=False),
    Opcode.RELEASE: _form("release", _by_handle(pack_nothing), abi.QWORD, has_caller=False),
    Opcode.OPENDIR: _form("opendir", _by_node(pack_opened_directory)),
    Opcode.READDIRPLUS: _form("readdir", _readdirplus, abi.READ_IN, has_caller=False),
    Opcode.FSYNCDIR: _form("fsyncdir", _fsync, abi.FSYNC_IN, has_caller=False),
    Opcode.RELEASEDIR: _form("releasedir", _by_handle(pack_nothing), abi.QWORD, has_caller=False),
    Opcode.STATFS: _form("statfs", _no_arguments),
    Opcode.ACCESS: _form("access", _access, abi.TWO_WORDS),
    Opcode.GETXATTR: _form("getxattr", _getxattr, abi.TWO_WORDS),
    Opcode.LISTXATTR: _form("listxattr", _listxattr, abi.TWO_WORDS),
    Opcode.SETXATTR: _form("setxattr", _setxattr, abi.TWO_WORDS),
    Opcode.REMOVEXATTR: _form("removexattr", _by_name(pack_nothing)),
    Opcode.TMPFILE: _form("tmpfile", _tmpfile, abi.FOUR_WORDS),
    Opcode.STATX: _form("statx", _by_node(pack_with_birth)),
    Opcode.FALLOCATE: _form("fallocate", _fallocate, abi.FALLOCATE_IN, has_caller=False),
    Opcode.LSEEK: _form("lseek", _lseek, abi.LSEEK_IN, has_caller=False),
    Opcode.COPY_FILE_RANGE: _form(
        "copy_file_range", _copy(pack_written), abi.COPY_IN, has_caller=False
    ),
    Opcode.COPY_FILE_RANGE_64: _form(
        "copy_file_range", _copy(pack_number), abi.COPY_IN, has_caller=False
    ),
    Opcode.IOCTL: _form("ioctl", _ioctl, abi.IOCTL_IN),
}
"""By opcode. The session itself takes INIT, DESTROY, INTERRUPT and the two FORGETs."""
