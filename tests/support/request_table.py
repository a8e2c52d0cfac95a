"""The classification of every request: which part of it the guard checks."""

from __future__ import annotations

from enum import Enum


class GuardedBy(Enum):
    """The part of a request that the guard checks."""

    NAME = "a name in a directory"
    NODE = "a node"
    OPEN_NODE = "the node of a handle"
    HANDLE = "a handle, when it was opened"
    NOTHING = "nothing: it names no object"
    UNSUPPORTED = "nothing: it is never served"


GUARDED_BY: dict[str, GuardedBy] = {
    **dict.fromkeys(
        ("lookup", "mknod", "mkdir", "symlink", "link", "create", "unlink", "rmdir", "rename"),
        GuardedBy.NAME,
    ),
    **dict.fromkeys(
        ("getattr", "setattr", "readlink", "access", "open", "opendir",
         "getxattr", "listxattr", "setxattr", "removexattr"),
        GuardedBy.NODE,
    ),
    **dict.fromkeys(("readdir", "fsyncdir"), GuardedBy.OPEN_NODE),
    **dict.fromkeys(
        ("read", "write", "flush", "fsync", "release", "releasedir"), GuardedBy.HANDLE
    ),
    "statfs": GuardedBy.NOTHING,
    "forget": GuardedBy.NOTHING,
    "poll": GuardedBy.UNSUPPORTED,
}  # fmt: skip
"""The classification of every request. A tree has a method of that name for each."""
KERNEL_ALONE = {
    **dict.fromkeys(("tmpfile", "statx", "ioctl"), GuardedBy.NODE),
    **dict.fromkeys(("fallocate", "lseek", "copy_file_range", "getlk", "setlk"), GuardedBy.HANDLE),
}
"""The requests that the kernel's session alone carries."""
REQUESTS = GUARDED_BY | KERNEL_ALONE
