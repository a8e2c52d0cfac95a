"""The mount, one method per operation: node numbers, names and descriptors, no FUSE.

Synchronous, and only to be called from one thread: a method runs from its first check to its
last change of the tables without interruption. Reading, writing and fsync of open files wait
for disks and servers; they are functions of ``source`` on a handle's descriptor and may run
on any thread. Errors are OSError with the errno for the caller.

Here are lookups, attributes and directories; ``entries`` has what changes names, ``files``
open files, ``mount_state`` the tables.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from stat import S_IFDIR, S_IFREG, S_IMODE
from typing import NamedTuple

from gitguardfs.bindfs.change_policy import XattrPolicy
from gitguardfs.bindfs.idmap import GuestGid, GuestUid
from gitguardfs.fs.access import NodeRef
from gitguardfs.fs.attributes import Attributes
from gitguardfs.fs.handles import DirectoryHandle
from gitguardfs.fs.nodes import ROOT_ID, Node, ObjectKey, stale
from gitguardfs.linux.syscalls import NOW
from gitguardfs.serving.files import Files

JUST_NOW_NS = 100_000_000
"""How long a setattr may be under way on a slow machine."""


UNKNOWN_INODE = 0xFFFFFFFF
"""What an entry is given that could not be looked at, as by libfuse (FUSE_UNKNOWN_INO)."""


class Entry(NamedTuple):
    """One entry of a listing."""

    name: bytes
    position: int
    """Where to go on after it."""
    attributes: Attributes | None = None
    """None if only type and inode number are told, as of ``.`` and ``..``."""
    node: Node | None = None
    """None where there are no attributes."""
    kind: int = 0
    inode: int = 0


@dataclass(frozen=True)
class Changes:
    """What setattr is to change; None leaves a thing as it is. Times are nanoseconds."""

    size: int | None = None
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    atime_ns: int | None = None
    mtime_ns: int | None = None


class Tree(Files):
    """The guarded view of one source directory."""

    def close(self) -> None:
        """Close all descriptors but the root's."""
        self.handles.close_all()
        self._descriptors.close_all()

    # Names and attributes

    def lookup(self, parent_id: int, name: bytes, viewer: int) -> Attributes | None:
        """Find an entry; None if there is none, or none to be shown. Counts a lookup.

        ``viewer``, here and below, is the user who looks.
        """
        place = self._access.name(parent_id, name)
        try:
            st = self._source.stat_at(place.fd, name)
        except FileNotFoundError:
            return None
        node, st = self._look_at(place, st)
        if node is None:
            return None
        found = self._present_found(node, st, viewer)
        node.lookup_count += 1
        return found

    def forget(self, node_id: int, times: int) -> None:
        """The kernel forgets ``times`` lookups of a node."""
        step = self.nodes.forget(node_id, times)
        way: set[Node] = set()
        # Directories above that were forgotten before may have been opened for its sake.
        while step is not None and step.lookup_count <= 0 and step not in way:
            way.add(step)
            self._descriptors.close(step)
            step = step.parent

    def getattr(self, node_id: int, viewer: int) -> Attributes:
        """The attributes of a node; a guarded one can be looked at."""
        if node_id == ROOT_ID:
            self._access.revalidation.look_at_root()
        node = self.nodes.get(node_id)
        return self._view.present(node, self._stat(node), viewer)

    def _stat(self, node: Node) -> os.stat_result:
        if node.fd >= 0 or node.open_fds:
            return self._source.stat(self._descriptors.of(node))
        try:
            st = self._source.stat_at(self._descriptors.parent_of(node), node.name)
        except (FileNotFoundError, NotADirectoryError):
            raise stale() from None
        if not node.matches(st):
            raise stale()
        return st

    def setattr(
        self, node_id: int, changes: Changes, handle: int | None, viewer: int
    ) -> Attributes:
        """Change attributes; ``handle`` is the open file through which it is asked, if any."""
        node = self._access.node(node_id, change=True)
        fd = self._descriptors.of(node)
        uid, gid = self._share_ids(changes)
        mode = self._new_mode_of(node, fd, changes)
        if changes.size is not None:
            self._truncate(node, fd, changes.size, handle)
        if (uid, gid) != (-1, -1) or changes == Changes():  # chown(-1, -1) moves ctime
            self._source.chown(fd, uid, gid)
        if mode is not None:
            self._source.chmod(fd, mode)
        atime_ns, mtime_ns = self._times(changes, self._is_local(node.dev))
        if atime_ns is not None or mtime_ns is not None:
            self._source.utimens(fd, atime_ns, mtime_ns)
        self._host.note_attributes(node, fd)
        return self._view.present(node, self._source.stat(fd), viewer)

    def _new_mode_of(self, node: Node, fd: int, changes: Changes) -> int | None:
        if changes.mode is None:
            return None
        old, new = (
            node.kind | self._view.incoming_mode(node.kind, mode)
            for mode in (self._source.stat(fd).st_mode, changes.mode)
        )
        mode = self._policy.mode(old, new)
        return None if mode is None else S_IMODE(mode)

    def _times(self, changes: Changes, is_local: bool) -> tuple[int | None, int | None]:
        """The times to set, with "now" by the clock that stamps the source's files.

        The kernel turns "now" into a time of this machine's clock. With a size it is always
        "now", which the change of the size has set already. Else, on a share, a time that has
        only just passed is taken for it: make(1) must not see files of two clocks.
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

    def _share_ids(self, changes: Changes) -> tuple[int, int]:
        idmap = self._view.idmap
        uid, gid = self._policy.owners(changes.uid, changes.gid)
        return (
            -1 if uid is None else idmap.share_uid(GuestUid(uid)),
            -1 if gid is None else idmap.share_gid(GuestGid(gid)),
        )

    def _truncate(self, node: Node, fd: int, size: int, handle: int | None) -> None:
        self._strip_set_id(fd, self._source.stat(fd))
        if handle is not None and (opened := self.handles.file(handle)).writable:
            self._source.truncate(opened.fd, size, writable=True)
        elif node.kind == S_IFREG:
            self._source.truncate(fd, size, writable=False)
        else:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    def readlink(self, node_id: int) -> bytes:
        """The text of a symlink."""
        node = self._access.node(node_id)
        return self._source.readlink(self._descriptors.of(node))

    def access(self, node_id: int, mask: int) -> None:
        """Whether the guard lets ``mask`` (access(2)) be done; permissions are the kernel's."""
        self._access.node(node_id, change=bool(mask & os.W_OK))

    def statfs(self) -> os.statvfs_result:
        """Size and free space."""
        return self._source.statvfs(self.nodes.root.fd)

    # Directories

    def opendir(self, node_id: int, viewer: int) -> int:
        """Open a directory."""
        return self.handles.add_directory(DirectoryHandle(self._access.node(node_id), viewer))

    def directory_descriptor(self, handle: int) -> tuple[int, bool]:
        """A new descriptor of an open directory, for fsync, and whether that is local.

        The caller closes it.
        """
        node = self._access.node(self.handles.directory(handle).node.id)
        fd = self._source.open_directory(self._descriptors.of(node))
        return fd, self._is_local(node.dev)

    def read_directory(
        self, number: int, position: int, names_only: bool = False
    ) -> Iterator[Entry]:
        """Entries from ``position`` on.

        With ``names_only``, which needs ``can_list_names_only``, files and symlinks of the
        source's own file system come without attributes. For each entry with a node the caller
        counts a lookup when it has told the kernel, and calls ``unreport`` when it has not. An
        entry that cannot be looked at has neither attributes nor a type.
        """
        handle = self.handles.directory(number)
        self._access.node(handle.node.id)
        dir_fd = self._descriptors.of(handle.node)
        # What is mounted below the source has nodes whose numbers are not its inode numbers.
        names_only = names_only and handle.node.dev == self.nodes.root.dev
        if handle.names is None or position == 0:
            names = self._take_snapshot(handle, dir_fd, names_only)
        else:
            names = handle.names
        types = handle.types if names_only else {}
        dotgit: ObjectKey | bool | None = True
        for index in range(position, len(names)):
            name = names[index]
            kind, inode = _dots(handle.node, name) if index < 2 else types.get(name, (S_IFDIR, 0))
            if index < 2 or (kind != S_IFDIR and self._access.is_ordinary(name)):
                yield Entry(name, index + 1, kind=kind, inode=inode)
                continue
            try:
                dir_fd = self._descriptors.of(handle.node)
                if dotgit is True:
                    dotgit = self._access.dotgit(dir_fd)
                st = self._source.stat_at(dir_fd, name)
                node, st = self._look_at(NodeRef(handle.node, dir_fd, name), st, dotgit)
                if node is None:
                    continue
                shown = self._present_found(node, st, handle.viewer)
            except FileNotFoundError:
                continue  # gone since the snapshot
            except OSError:  # told by name alone, so that its own lookup gives the error
                if not self._access.hides(name):
                    yield Entry(name, index + 1, inode=UNKNOWN_INODE)
                continue
            yield Entry(name, index + 1, shown, node)

    def _take_snapshot(self, handle: DirectoryHandle, dir_fd: int, typed: bool) -> list[bytes]:
        types = self._source.typed_names(dir_fd) if typed else {}
        names = [b".", b"..", *(types or self._source.names(dir_fd))]
        self.handles.keep_names(handle, names)
        handle.types = types
        return names

    def unreport(self, node: Node) -> None:
        """The kernel was not told what ``read_directory`` gave of this node."""
        node.reported = 0
        self._drop_unknown(node)

    def releasedir(self, handle: int) -> None:
        """Close a directory."""
        self.handles.release_directory(handle)

    # Extended attributes

    def getxattr(self, node_id: int, name: bytes) -> bytes:
        """A value; ENOSYS, which the kernel remembers, when they are off."""
        node = self._xattr_node(node_id)
        if not name.startswith(b"user."):
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
        return self._source.getxattr(self._descriptors.of(node), name)

    def listxattr(self, node_id: int) -> list[bytes]:
        """Their names; ENOSYS, which the kernel remembers, when they are off."""
        found = self._source.listxattr(self._descriptors.of(self._xattr_node(node_id)))
        return [name for name in found if name.startswith(b"user.")]

    def _xattr_node(self, node_id: int) -> Node:
        node = self._access.node(node_id)
        if self._policy.xattr is XattrPolicy.NONE:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        return node

    def setxattr(self, node_id: int, name: bytes, value: bytes) -> None:
        """Set a value."""
        self._change_xattr(node_id, name, lambda fd: self._source.setxattr(fd, name, value))

    def removexattr(self, node_id: int, name: bytes) -> None:
        """Remove one."""
        self._change_xattr(node_id, name, lambda fd: self._source.removexattr(fd, name))

    def _change_xattr(self, node_id: int, name: bytes, change: Callable[[int], None]) -> None:
        # Other namespaces carry ids, capabilities and labels of the share: never the guest's.
        node = self._access.node(node_id, change=True)
        if self._policy.xattr is XattrPolicy.RO:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        if self._policy.xattr is XattrPolicy.NONE or not name.startswith(b"user."):
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        fd = self._descriptors.of(node)
        change(fd)
        self._host.note_attributes(node, fd)


def _dots(node: Node, name: bytes) -> tuple[int, int]:
    """Type and inode number of ``.`` or ``..`` in a directory; the mount's root is its own."""
    if name == b".." and node.parent is not None:
        node = node.parent
    return S_IFDIR, node.ino if node.id == ROOT_ID else node.id
