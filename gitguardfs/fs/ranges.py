"""The requests on ranges of open files: to allocate, to find holes, to copy.

The guard has checked the files when they were opened, as for read and write.
"""

from __future__ import annotations

import errno
import os
from functools import partial

from gitguardfs.base.errors import os_error
from gitguardfs.base.protocol import HandleId
from gitguardfs.fs.blocking import INLINE_LIMIT, Blocking
from gitguardfs.fs.files import Files, note_write
from gitguardfs.fs.nodes import TREE_BITS
from gitguardfs.linux.syscalls import FALLOC_FL_KEEP_SIZE

MAX_COPY = 128 << 20
"""Bytes that one request copies at most: its caller cannot be interrupted meanwhile."""


class Ranges(Files):
    """The requests on ranges of open files. Errors: see ``tree``."""

    def fallocate(self, handle_id: HandleId, offset: int, length: int, mode: int) -> Blocking[None]:
        """Allocate, free or zero a range, as ``mode`` says (fallocate(2))."""
        handle = self.handles.file(handle_id)

        def note(_: None) -> None:
            keeps_size = mode & FALLOC_FL_KEEP_SIZE
            note_write(handle, 0 if keeps_size else offset, 0 if keeps_size else length)

        return Blocking(
            self.writing, self.source.fallocate, handle.fd, mode, offset, length,
            is_small=length <= INLINE_LIMIT, is_local=handle.is_local, finish=note,
        )  # fmt: skip

    def lseek(self, handle_id: HandleId, offset: int, whence: int) -> int | Blocking[int]:
        """Return where data or a hole begins, from ``offset`` on (SEEK_DATA, SEEK_HOLE).

        Also raises OSError(ENXIO) at the end of the file.
        """
        handle = self.handles.file(handle_id)
        if whence not in (os.SEEK_DATA, os.SEEK_HOLE):
            raise os_error(errno.EINVAL)
        if self._may_be_mapped(handle.node):
            return seek_in_data(self.source.stat(handle.fd).st_size, offset, whence)
        if handle.is_local:
            return os.lseek(handle.fd, offset, whence)
        return Blocking(
            self.reading, os.lseek, handle.fd, offset, whence, is_small=True, is_local=False
        )

    def copy_file_range(
        self, handle_id: HandleId, offset: int, to_id: HandleId, to_offset: int, length: int,
        flags: int,
    ) -> Blocking[int]:  # fmt: skip
        """Copy a range to another open file; return the number of bytes copied.

        Also raises OSError(EXDEV), after which the guest's kernel reads and writes: from one tree
        to another, to an append handle, and where a rate limit counts what is read and written.
        """
        handle = self.handles.file(handle_id)
        if handle_id >> TREE_BITS != to_id >> TREE_BITS:
            raise os_error(errno.EXDEV)
        to = self.handles.file(to_id)
        if flags:
            raise os_error(errno.EINVAL)
        if to.append or self.reads is not None or self.writes is not None:
            raise os_error(errno.EXDEV)
        return Blocking(
            self.writing, self.source.copy, handle.fd, to.fd, min(length, MAX_COPY), offset,
            to_offset, is_small=length <= INLINE_LIMIT, is_local=handle.is_local and to.is_local,
            finish=partial(note_write, to, to_offset),
        )  # fmt: skip


def seek_in_data(size: int, offset: int, whence: int) -> int:
    """Return the result of lseek(2) in a file of ``size`` bytes without holes. OSError(ENXIO)."""
    if offset >= size:
        raise os_error(errno.ENXIO)
    return offset if whence == os.SEEK_DATA else size
