"""The requests on extended attributes. Only those of the namespace ``user.`` are served.

An access list (acl(5)) is not stored: it names ids, and a share may have none. But ``cp -p`` and
``rsync -A`` fail if a file's list cannot be set, whatever the errno. So the permissions in it are
set, without those for further users and groups.
"""

from __future__ import annotations

import errno
import struct
from stat import S_IMODE

from gitguardfs.base.errors import os_error
from gitguardfs.base.protocol import Caller, NodeId
from gitguardfs.fs.metadata import Metadata
from gitguardfs.fs.nodes import Node
from gitguardfs.options.change_policy import XattrPolicy

ACCESS_LIST, DEFAULT_LIST = b"system.posix_acl_access", b"system.posix_acl_default"
_ALL = 7


class Xattrs(Metadata):
    """The requests on extended attributes.

    Each raises Refused, by the guard; OSError: EROFS for a read-only mount or object, ESTALE if a
    node's object is gone, and the source's. Reading raises ENOSYS, which the kernel caches, if
    xattrs are off.
    """

    def getxattr(self, caller: Caller, node_id: NodeId, name: bytes) -> bytes:
        """Return a value. Raises as the class says, and OSError(ENODATA) outside of ``user.``."""
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

    def setxattr(self, caller: Caller, node_id: NodeId, name: bytes, value: bytes) -> None:
        """Set a value; of an access list, the permissions in it.

        Raises as the class says; OSError: EOPNOTSUPP outside of ``user.`` or if xattrs are off,
        EACCES if they are read-only, EPERM for the access list of another user's file.
        """
        if not self._is_list(name):
            self.source.setxattr(self._fd_to_change(node_id, name), name, value)
            return
        fd, node, shown = self._listed(caller, node_id)
        if name == ACCESS_LIST:
            mode = self._changed_mode(node, fd, S_IMODE(shown) & ~0o777 | permissions_of(value))
            if mode is not None:
                self.source.chmod(fd, mode)

    def removexattr(self, caller: Caller, node_id: NodeId, name: bytes) -> None:
        """Remove an attribute; there is no access list. Raises as ``setxattr`` does."""
        if self._is_list(name):
            self._listed(caller, node_id)
        else:
            self.source.removexattr(self._fd_to_change(node_id, name), name)

    def _is_list(self, name: bytes) -> bool:
        return name in (ACCESS_LIST, DEFAULT_LIST) and self.policy.xattr is not XattrPolicy.RO

    def _listed(self, caller: Caller, node_id: NodeId) -> tuple[int, Node, int]:
        """Return a node whose access list is changed: descriptor, node and mode as shown."""
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
