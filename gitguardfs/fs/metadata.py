"""The requests that read and change attributes, and readlink and access.

Of extended attributes only those of the namespace ``user.`` are served. An access list (acl(5)) is
not stored: it names ids, and a share may have none. But ``cp -p`` and ``rsync -A`` fail if a file's
list cannot be set, whatever the errno. So the permissions in it are set, without those for further
users and groups.
"""

from __future__ import annotations

import errno
import os
import struct
import time
from stat import S_IFREG, S_IMODE

from gitguardfs.base.errors import os_error
from gitguardfs.base.protocol import NOW, Caller, EntryReply, HandleId, NodeId, SetAttr
from gitguardfs.fs.nodes import ROOT_ID, Node, stale
from gitguardfs.fs.parts import Parts
from gitguardfs.options.change_policy import XattrPolicy

JUST_NOW_NS = 100_000_000
"""Nanoseconds that a setattr request takes at most to get here, on a slow machine."""

ACCESS_LIST, DEFAULT_LIST = b"system.posix_acl_access", b"system.posix_acl_default"
_ALL = 7


class Metadata(Parts):
    """The requests on attributes. Errors: see ``tree``.

    Reading extended attributes raises ENOSYS, which the kernel caches, if they are off.
    """

    def getattr(self, caller: Caller, node_id: NodeId) -> EntryReply:
        """Return the attributes of a node, also of a guarded one."""
        if node_id == ROOT_ID:
            self.check.revalidate_root()
        return self._reported(caller, self.nodes.get(node_id))

    def statx(self, caller: Caller, node_id: NodeId) -> tuple[EntryReply, int]:
        """Return the attributes of a node, and its birth time in nanoseconds, or 0."""
        if node_id == ROOT_ID:
            self.check.revalidate_root()
        node = self.nodes.get(node_id)
        reply = self._reported(caller, node)
        return reply, self.source.btime_ns(self.descriptors.of(node))

    def _reported(self, caller: Caller, node: Node) -> EntryReply:
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

        Also raises OSError(EINVAL) for the size of an object without one.
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

    # Extended attributes

    def getxattr(self, caller: Caller, node_id: NodeId, name: bytes) -> bytes:
        """Return a value. Also raises OSError(ENODATA) for names outside of ``user.``."""
        node = self._read_node(node_id)
        if not name.startswith(b"user."):
            raise os_error(errno.ENODATA)
        return self.source.getxattr(self.descriptors.of(node), name)

    def listxattr(self, caller: Caller, node_id: NodeId) -> list[bytes]:
        """Return the names in ``user.``."""
        found = self.source.listxattr(self.descriptors.of(self._read_node(node_id)))
        return [name for name in found if name.startswith(b"user.")]

    def _read_node(self, node_id: NodeId) -> Node:
        if self.policy.xattr is XattrPolicy.NONE:  # for EACCES on .git, ls(1) prints an error
            raise os_error(errno.ENOSYS)
        return self.check.node(node_id)

    def setxattr(
        self, caller: Caller, node_id: NodeId, name: bytes, value: bytes, flags: int = 0
    ) -> None:
        """Set a value, with ``flags`` of setxattr(2); of an access list, the permissions in it.

        Also raises OSError: EOPNOTSUPP outside of ``user.`` or if xattrs are off,
        EACCES if they are read-only, EPERM for the access list of another user's file.
        """
        if not self._is_list(name):
            self.source.setxattr(self._fd_to_change(node_id, name), name, value, flags)
            return
        fd, node, shown = self.owned(caller, node_id)
        if name == ACCESS_LIST:
            mode = self._changed_mode(node, fd, S_IMODE(shown) & ~0o777 | permissions_of(value))
            if mode is not None:
                self.source.chmod(fd, mode)

    def removexattr(self, caller: Caller, node_id: NodeId, name: bytes) -> None:
        """Remove an attribute; there is no access list. Raises as ``setxattr`` does."""
        if self._is_list(name):
            self.owned(caller, node_id)
        else:
            self.source.removexattr(self._fd_to_change(node_id, name), name)

    def _is_list(self, name: bytes) -> bool:
        return name in (ACCESS_LIST, DEFAULT_LIST) and self.policy.xattr is not XattrPolicy.RO

    def owned(self, caller: Caller, node_id: NodeId) -> tuple[int, Node, int]:
        """Return a node that its owner changes: descriptor, node and mode as shown.

        Raises OSError(EPERM) for another user.
        """
        node = self.check.node(node_id, change=True)
        fd = self.descriptors.of(node)
        shown = self.attributes.report(node, self.source.stat(fd), caller.uid).attributes
        assert shown is not None
        if caller.uid not in (0, shown.uid):  # older kernels do not check it
            raise os_error(errno.EPERM)
        return fd, node, shown.mode

    def _fd_to_change(self, node_id: NodeId, name: bytes) -> int:
        # Other namespaces hold capabilities, labels and ids, which the guest must not set.
        node = self.check.node(node_id, change=True)
        if self.policy.xattr is XattrPolicy.RO:
            raise os_error(errno.EACCES)
        if self.policy.xattr is XattrPolicy.NONE or not name.startswith(b"user."):
            raise os_error(errno.EOPNOTSUPP)
        return self.descriptors.of(node)


def permissions_of(value: bytes) -> int:
    """Return the permission bits of owner, group and others in an access list.

    Those of the group are cut by the mask. Raises OSError(EINVAL) for what is no such list.
    """
    try:
        version, entries = struct.unpack_from("<I", value)[0], struct.iter_unpack("<HHI", value[4:])
        found = {tag: bits & _ALL for tag, bits, _ in entries}
        group = found[4] & found.get(16, _ALL)
        mode: int = found[1] << 6 | group << 3 | found[32]
    except (struct.error, KeyError):
        raise os_error(errno.EINVAL) from None
    if version != 2:
        raise os_error(errno.EINVAL)
    return mode
