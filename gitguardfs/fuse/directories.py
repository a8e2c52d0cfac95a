"""Opening a directory whose path other users may be able to bend while root follows it."""

from __future__ import annotations

import errno
import os
from stat import S_IFDIR, S_ISDIR, S_ISLNK

from gitguardfs.errors import Exit, UserError

MAX_SYMLINKS = 40
"""As many as the kernel follows (path_resolution(7))."""

_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def open_directory(path: str, is_root: bool) -> int:
    """An O_PATH descriptor of the directory ``path``; OSError, or UserError for a foreign symlink.

    Root goes one component at a time and follows only symlinks that are root's, so that nobody
    can lead it to another directory, neither before nor while it looks. Work on the descriptor
    is then safe: the path may lead elsewhere a moment later.
    """
    if not is_root:
        return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    if not path:
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    start = "/" if path.startswith("/") else "."
    fd = os.open(start, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    rest = [part for part in path.split("/") if part]
    links = 0
    try:
        while rest:
            part = rest.pop(0)
            step = os.open(part, _FLAGS, dir_fd=fd)
            if S_ISLNK(_mode(step)):
                links += 1
                target = _follow(step, part, path, links)
                os.close(step)
                rest = [p for p in target.split("/") if p] + rest
                if not target.startswith("/"):
                    continue
                step = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            os.close(fd)
            fd = step
        if not S_ISDIR(_mode(fd)):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    except BaseException:
        os.close(fd)
        raise
    return fd


def _mode(fd: int) -> int:
    try:
        return os.fstat(fd).st_mode
    except OSError:
        return S_IFDIR  # what cannot even be asked is the root of a dead FUSE mount


def _follow(fd: int, part: str, path: str, links: int) -> str:
    if links > MAX_SYMLINKS:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if os.fstat(fd).st_uid != 0:
        raise UserError(
            f"{path}: {part} is a symlink that is not root's",
            f"give the directory itself: {os.path.realpath(path)}",
            Exit.USAGE,
        )
    return os.readlink("", dir_fd=fd)


def path_of(fd: int) -> str:
    """Where the kernel has the directory behind a descriptor."""
    return os.readlink(f"/proc/self/fd/{fd}")
