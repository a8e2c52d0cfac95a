"""The content of open files: descriptors and bytes only, safe on any thread."""

from __future__ import annotations

import os

PAGE = os.sysconf("SC_PAGE_SIZE")


def read(fd: int, offset: int, size: int) -> bytes:
    """Return ``size`` bytes; fewer only at the end of the file, as FUSE demands.

    Raises OSError.
    """
    data = os.pread(fd, size, offset)
    if not data or len(data) == size:
        return data
    parts = [data]
    got = len(data)
    while got < size and (data := os.pread(fd, size - got, offset + got)):
        parts.append(data)
        got += len(data)
    return b"".join(parts)


def read_nowait(fd: int, offset: int, size: int, known_end: int) -> bytearray | memoryview | None:
    """Return what ``read`` does, or None if that would wait for a disk or a server.

    ``known_end`` is an offset, in bytes, at which the file was seen to end. Raises
    OSError(EOPNOTSUPP) if the file system has no RWF_NOWAIT (9p, virtiofs, other FUSE mounts).
    """
    buffer = bytearray(size)
    try:
        got = os.preadv(fd, [buffer], offset, os.RWF_NOWAIT)
    except BlockingIOError:
        return None
    if got == size:
        return buffer
    # Short: the file ends there, or the rest is not in memory. Memory is kept in whole pages, so
    # data that ends within a page ends because the file does.
    end = offset + got
    if (end == known_end and end % PAGE) or end >= os.fstat(fd).st_size:
        return memoryview(buffer)[:got]
    return None


def close_all(fds: tuple[int, ...]) -> None:
    """Close all descriptors, then raise the first OSError that a close reported."""
    errors = []
    for fd in fds:
        try:
            os.close(fd)
        except OSError as error:
            errors.append(error)
    if errors:
        raise errors[0]
