"""The directories from an open directory up to the root of the source, read from the source.

The node table knows where a directory was last seen. The host may have moved it, or one above it,
since then. On a local file system ``..`` leads to its present parent.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import NamedTuple

from gitguardfs.fs.nodes import stale
from gitguardfs.fs.source import Source


class Ancestor(NamedTuple):
    """One directory on the way up, with descriptors that are valid until the next step."""

    fd: int
    st: os.stat_result
    parent_fd: int
    name: bytes
    """Its name in the directory above it."""


def walk_up(source: Source, fd: int, root_fd: int) -> Iterator[Ancestor]:
    """Yield the directory behind ``fd`` and all above it, without the root.

    Yields nothing for a directory that was removed. Raises OSError(ESTALE) if the root is not
    above the directory, and any other OSError of the source.
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
                yield Ancestor(fd, st, parent, name)
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
        return os.dup(root_fd)  # the root is covered by a seal, or by this mount
