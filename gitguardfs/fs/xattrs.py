"""The requests on extended attributes. Only those of the namespace ``user.`` are served.

An access list (acl(5)) is not stored: it names ids, and a share may have none. But ``cp -p`` and
``rsync -A`` fail if a file's list cannot be set, whatever the errno. So the permissions in it are
set, without those for further users and groups.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from stat import S_IMODE

from gitguardfs.base.errors import os_error
from gitguardfs.base.protocol import Caller, NodeId, SetAttr
from gitguardfs.fs.boundary import Boundary, GuardedBy, guarded_by
from gitguardfs.fs.metadata import Metadata
from gitguardfs.fs.mount import Mount
from gitguardfs.fs.nodes import Node
from gitguardfs.options.change_policy import XattrPolicy

ACCESS_LIST, DEFAULT_LIST = b"system.posix_acl_access", b"system.posix_acl_default"
_ALL = 7


class Xattrs:
    """The requests on extended attributes.

    Each raises RequestError: EACCES comes from the guard, EROFS from a read-only mount or object,
    ESTALE from a node whose object is gone. Other errors are the source's.
    """

    def __init__(self, mount: Mount, boundary: Boundary, metadata: Metadata) -> None:
        self.boundary = boundary
        self._metadata = metadata
        self._access = mount.access
        self._descriptors = mount.descriptors
        self._source = mount.source
        self._policy = mount.policy

    @guarded_by(GuardedBy.NODE)
    def getxattr(self, caller: Caller, node_id: NodeId, name: bytes) -> bytes:
        """Return a value.

        Raises RequestError: ENODATA outside of ``user.``; ENOSYS, which the kernel caches, if
        xattrs are off.
        """
        node = self._node(node_id)
        if not name.startswith(b"user."):
            raise os_error(errno.ENODATA)
        return self._source.getxattr(self._descriptors.of(node), name)

    @guarded_by(GuardedBy.NODE)
    def listxattr(self, caller: Caller, node_id: NodeId) -> list[bytes]:
        """Return the names in ``user.``.

        Raises RequestError: ENOSYS, which the kernel caches, if xattrs are off.
        """
        found = self._source.listxattr(self._descriptors.of(self._node(node_id)))
        return [name for name in found if name.startswith(b"user.")]

    def _node(self, node_id: NodeId) -> Node:
        if self._policy.xattr is XattrPolicy.NONE:  # for EACCES on .git, ls(1) prints an error
            raise os_error(errno.ENOSYS)
        return self._access.node(node_id)

    @guarded_by(GuardedBy.NODE)
    def setxattr(self, caller: Caller, node_id: NodeId, name: bytes, value: bytes) -> None:
        """Set a value.

        Raises RequestError: EOPNOTSUPP outside of ``user.`` or if xattrs are off, EACCES if
        they are read-only. Of an access list, raises what a change of the mode does.
        """
        if self._is_list(name):
            mode = self._mode_to_change(caller, node_id)
            if name == ACCESS_LIST:
                mode = mode & ~0o777 | permissions_of(value)
                self._metadata.setattr(caller, node_id, SetAttr(mode=mode), None)
            return
        self._change(node_id, name, lambda fd: self._source.setxattr(fd, name, value))

    def _is_list(self, name: bytes) -> bool:
        return name in (ACCESS_LIST, DEFAULT_LIST) and self._policy.xattr is not XattrPolicy.RO

    def _mode_to_change(self, caller: Caller, node_id: NodeId) -> int:
        """Return the permission bits of a node whose access list is changed."""
        self._access.node(node_id, change=True)
        attributes = self._metadata.getattr(caller, node_id).attributes
        assert attributes is not None
        if caller.uid not in (0, attributes.uid):  # older kernels do not check it
            raise os_error(errno.EPERM)
        return S_IMODE(attributes.mode)

    @guarded_by(GuardedBy.NODE)
    def removexattr(self, caller: Caller, node_id: NodeId, name: bytes) -> None:
        """Remove an attribute; there is no access list. Raises as ``setxattr`` does."""
        if self._is_list(name):
            self._mode_to_change(caller, node_id)
            return
        self._change(node_id, name, lambda fd: self._source.removexattr(fd, name))

    def _change(self, node_id: NodeId, name: bytes, change: Callable[[int], None]) -> None:
        # Other namespaces hold capabilities, labels and ids, which the guest must not set.
        node = self._access.node(node_id, change=True)
        if self._policy.xattr is XattrPolicy.RO:
            raise os_error(errno.EACCES)
        if self._policy.xattr is XattrPolicy.NONE or not name.startswith(b"user."):
            raise os_error(errno.EOPNOTSUPP)
        change(self._descriptors.of(node))


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
