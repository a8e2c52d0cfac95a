"""The way from an open directory up to the root of the source, as the source has it now.

The tables know where a directory was last seen. If the host has moved it, or one above it, that
says nothing of where it is: ``..`` does, on a local file system.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import NamedTuple

from gitguardfs.fs.nodes import stale
from gitguardfs.fs.source import Source


class Step(NamedTuple):
    """A directory on the way, with descriptors that are valid until the next step."""

    fd: int
    st: os.stat_result
    parent_fd: int
    name: bytes
    """Its name in the directory above it."""


def way_up(source: Source, fd: int, root_fd: int) -> Iterator[Step]:
    """Yield the directory behind ``fd`` and all above it, but for the root.

    Yields nothing for one that was removed. Raises OSError(ESTALE) if the root is not above it.
    """
    root, st = source.stat(root_fd), source.stat(fd)
    if not st.st_nlink:
        return
    own = -1
    try:
        while not os.path.samestat(st, root):
            parent = _open_parent(source, fd, root_fd)
            try:
                name = source.name_of(parent, st)
                if name is None:
                    raise stale()
                yield Step(fd, st, parent, name)
            except BaseException:
                os.close(parent)
                raise
            if own >= 0:
                os.close(own)
            fd = own = parent
            st = source.stat(fd)
    finally:
        if own >= 0:
            os.close(own)


def _open_parent(source: Source, fd: int, root_fd: int) -> int:
    try:
        return source.open_parent(fd)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return os.dup(root_fd)  # covered by a seal, or by the view itself
