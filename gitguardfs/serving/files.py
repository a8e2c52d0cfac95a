"""Open files: what is opened, and what the kernel may go on believing of it."""

from __future__ import annotations

import errno
import os
import time
from functools import partial
from stat import S_IFREG, S_IMODE, S_ISGID, S_ISUID, S_IXGRP
from typing import NamedTuple

from gitguardfs.fs.attributes import Attributes, digest
from gitguardfs.fs.handles import FileHandle
from gitguardfs.fs.mount_state import Caller
from gitguardfs.fs.nodes import Node, stale
from gitguardfs.fs.source import KEPT_FLAGS, PAGE, close_all
from gitguardfs.serving.entries import Names

RACY_NS = 50_000_000
"""A file changed this recently may change again with the same time stamp (a clock tick is at
most 10 ms): its pages are not kept."""


class Opened(NamedTuple):
    """An open file: its handle, and what has become of what the kernel remembers."""

    handle: int
    keep_pages: bool
    attributes_changed: bool


class Files(Names):
    """The operations on open files."""

    def open(self, caller: Caller, node_id: int, flags: int) -> Opened:
        """Open a file, and say what the kernel may still believe of it (close-to-open)."""
        writes = flags & os.O_ACCMODE != os.O_RDONLY
        node = self._access.node(node_id, change=writes or bool(flags & os.O_TRUNC))
        if node.kind not in self._content_kinds:
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
        fd, st = self._open(node, _source_flags(flags))
        try:
            if writes or flags & os.O_TRUNC:
                self._strip_set_id(fd, st)
            if flags & os.O_TRUNC and node.kind == S_IFREG:
                if caller.uid != 0:
                    self._drop_set_id(fd, st)
                self._source.truncate(fd, 0, writable=writes)
                st = self._source.stat(fd)
                node.size = 0
            # The size stays what the kernel believes until it asks again.
            told = digest(st)
            same = told == node.reported
            node.reported = told
            handle = self.handles.add_file(self._handle(node, fd, flags, st.st_size))
        except BaseException:
            os.close(fd)
            raise
        return Opened(handle, same and time.time_ns() - st.st_ctime_ns > RACY_NS, not same)

    def _handle(self, node: Node, fd: int, flags: int, size: int) -> FileHandle:
        return FileHandle(node, fd, flags, size, self._is_local(node.dev))

    def _drop_set_id(self, fd: int, st: os.stat_result) -> None:
        # What the kernel does for a truncate by a user, unless it comes with the open.
        bits = S_ISUID | (S_ISGID if st.st_mode & S_IXGRP else 0)
        if st.st_mode & bits:
            self._source.chmod(fd, S_IMODE(st.st_mode) & ~bits)

    def _open(self, node: Node, flags: int) -> tuple[int, os.stat_result]:
        known = not self._path_based and (node.fd >= 0 or bool(node.open_fds))
        if known:
            fd = self._source.open_file(self._descriptors.of(node), flags)
        else:
            fd = self._open_at(self._descriptors.parent_of(node), node.name, flags)
        try:
            st = self._source.stat(fd)
            if not (known or node.matches(st)):
                raise stale()
        except OSError:
            os.close(fd)
            raise
        return fd, st

    def _open_at(self, dir_fd: int, name: bytes, flags: int) -> int:
        try:
            return self._source.open_file_at(dir_fd, name, flags)
        except FileNotFoundError:
            raise stale() from None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                raise stale() from None
            raise

    def write_target(self, handle: FileHandle, offset: int, length: int) -> int:
        """The descriptor to write to at ``offset``.

        The kernel writes for O_APPEND where it believes the end to be, but the host may have
        made the file longer. An append handle's descriptor has O_APPEND, and with it pwrite(2)
        appends at whatever offset, also on the host's side of a share. Only a page of
        somebody's shared mapping, which the kernel may write back through any handle and does
        not tell us apart, goes where the kernel says.
        """
        if not handle.append or not self._is_mapped_page(handle.node, offset, length):
            return handle.fd
        if handle.positional_fd < 0:
            handle.positional_fd = self._open(handle.node, os.O_WRONLY)[0]
        return handle.positional_fd

    def _is_mapped_page(self, node: Node, offset: int, length: int) -> bool:
        # A shared writable mapping needs a file that is open for both, and keeps it open.
        whole = length % PAGE == 0 or offset + length == node.size
        return (
            offset < node.size
            and offset % PAGE == 0
            and whole
            and any(handle.node is node and handle.mappable for handle in self.handles.files())
        )

    def wrote(self, handle: FileHandle, offset: int, length: int) -> None:
        """Note a write that the kernel counts as ``length`` bytes at ``offset``."""
        node = handle.node
        node.unsynced += length
        node.size = max(node.size, offset + length)
        node.reported = 0  # the kernel may drop what it is told of the file in the meantime

    def duplicates(self, handle: FileHandle) -> tuple[int, ...]:
        """Return copies of the descriptors that were written to, for the caller to close.

        On a file system of the network, close(2) may be the first to say that the disk is full.
        """
        written = [fd for fd in (handle.fd, handle.positional_fd) if fd >= 0]
        copies: list[int] = []
        try:
            for fd in written:
                copies.append(self._descriptors.with_room(partial(os.dup, fd)))
        except BaseException:
            close_all(tuple(copies))
            raise
        return tuple(copies)

    def release(self, handle: int) -> None:
        """Close a file."""
        self.handles.release_file(handle)

    def create(
        self, caller: Caller, parent_id: int, name: bytes, mode: int, flags: int
    ) -> tuple[Opened, Attributes]:
        """Make a file and open it.

        One that is there by now is not opened, for the kernel has not checked its permissions:
        ESTALE makes it look the name up again and open what it finds (do_filp_open).
        """
        mode = self._policy.new_mode(S_IFREG | self._view.incoming_mode(S_IFREG, mode))

        def make(dir_fd: int) -> int:
            return self._source.create(dir_fd, name, _source_flags(flags), S_IMODE(mode))

        try:
            node, attributes, fd = self._add_node(caller, parent_id, name, mode, make)
        except FileExistsError:
            if flags & os.O_EXCL:
                raise
            raise stale() from None
        handle = self.handles.add_file(self._handle(node, fd, flags, 0))
        return Opened(handle, keep_pages=False, attributes_changed=False), attributes


def _source_flags(flags: int) -> int:
    return flags & (os.O_ACCMODE | KEPT_FLAGS)
