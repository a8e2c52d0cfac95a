"""A kernel for the tests: it packs requests for a ``KernelSession`` and unpacks the replies.

Its numbers and layouts are those of linux/fuse.h, written down here once more, so that a mistake in
``kernel_session/abi.py`` shows. Replies become objects that look like pyfuse3's to the tests.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from struct import Struct, calcsize
from types import SimpleNamespace
from typing import Any

import trio

from gitguardfs.base.protocol import Caller, GuestGid, GuestUid, RequestError
from gitguardfs.sessions.kernel_session.connection import Connection
from gitguardfs.sessions.kernel_session.requests import FORMS
from gitguardfs.sessions.kernel_session.session import KernelSession
from gitguardfs.view.view import View
from tests.support.request_table import REQUESTS, GuardedBy

IN_HEADER = Struct("=IIQQIIIHH")
OUT_HEADER = Struct("=IiQ")
ATTR = "6Q10I"
ATTR_FIELDS = (
    "ino", "size", "blocks", "atime", "mtime", "ctime", "atimensec", "mtimensec", "ctimensec",
    "mode", "nlink", "uid", "gid", "rdev", "blksize", "flags",
)  # fmt: skip
ATTR_OUT = Struct(f"=QII{ATTR}")
ENTRY_OUT = Struct(f"=QQQQII{ATTR}")
OPEN_OUT = Struct("=QIi")
DIRENT = Struct("=QQII")
STATX_OUT = Struct("=QI4x16xIIQIIIH2x4Q" + "QI4x" * 4 + "II120x")
STATFS_OUT = Struct("=5Q4I6I")
OPCODES = {
    "lookup": 1, "forget": 2, "getattr": 3, "setattr": 4, "readlink": 5, "symlink": 6, "mknod": 8,
    "mkdir": 9, "unlink": 10, "rmdir": 11, "rename": 45, "link": 13, "open": 14, "read": 15,
    "write": 16, "statfs": 17, "release": 18, "fsync": 20, "setxattr": 21, "getxattr": 22,
    "listxattr": 23, "removexattr": 24, "flush": 25, "opendir": 27, "readdir": 44,
    "releasedir": 29, "fsyncdir": 30, "getlk": 31, "setlk": 32, "access": 34, "create": 35,
    "ioctl": 39, "fallocate": 43, "lseek": 46, "copy_file_range": 53, "tmpfile": 51, "statx": 52,
}  # fmt: skip
BATCH_FORGET = 42
NO_REPLY = (2, 36, 42)
"""FORGET, INTERRUPT and BATCH_FORGET."""
SIZE_MAX = 65536
"""XATTR_SIZE_MAX and XATTR_LIST_MAX."""
MOST = 1 << 20
SHORT_ENTRY = 160
"""Bytes of a listing's entry whose name has at most eight."""
SETATTR_BITS = {
    "mode": 1, "uid": 2, "gid": 4, "size": 8, "atime": 16, "mtime": 32, "ctime": 1024,
}  # fmt: skip
SETATTR_FH = 64
UNIQUE_STEP = 2
"""The kernel's own numbers of requests are even."""


def request(opcode: int, unique: int, node: int, body: bytes, ctx: Any = None) -> bytes:
    """Return the bytes of a request."""
    uid, gid, pid = (ctx.uid, ctx.gid, ctx.pid) if ctx is not None else (0, 0, 0)
    size = IN_HEADER.size + len(body)
    return IN_HEADER.pack(size, opcode, unique, node, uid, gid, pid, 0, 0) + body


def packed(name: str, unique: int, args: tuple[Any, ...]) -> bytes:
    """Return the request with the arguments that the tests give to a handler of pyfuse3."""
    ctx, node = None, 0
    if REQUESTS[name] not in (GuardedBy.HANDLE, GuardedBy.OPEN_NODE):
        *args, ctx = args  # type: ignore[assignment]
        node, *args = args or [1]  # type: ignore[assignment]
    if name == "link":
        node, args = args[0], (node, *args[1:])
    return request(OPCODES[name], unique, node, BODIES[name](*args), ctx)


