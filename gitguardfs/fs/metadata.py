"""The requests that read and change attributes, and readlink, access and statfs."""

from __future__ import annotations

import errno
import os
import time
from stat import S_IFREG, S_IMODE

from gitguardfs.base.errors import os_error
from gitguardfs.base.protocol import NOW, Caller, EntryReply, HandleId, NodeId, SetAttr
from gitguardfs.fs.boundary import Boundary, GuardedBy, guarded_by
from gitguardfs.fs.mount import Mount
from gitguardfs.fs.nodes import ROOT_ID, Node, stale

JUST_NOW_NS = 100_000_000
"""Nanoseconds that a setattr request takes at most to get here, on a slow machine."""


class Metadata:
    """The requests on attributes.

    Each raises RequestError: EACCES comes from the guard, EPERM from the change policy, EROFS from
    a read-only mount or object, ESTALE from a node whose object is gone. Other errors are the
    source's.
    """

    def __init__(self, mount: Mount, boundary: Boundary) -> None:
        self.boundary = boundary
        self._access = mount.access
        self._nodes = mount.nodes
        self._descriptors = mount.descriptors
        self._source = mount.source
        self._attributes = mount.attributes
        self._handles = mount.handles
        self._policy = mount.policy
        self._link_text = mount.link_text

    @guarded_by(GuardedBy.NODE)
    def getattr(self, caller: Caller, node_id: NodeId) -> EntryReply:
        """Return the attributes of a node, also of a guarded one. Raises RequestError(ESTALE)."""
        if node_id == ROOT_ID:
            self._access.revalidation.revalidate_root()
        node = self._nodes.get(node_id)
        return self._attributes.report(node, self._stat(node), caller.uid)

    def _stat(self, node: Node) -> os.stat_result:
        try:
            if node.fd >= 0 or node.open_fds:
                return self._source.stat(self._descriptors.of(node))
            st = self._source.stat_at(self._descriptors.parent_of(node), node.name)
        except (FileNotFoundError, NotADirectoryError):
            raise stale() from None  # the kernel then looks for another name of it
        if not node.is_found(st):
            raise stale()
        return st

    @guarded_by(GuardedBy.NODE)
    def setattr(
        self, caller: Caller, node_id: NodeId, changes: SetAttr, handle: HandleId | None
    ) -> EntryReply:
        """Change attributes; ``handle`` is that of the open file if it is changed by descriptor.

        Raises RequestError, as the class says, and EINVAL for the size of what is no file.
        """
        node = self._access.node(node_id, change=True)
        fd = self._descriptors.of(node)
        uid, gid = self._share_ids(changes)
        mode = self._new_mode_of(node, fd, changes)
        if changes.size is not None:
            self._truncate(node, fd, changes.size, handle)
        if (uid, gid) != (-1, -1) or changes == SetAttr():  # chown(-1, -1) sets ctime
            self._source.chown(fd, uid, gid)
        if mode is not None:
            self._source.chmod(fd, mode)
        atime_ns, mtime_ns = self._times(changes, self._source.is_local(node.dev))
        if atime_ns is not None or mtime_ns is not None:
            self._source.utimens(fd, atime_ns, mtime_ns)
        return self._attributes.report(node, self._source.stat(fd), caller.uid)

    def _new_mode_of(self, node: Node, fd: int, changes: SetAttr) -> int | None:
        if changes.mode is None:
            return None
        old, new = (
            node.file_type | self._attributes.mode_for_source(node.file_type, mode)
            for mode in (self._source.stat(fd).st_mode, changes.mode)
        )
        mode = self._policy.mode(old, new)
        return None if mode is None else S_IMODE(mode)

    def _times(self, changes: SetAttr, is_local: bool) -> tuple[int | None, int | None]:
        """Return the times to set, with "now" by the clock that stamps the source's files.

        The kernel turns "now" into a time of this machine's clock. With a size, mtime is always
        "now", and the truncation has set it already. Otherwise, on a share, a time that has only
        just passed is taken for "now": make(1) must not compare times of two clocks.
        """
        if changes.size is not None or is_local:
            return changes.atime_ns, None if changes.size is not None else changes.mtime_ns
        given = {t for t in (changes.atime_ns, changes.mtime_ns) if t is not None}
        if len(given) == 1 and 0 <= time.time_ns() - next(iter(given)) < JUST_NOW_NS:
            return (
                None if changes.atime_ns is None else NOW,
                None if changes.mtime_ns is None else NOW,
            )
        return changes.atime_ns, changes.mtime_ns

    def _share_ids(self, changes: SetAttr) -> tuple[int, int]:
        idmap = self._attributes.idmap
        uid, gid = self._policy.owners(changes.uid, changes.gid)
        return (
            -1 if uid is None else idmap.share_uid(uid),
            -1 if gid is None else idmap.share_gid(gid),
        )

    def _truncate(self, node: Node, fd: int, size: int, handle: HandleId | None) -> None:
        bits = self._attributes.bits_without_setid(self._source.stat(fd).st_mode)
        if bits is not None:
            self._source.chmod(fd, bits)
        if handle is not None and (opened := self._handles.file(handle)).writable:
            self._source.truncate(opened.fd, size, writable=True)
        elif node.file_type == S_IFREG:
            self._source.truncate(fd, size, writable=False)
        else:
            raise os_error(errno.EINVAL)

    @guarded_by(GuardedBy.NODE)
    def readlink(self, caller: Caller, node_id: NodeId) -> bytes:
        """Return the text of a symlink. Raises RequestError."""
        return self._link_text(self._access.node(node_id))

    @guarded_by(GuardedBy.NODE)
    def access(self, caller: Caller, node_id: NodeId, mask: int) -> None:
        """Check that the guard allows ``mask`` (access(2)); the kernel checks permissions.

        Raises RequestError.
        """
        self._access.node(node_id, change=bool(mask & os.W_OK))

    @guarded_by(GuardedBy.NOTHING)
    def statfs(self, caller: Caller) -> os.statvfs_result:
        """Return size and free space of the source (statvfs(3)). Raises RequestError."""
        return self._source.statvfs(self._nodes.root.fd)
