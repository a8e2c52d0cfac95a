"""The requests that read and change attributes, and readlink and access."""

from __future__ import annotations

import errno
import os
import time
from stat import S_IFREG, S_IMODE

from gitguardfs.base.errors import os_error
from gitguardfs.base.protocol import NOW, Caller, EntryReply, HandleId, NodeId, SetAttr
from gitguardfs.fs.nodes import ROOT_ID, Node, stale
from gitguardfs.fs.parts import Parts

JUST_NOW_NS = 100_000_000
"""Nanoseconds that a setattr request takes at most to get here, on a slow machine."""


class Metadata(Parts):
    """The requests on attributes.

    Each raises Refused, by the guard; OSError: EPERM by the change policy, EROFS for a read-only
    mount or object, ESTALE if a node's object is gone, and the source's.
    """

    def getattr(self, caller: Caller, node_id: NodeId) -> EntryReply:
        """Return the attributes of a node, also of a guarded one."""
        if node_id == ROOT_ID:
            self.check.revalidation.revalidate_root()
        node = self.nodes.get(node_id)
        return self.attributes.report(node, self._stat(node), caller.uid)

    def _stat(self, node: Node) -> os.stat_result:
        try:
            if node.fd >= 0 or node.open_fds:
                return self.source.stat(self.descriptors.of(node))
            st = self.source.stat_at(self.descriptors.parent_of(node), node.name)
        except (FileNotFoundError, NotADirectoryError):
            raise stale() from None  # the kernel then looks for another name of it
        if not node.is_found(st):
            raise stale()
        return st

    def setattr(
        self, caller: Caller, node_id: NodeId, changes: SetAttr, handle: HandleId | None
    ) -> EntryReply:
        """Change attributes; ``handle`` is that of the open file if it is changed by descriptor.

        Raises as the class says, and OSError(EINVAL) for the size of an object without one.
        """
        node = self.check.node(node_id, change=True)
        fd = self.descriptors.of(node)
        uid, gid = self._share_ids(changes)
        mode = None if changes.mode is None else self._changed_mode(node, fd, changes.mode)
        if changes.size is not None:
            self._truncate(node, fd, changes.size, handle)
        if (uid, gid) != (-1, -1) or changes == SetAttr():  # chown(-1, -1) sets ctime
            self.source.chown(fd, uid, gid)
        if mode is not None:
            self.source.chmod(fd, mode)
        atime_ns, mtime_ns = self._times(changes, self.source.is_local(node.dev))
        if atime_ns is not None or mtime_ns is not None:
            self.source.utimens(fd, atime_ns, mtime_ns)
        return self.attributes.report(node, self.source.stat(fd), caller.uid)

    def _changed_mode(self, node: Node, fd: int, wanted: int) -> int | None:
        """Return the permission bits that a chmod to ``wanted`` sets; None leaves them."""
        old, new = (
            node.file_type | self.attributes.mode_for_source(node.file_type, mode)
            for mode in (self.source.stat(fd).st_mode, wanted)
        )
        mode = self.policy.mode(old, new)
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
        idmap = self.attributes.idmap
        uid, gid = self.policy.owners(changes.uid, changes.gid)
        return (
            -1 if uid is None else idmap.share_uid(uid),
            -1 if gid is None else idmap.share_gid(gid),
        )

    def _truncate(self, node: Node, fd: int, size: int, handle: HandleId | None) -> None:
        bits = self.attributes.bits_without_setid(self.source.stat(fd).st_mode)
        if bits is not None:
            self.source.chmod(fd, bits)
        if handle is not None and (opened := self.handles.file(handle)).writable:
            self.source.truncate(opened.fd, size, writable=True)
        elif node.file_type == S_IFREG:
            self.source.truncate(fd, size, writable=False)
        else:
            raise os_error(errno.EINVAL)

    def readlink(self, caller: Caller, node_id: NodeId) -> bytes:
        """Return the text of a symlink."""
        return self.link_text(self.check.node(node_id))

    def access(self, caller: Caller, node_id: NodeId, mask: int) -> None:
        """Check that the guard allows ``mask`` (access(2)); the kernel checks permissions."""
        self.check.node(node_id, change=bool(mask & os.W_OK))