def arguments_of(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what the session gives to ``View.serve`` for a request."""
    sent = packed(name, 0, args)
    _, _, _, node, uid, gid, pid, _, _ = IN_HEADER.unpack_from(sent)
    form = FORMS[OPCODES[name]]
    caller = Caller(GuestUid(uid), GuestGid(gid), pid) if form.has_caller else None
    return caller, *form.read(node, sent, len(sent))[1]


def _pack(layout: str, *values: int) -> bytes:
    """Pack C's unsigned numbers; negative ones are taken without their sign."""
    bits = {"I": 32, "Q": 64}
    codes = [code for code in layout if code != "="]
    assert len(codes) == len(values)
    return Struct("=" + layout).pack(
        *(value % (1 << bits[code]) for code, value in zip(codes, values, strict=True))
    )


def _text(name: bytes) -> bytes:
    if b"\0" in name:
        raise RequestError(22)  # no system call takes one
    return name + b"\0"


def _setattr(attributes: Any, fields: Any, handle: int | None) -> bytes:
    valid, value = 0, dict.fromkeys(SETATTR_BITS, 0)
    for name, bit in SETATTR_BITS.items():
        if getattr(fields, f"update_{name}"):
            value[name] = getattr(attributes, f"st_{name}_ns" if "time" in name else f"st_{name}")
            valid |= bit
    times = [divmod(value[name], 10**9) for name in ("atime", "mtime", "ctime")]
    valid |= 0 if handle is None else SETATTR_FH
    return _pack(
        "IIQQQQQQIIIIIIII", valid, 0, handle or 0, value["size"], 0, *(s for s, _ in times),
        *(ns for _, ns in times), value["mode"], 0, value["uid"], value["gid"], 0,
    )  # fmt: skip


def _transfer(handle: int, offset: int, size: int) -> bytes:
    return _pack("QQIIQII", handle, offset, size, 0, 0, 0, 0)


def _release(handle: int) -> bytes:
    return _pack("QIIQ", handle, 0, 0, 0)


def _lock(handle: int, owner: int, is_whole: bool, wanted: Iterable[int]) -> bytes:
    return _pack("QQQQIIII", handle, owner, *wanted, int(is_whole), 0)


def _sync(handle: int, is_data_only: bool) -> bytes:
    return _pack("QII", handle, int(is_data_only), 0)


BODIES: dict[str, Callable[..., bytes]] = {
    "lookup": _text,
    "getattr": lambda: _pack("IIQ", 0, 0, 0),
    "setattr": _setattr,
    "readlink": lambda: b"",
    "symlink": lambda name, target: _text(name) + _text(target),
    "mknod": lambda name, mode, rdev: _pack("IIII", mode, rdev, 0o22, 0) + _text(name),
    "mkdir": lambda name, mode: _pack("II", mode, 0o22) + _text(name),
    "unlink": _text,
    "rmdir": _text,
    "rename": lambda old, directory, new, flags: (
        _pack("QII", directory, flags, 0) + _text(old) + _text(new)
    ),
    "link": lambda node, name: _pack("Q", node) + _text(name),
    "open": lambda flags: _pack("II", flags, 0),
    "create": lambda name, mode, flags: _pack("IIII", flags, mode, 0o22, 0) + _text(name),
    "read": _transfer,
    "write": lambda handle, offset, data: _transfer(handle, offset, len(data)) + data,
    "statfs": lambda: b"",
    "release": _release,
    "releasedir": _release,
    "flush": lambda handle: _pack("QIIQ", handle, 0, 0, 0),
    "fsync": _sync,
    "fsyncdir": _sync,
    "opendir": lambda: _pack("II", os.O_DIRECTORY, 0),
    "readdir": lambda handle, offset, token: _transfer(
        handle, offset, min(token.room * SHORT_ENTRY, MOST)
    ),
    "access": lambda mask: _pack("II", mask, 0),
    "getxattr": lambda name: _pack("II", SIZE_MAX, 0) + _text(name),
    "listxattr": lambda: _pack("II", SIZE_MAX, 0),
    "setxattr": lambda name, value: _pack("II", len(value), 0) + _text(name) + value,
    "removexattr": _text,
    "tmpfile": lambda mode, flags: _pack("IIII", flags, mode, 0o22, 0) + _text(b"/"),
    "statx": lambda: _pack("IIQII", 0, 0, 0, 0, 0xFFF),
    "fallocate": lambda handle, offset, size, mode: _pack("QQQII", handle, offset, size, mode, 0),
    "lseek": lambda handle, offset, whence: _pack("QQII", handle, offset, whence, 0),
    "copy_file_range": lambda handle, offset, to, to_offset, size: _pack(
        "QQQQQQQ", handle, offset, 0, to, to_offset, size, 0
    ),
    "getlk": _lock,
    "setlk": _lock,
    "ioctl": lambda command, data: (
        _pack("QIIQII", 0, 0, command, 0, len(data), command >> 16 & 0x3FFF) + data
    ),
}
"""The body of each request, from the arguments after the node."""


def _seconds(whole: int, nanoseconds: int) -> float:
    assert nanoseconds < 10**9
    return whole + nanoseconds / 10**9


def _attributes(values: tuple[int, ...]) -> dict[str, int]:
    found = dict(zip(ATTR_FIELDS, values, strict=True))
    assert found.pop("flags") == 0
    for name in ("atime", "mtime", "ctime"):
        seconds, nanoseconds = found.pop(name), found.pop(f"{name}nsec")
        assert nanoseconds < 10**9
        signed = seconds - (1 << 64) if seconds >> 63 else seconds
        found[f"{name}_ns"] = signed * 10**9 + nanoseconds
    return {f"st_{name}": value for name, value in found.items()}


def entry(data: bytes) -> SimpleNamespace:
    node, generation, valid, attr_valid, valid_ns, attr_valid_ns, *values = ENTRY_OUT.unpack(data)
    told = SimpleNamespace(
        **_attributes(tuple(values)),
        entry_timeout=_seconds(valid, valid_ns), attr_timeout=_seconds(attr_valid, attr_valid_ns),
    )  # fmt: skip
    assert (node, generation) == (told.st_ino, 0)
    return told


def _attr(data: bytes) -> SimpleNamespace:
    valid, valid_ns, dummy, *values = ATTR_OUT.unpack(data)
    assert dummy == 0
    timeout = _seconds(valid, valid_ns)
    told = _attributes(tuple(values))
    return SimpleNamespace(**told, entry_timeout=timeout, attr_timeout=timeout)


def _statx(data: bytes) -> SimpleNamespace:
    (
        valid, valid_ns, mask, blksize, attributes, nlink, uid, gid, mode, ino, size, blocks, other,
        atime, atime_ns, btime, btime_ns, ctime, ctime_ns, mtime, mtime_ns, *rdev,
    ) = STATX_OUT.unpack(data)  # fmt: skip
    assert attributes == other == 0
    assert mask & ~0x800 == 0x7FF
    device = os.makedev(*rdev)
    told = _attributes(
        (ino, size, blocks, atime, mtime, ctime, atime_ns, mtime_ns, ctime_ns, mode, nlink, uid,
         gid, device, blksize, 0)
    )  # fmt: skip
    timeout = _seconds(valid, valid_ns)
    return SimpleNamespace(
        **told, entry_timeout=timeout, attr_timeout=timeout,
        birth_ns=btime * 10**9 + btime_ns if mask & 0x800 else None,
    )  # fmt: skip


def _opened(data: bytes) -> SimpleNamespace:
    handle, flags, _backing = OPEN_OUT.unpack(data)
    assert flags & ~0b100011 == 0
    return SimpleNamespace(fh=handle, direct_io=bool(flags & 1), keep_cache=bool(flags & 2))


def _created(data: bytes) -> tuple[SimpleNamespace, SimpleNamespace]:
    return _opened(data[ENTRY_OUT.size :]), entry(data[: ENTRY_OUT.size])


def _space(data: bytes) -> SimpleNamespace:
    blocks, free, available, files, free_files, bsize, longest, frsize, *rest = STATFS_OUT.unpack(
        data
    )
    assert not any(rest)
    return SimpleNamespace(
        f_blocks=blocks, f_bfree=free, f_bavail=available, f_files=files, f_ffree=free_files,
        f_bsize=bsize, f_namemax=longest, f_frsize=frsize,
    )  # fmt: skip


def _number(layout: str) -> Callable[[bytes], int]:
    def unpack(data: bytes) -> int:
        assert len(data) == calcsize(layout)
        return int(Struct(layout).unpack(data)[0])

    return unpack


def _nothing(data: bytes) -> None:
    assert data == b""


def _yes(data: bytes) -> bool:
    return data == b""


def entries(data: bytes) -> Iterator[tuple[bytes, SimpleNamespace, int]]:
    """Take a READDIRPLUS reply apart as parse_dirplusfile in fs/fuse/readdir.c does."""
    while data:
        head, rest = data[: ENTRY_OUT.size], data[ENTRY_OUT.size :]
        inode, offset, length, kind = DIRENT.unpack_from(rest)
        size = (ENTRY_OUT.size + DIRENT.size + length + 7) & ~7
        assert inode, "the C library leaves out entries of inode 0"
        assert 0 < length <= 1024
        assert size <= len(data)
        name = rest[DIRENT.size : DIRENT.size + length]
        assert b"/" not in name
        if head[:8] == bytes(8):
            told = SimpleNamespace(st_ino=0, st_mode=kind << 12)
        else:
            told = entry(head)
            assert (told.st_ino, told.st_mode >> 12) == (inode, kind)
        yield name, told, offset
        data = data[size:]


REPLIES: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("lookup", "mknod", "mkdir", "symlink", "link"), entry),
    **dict.fromkeys(("getattr", "setattr"), _attr),
    **dict.fromkeys(("readlink", "read", "getxattr"), bytes),
    **dict.fromkeys(
        ("unlink", "rmdir", "rename", "release", "releasedir", "flush", "fsync", "fsyncdir",
         "setxattr", "removexattr"),
        _nothing,
    ),
    "open": _opened,
    "create": _created,
    "write": _number("=II"),
    "statfs": _space,
    "opendir": _number("=QIi"),
    "access": _yes,
    "readdir": lambda data: list(entries(data)),
    "listxattr": lambda data: data.split(b"\0")[:-1],
    "tmpfile": _created,
    "statx": _statx,
    "fallocate": _nothing,
    "setlk": _nothing,
    "getlk": lambda data: Struct("=QQII").unpack(data),
    "lseek": _number("=Q"),
    "copy_file_range": _number("=Q"),
    "ioctl": lambda data: data[16:],
}  # fmt: skip


