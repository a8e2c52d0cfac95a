"""The requests on extended attributes. Only those of the namespace ``user.`` are served."""

from __future__ import annotations

import errno
from collections.abc import Callable

from gitguardfs.bindfs.change_policy import XattrPolicy
from gitguardfs.errors import os_error
from gitguardfs.fs.mount import Mount
from gitguardfs.fs.nodes import Node
from gitguardfs.protocol import Caller, NodeId
from gitguardfs.serving.boundary import Boundary, GuardedBy, guarded_by


class Xattrs:
    """The requests on extended attributes.

    Each raises RequestError: EACCES comes from the guard, EROFS from a read-only mount or object,
    ESTALE from a node whose object is gone. Other errors are the source's.
    """

    def __init__(self, mount: Mount, boundary: Boundary) -> None:
        self.boundary = boundary
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
        they are read-only.
        """
        self._change(node_id, name, lambda fd: self._source.setxattr(fd, name, value))

    @guarded_by(GuardedBy.NODE)
    def removexattr(self, caller: Caller, node_id: NodeId, name: bytes) -> None:
        """Remove an attribute. Raises as ``setxattr`` does."""
        self._change(node_id, name, lambda fd: self._source.removexattr(fd, name))

    def _change(self, node_id: NodeId, name: bytes, change: Callable[[int], None]) -> None:
        # Other namespaces hold capabilities, labels and ids, which the guest must not set.
        node = self._access.node(node_id, change=True)
        if self._policy.xattr is XattrPolicy.RO:
            raise os_error(errno.EACCES)
        if self._policy.xattr is XattrPolicy.NONE or not name.startswith(b"user."):
            raise os_error(errno.EOPNOTSUPP)
        change(self._descriptors.of(node))
