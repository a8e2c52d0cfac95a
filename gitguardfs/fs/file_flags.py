"""The requests of ioctl(2) that chattr(1) and lsattr(1) make, with ``--enable-ioctl``."""

from __future__ import annotations

import errno
import struct
from stat import S_IFDIR, S_IFREG

from gitguardfs.base.errors import os_error
from gitguardfs.base.protocol import Caller, NodeId
from gitguardfs.fs.metadata import Metadata

_LONG = struct.calcsize("l") << 16
GET_FLAGS, SET_FLAGS = 2 << 30 | _LONG | 0x6601, 1 << 30 | _LONG | 0x6602
GET_VERSION, GET_XFLAGS = 2 << 30 | _LONG | 0x7601, 0x801C581F
"""FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_IOC_GETVERSION (ioctl_iflags(2)), and FS_IOC_FSGETXATTR,
which the kernel asks before it sets flags."""
_FLAGS = struct.Struct("I")
READ = {GET_FLAGS: _FLAGS.size, GET_VERSION: _FLAGS.size, GET_XFLAGS: 28}
"""The commands that only read: how many bytes each returns."""

OWNERS = 0x4 | 0x8 | 0x40 | 0x80 | 0x400 | 0x10000 | 0x800000
"""The flags that an owner may change: c, S, d, A, D and C of chattr(1), and "do not compress"."""
ROOTS = 0x10 | 0x20
"""Immutable and append-only, which are root's to change. The daemon has the right to, so the source
would not refuse them to others."""


class FileFlags(Metadata):
    """ioctl(2). Errors: see ``tree``."""

    def ioctl(self, caller: Caller, node_id: NodeId, command: int, data: bytes) -> bytes:
        """Return what a command for a file or directory copies out.

        Also raises OSError: ENOTTY for any other command, EPERM for root's flags and for another
        user's file, EOPNOTSUPP for flags that nobody may change.
        """
        if command in READ:
            node = self.check.node(node_id)
        elif command == SET_FLAGS:
            node = self.owned(caller, node_id)[1]
        else:
            raise os_error(errno.ENOTTY)
        if node.file_type not in (S_IFREG, S_IFDIR):
            raise os_error(errno.ENOTTY)
        fd = self.descriptors.of(node)
        is_directory = node.file_type == S_IFDIR
        if command in READ:
            return self.source.ioctl(fd, is_directory, command, bytes(READ[command]))
        flags = self.source.ioctl(fd, is_directory, GET_FLAGS, bytes(_FLAGS.size))
        changed = _FLAGS.unpack(flags)[0] ^ _FLAGS.unpack_from(data)[0]
        if changed & ~(OWNERS | ROOTS):
            raise os_error(errno.EOPNOTSUPP)
        if changed & ROOTS and caller.uid != 0:
            raise os_error(errno.EPERM)
        self.source.ioctl(fd, is_directory, SET_FLAGS, data[: _FLAGS.size])
        return b""
