"""The kernel's protocol: numbers and layouts of ``linux/fuse.h``, 7.36 and later. No policy.

Layouts are native, as the kernel's are, which is quicker than a byte order that is given.
"""

from __future__ import annotations

import os
from enum import IntEnum
from struct import Struct

MAJOR, MINOR = 7, 45
"""The newest version that is written down here; the kernel takes the smaller minor number."""

BODY = 40
"""Bytes of the header of a request, after which its body begins."""
IN = Struct("IIQQIII")
"""Length, opcode, unique, node, uid, gid and pid."""
OUT = Struct("IiQ")
"""Length, negative errno and unique: the header of a reply."""
MAX_WRITE = 1 << 20
BUFFER_SIZE = MAX_WRITE + 4096
"""Bytes for the longest request; read(2) fails if the buffer is too small for that."""


class Opcode(IntEnum):
    """The kinds of requests."""

    LOOKUP, FORGET, GETATTR, SETATTR, READLINK, SYMLINK = 1, 2, 3, 4, 5, 6
    MKNOD, MKDIR, UNLINK, RMDIR, RENAME, LINK, OPEN, READ, WRITE, STATFS, RELEASE = range(8, 19)
    FSYNC, SETXATTR, GETXATTR, LISTXATTR, REMOVEXATTR, FLUSH, INIT, OPENDIR = range(20, 28)
    READDIR, RELEASEDIR, FSYNCDIR, GETLK, SETLK, SETLKW, ACCESS, CREATE = range(28, 36)
    INTERRUPT, BMAP, DESTROY, IOCTL, POLL, NOTIFY_REPLY, BATCH_FORGET = range(36, 43)
    FALLOCATE, READDIRPLUS, RENAME2, LSEEK, COPY_FILE_RANGE, SETUPMAPPING = range(43, 49)
    REMOVEMAPPING, SYNCFS, TMPFILE, STATX, COPY_FILE_RANGE_64 = range(49, 54)


WORD, QWORD = Struct("I"), Struct("Q")
TWO_WORDS = Struct("II")
FOUR_WORDS = Struct("4I")
LIST_FORGET = Struct("QQ")
INIT_IN = Struct("5I")
"""Major and minor version, readahead, and two words of flags; the second is 0 without INIT_EXT."""
SETATTR_IN = Struct("IIQQQQQQIIIIIIII")
RENAME2_IN = Struct("QII")
READ_IN = Struct("QQIIQII")
"""Handle, offset, size and flags, also of WRITE; READDIRPLUS begins alike."""
FSYNC_IN = Struct("QII")
FALLOCATE_IN = Struct("QQQII")
LSEEK_IN = Struct("QQII")
COPY_IN = Struct("7Q")
"""Of COPY_FILE_RANGE: handle and offset; node, handle and offset of the target; size and flags."""
IOCTL_IN = Struct("QIIQII")
"""Handle, flags, command, argument, and how many bytes are copied in, and out."""
FLUSH_IN = Struct("Q8xQ")
"""Handle, and the owner of locks that closes it."""
LK_IN = Struct("4Q3I")
"""Handle, owner, first and last byte, kind, pid and flags."""

FATTR_MODE, FATTR_UID, FATTR_GID, FATTR_SIZE, FATTR_ATIME, FATTR_MTIME, FATTR_FH = (
    1 << bit for bit in range(7)
)
FATTR_ATIME_NOW, FATTR_MTIME_NOW = 1 << 7, 1 << 8
FSYNC_FDATASYNC = 1
LK_FLOCK = 1

ATTRIBUTES = Struct("3Q3q10I")
"""``struct fuse_attr``; seconds before 1970 are negative."""
ENTRY = Struct("4QII")
"""``struct fuse_entry_out`` without the attributes at its end."""
OUT_ENTRY = Struct("IiQ4QII")
OUT_ATTR = Struct("IiQQII")
"""These replies, and that of CREATE, go on with attributes."""
OUT_OPEN = Struct("IiQQII")
OUT_WRITE = Struct("IiQII")
OUT_STATX = Struct("IiQQII16xIIQIIIH2x4QqI4xqI4xqI4xqI4xII120x")
"""Without the device, which the kernel knows."""
STATX_BASIC_STATS, STATX_BTIME = 0x7FF, 0x800
OUT_IOCTL = Struct("IiQiIII")
OUT_STATFS = Struct("IiQ5Q4I24x")
OUT_INIT = Struct("IiQ4I2HIIHHII24x")
OUT_LK = Struct("IiQQQII")
OUT_SIZE = Struct("IiQII")
"""The reply to GETXATTR and LISTXATTR that asks for the size alone."""
DIRENT = "QQII"
"""``struct fuse_dirent`` without the name at its end."""

FOPEN_DIRECT_IO, FOPEN_KEEP_CACHE, FOPEN_CACHE_DIR = 1, 2, 1 << 3
FOPEN_NOFLUSH, FOPEN_PASSTHROUGH = 1 << 5, 1 << 7

PASSTHROUGH, HAS_RESEND = 1 << 5, 1 << 7
"""Their bits in the second word of flags."""
STACK_DEPTH = 1
"""How deep file systems that are passed through may be stacked; the view then lies one deeper."""
BACKING_OPEN, BACKING_CLOSE = 0x4010E501, 0x4004E502
"""Numbers of ioctl(2) on /dev/fuse."""
BACKING_MAP = Struct("iIQ")

INIT_EXT = 1 << 30
"""The bit that says that INIT has a second word of flags."""
WANTED = sum(
    1 << bit
    for bit in (
        0,  # ASYNC_READ
        3,  # ATOMIC_O_TRUNC
        5,  # BIG_WRITES
        12,  # AUTO_INVAL_DATA
        13,  # DO_READDIRPLUS
        15,  # ASYNC_DIO
        18,  # PARALLEL_DIROPS
        22,  # MAX_PAGES
    )
)
"""What is asked for where the kernel offers it. Without READDIRPLUS_AUTO, READDIR is never sent."""
LOCKS = 1 << 1 | 1 << 10
"""POSIX_LOCKS and FLOCK_LOCKS: locks are asked for."""
MAX_BACKGROUND, CONGESTION, TIME_GRANULARITY, MAX_PAGES = 64, 48, 1, 256
MAX_READ = MAX_PAGES * os.sysconf("SC_PAGE_SIZE")
"""Bytes that the kernel may ask for at a time. It takes a short reply for the end of the file."""

NOTIFY_INVAL_INODE, NOTIFY_INVAL_ENTRY, NOTIFY_RESEND = 2, 3, 7
RESENT = 1 << 63
"""The bit in the unique of a request that was read before, and not answered."""
INVAL_ENTRY_OUT = Struct("IiQQII")
"""Without the name at its end."""
EXPIRE_ONLY = 1
"""The flag by which a name stays, and is looked up again (Linux 6.2; before that it goes)."""
INVAL_INODE_OUT = Struct("IiQQqq")
ATTRIBUTES_ONLY = -1
"""The offset with which INVAL_INODE leaves the cached pages."""