def checked(reply: bytes) -> tuple[int, int, bytes]:
    """Return unique, errno and data of a reply, if the kernel takes it (fuse_dev_do_write)."""
    size, error, unique = OUT_HEADER.unpack_from(reply)
    assert size == len(reply)
    assert -512 < error <= 0
    assert not error or size == OUT_HEADER.size
    return unique, -error, reply[OUT_HEADER.size :]


class Wire(Connection):
    """A connection whose replies are kept, each by its request's number."""

    def __init__(self, invalidate: Callable[[int], None]) -> None:
        super().__init__(shows_set_id=False)
        self.fd = os.open(os.devnull, os.O_RDWR)
        self.invalidate_attributes = invalidate
        self.unanswered: set[int] = set()
        self.replies: dict[int, bytes] = {}

    def send(self, unique: int, answer: Any) -> None:
        reply = answer if isinstance(answer, bytes) else b"".join(answer)
        assert checked(reply)[0] == unique
        self.unanswered.remove(unique)
        self.replies[unique] = reply


class KernelClient:
    """The requests of one mount, with the arguments that the tests give to pyfuse3's handlers."""

    def __init__(
        self, view: View, invalidate: Callable[[int], None], serves_ioctl: bool = True
    ) -> None:
        self.session = KernelSession(view, serves_ioctl=serves_ioctl)
        self.wire = Wire(invalidate)
        self.session._connection = self.session._under_way._connection = self.wire
        self._unique = 0
        self._turn = trio.Lock()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if REQUESTS.get(name, GuardedBy.UNSUPPORTED) is GuardedBy.UNSUPPORTED:
            raise AttributeError(name)
        return partial(self._ask, name)

    def send(self, sent: bytes) -> int:
        """Give a request to the session; return its number."""
        _, opcode, unique, *_ = IN_HEADER.unpack_from(sent)
        if opcode not in NO_REPLY:
            self.wire.unanswered.add(unique)
        self.session._buffer[: len(sent)] = sent
        self.session._serve_one(len(sent))
        return int(unique)

    async def forget(self, forgotten: list[tuple[int, int]]) -> None:
        self._unique += UNIQUE_STEP
        body = _pack("II", len(forgotten), 0) + b"".join(_pack("QQ", *one) for one in forgotten)
        self.send(request(BATCH_FORGET, self._unique, 0, body))

    async def _ask(self, name: str, *args: Any) -> Any:
        self._unique += UNIQUE_STEP
        unique = self.send(packed(name, self._unique, args))
        while unique in self.wire.unanswered:
            async with self._turn:
                if unique in self.wire.unanswered:
                    await trio.to_thread.run_sync(self.session._under_way.wait, -1)
                    self.session._take_returned()
        _, number, data = checked(self.wire.replies.pop(unique))
        if number:
            raise RequestError(number)
        reply = REPLIES[name](data)
        if name == "readdir":
            args[2].entries += reply
            return None
        return reply

    def close(self) -> None:
        for helpers in self.session._under_way._helpers.values():
            helpers.shutdown()
        self.session.close()
