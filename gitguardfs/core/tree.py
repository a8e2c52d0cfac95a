"""The mount, one method per operation: node numbers, names and descriptors, no FUSE.

Synchronous, and only to be called from one thread: a method runs from its first check to its
last change of the tables without interruption. Reading, writing and fsync of open files wait
for disks and servers; they are functions of ``backing`` on a handle's descriptor and may run
on any thread. Errors are OSError with the errno for the caller.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from stat import S_IFDIR, S_IFMT, S_IFREG, S_ISDIR, S_ISGID
from typing import NamedTuple

from gitguardfs.core import syscalls
from gitguardfs.core.backing import SYNC_FLAGS, Backing
from gitguardfs.core.descriptors import DescriptorCache
from gitguardfs.core.gate import Gate
from gitguardfs.core.guard import Guard, Verdict
from gitguardfs.core.handles import DirectoryHandle, FileHandle, HandleTable
from gitguardfs.core.idmap import GuestGid, GuestUid, ShareUid
from gitguardfs.core.inodes import InodeTable, Node, stale
from gitguardfs.core.view import Attributes, View, digest

RACY_NS = 50_000_000
"""A file changed this recently may change again with the same time stamp (a clock tick is at
most 10 ms): its pages are not kept."""

RENAME_FLAGS = syscalls.RENAME_NOREPLACE | syscalls.RENAME_EXCHANGE
"""RENAME_WHITEOUT would leave a device behind, which only overlay mounts have a use for."""


class Caller(NamedTuple):
    """Who asks, in guest ids."""

    uid: int
    gid: int


class XattrPolicy(Enum):
    """The value of ``--xattr``: extended attributes of the user namespace."""

    NONE = "none"
    RO = "ro"
    RW = "rw"


@dataclass(frozen=True)
class Changes:
    """What setattr is to change; None leaves a thing as it is. Times are nanoseconds."""

    size: int | None = None
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    atime_ns: int | None = None
    mtime_ns: int | None = None


class Opened(NamedTuple):
    """An open file: its handle, and what has become of what the kernel remembers."""

    handle: int
    keep_pages: bool
    attributes_changed: bool


class Tree:
    """The guarded view of one source directory."""

    def __init__(
        self,
        root_fd: int,
        guard: Guard,
        view: View,
        *,
        descriptor_limit: int,
        changes_owners: bool,
        read_only: bool = False,
        xattr: XattrPolicy = XattrPolicy.NONE,
    ) -> None:
        """Serve the directory behind ``root_fd``, which stays the caller's.

        ``changes_owners`` says that the process may give files away (it is root).
        """
        root = os.fstat(root_fd)
        self.inodes = InodeTable(root)
        self.inodes.root.fd = root_fd
        self.handles = HandleTable()
        self._descriptors = DescriptorCache(descriptor_limit)
        self._backing = Backing(self._descriptors)
        self._gate = Gate(guard, self.inodes, self._descriptors, self._backing, read_only)
        self._view = view
        self._share_owner = ShareUid(root.st_uid)
        self._changes_owners = changes_owners
        self._xattr = xattr

    def close(self) -> None:
        """Close all descriptors but the root's."""
        self.handles.close_all()
        self._descriptors.close_all()

    # Names and attributes

    def lookup(self, parent_id: int, name: bytes) -> Attributes | None:
        """Find an entry; None if there is none, or none to be shown. Counts a lookup."""
        parent, dir_fd = self._gate.place(parent_id, name)
        try:
            st = self._backing.stat_at(dir_fd, name)
        except FileNotFoundError:
            return None
        node = self._see(parent, dir_fd, name, st)
        if node is None:
            return None
        node.lookups += 1
        return self._view.present(node, st)

    def _see(
        self,
        parent: Node,
        dir_fd: int,
        name: bytes,
        st: os.stat_result,
        dotgit: tuple[int, int] | bool | None = True,
    ) -> Node | None:
        judged = self._gate.judge(parent, dir_fd, name, st, dotgit)
        if judged.verdict is Verdict.HIDE:
            if judged.fd >= 0:
                os.close(judged.fd)
            return None
        node = self.inodes.see(parent, name, st, judged.verdict, judged.rule)
        if judged.fd >= 0:
            self._descriptors.keep(node, judged.fd)
        return node

    def forget(self, node_id: int, times: int) -> None:
        """The kernel forgets ``times`` lookups of a node."""
        node = self.inodes.forget(node_id, times)
        if node is not None:
            self._descriptors.close(node)

    def getattr(self, node_id: int) -> Attributes:
        """The attributes of a node; a guarded one can be looked at."""
        node = self.inodes.get(node_id)
        return self._view.present(node, self._stat(node))

    def _stat(self, node: Node) -> os.stat_result:
        if node.fd >= 0 or node.open_fds:
            return self._backing.stat(self._descriptors.of(node))
        try:
            st = self._backing.stat_at(self._descriptors.parent_of(node), node.name)
        except (FileNotFoundError, NotADirectoryError):
            raise stale() from None
        if not node.matches(st):
            raise stale()
        return st

    def setattr(self, node_id: int, changes: Changes, handle: int | None) -> Attributes:
        """Change attributes; ``handle`` is the open file through which it is asked, if any."""
        node = self._gate.node(node_id, change=True)
        fd = self._descriptors.of(node)
        uid, gid = self._share_ids(changes)
        if changes.size is not None:
            self._truncate(node, fd, changes.size, handle)
        if (uid, gid) != (-1, -1):
            self._backing.chown(fd, uid, gid)
        if changes.mode is not None:
            self._backing.chmod(fd, self._view.incoming_mode(node.kind, changes.mode))
        if changes.atime_ns is not None or changes.mtime_ns is not None:
            self._backing.utimens(fd, changes.atime_ns, changes.mtime_ns)
        return self._view.present(node, self._backing.stat(fd))

    def _share_ids(self, changes: Changes) -> tuple[int, int]:
        idmap = self._view.idmap
        return (
            -1 if changes.uid is None else idmap.share_uid(GuestUid(changes.uid)),
            -1 if changes.gid is None else idmap.share_gid(GuestGid(changes.gid)),
        )

    def _truncate(self, node: Node, fd: int, size: int, handle: int | None) -> None:
        self._strip_set_id(fd, self._backing.stat(fd))
        if handle is not None and (opened := self.handles.file(handle)).writable:
            self._backing.truncate(opened.fd, size, writable=True)
        elif node.kind == S_IFREG:
            self._backing.truncate(fd, size, writable=False)
        else:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    def _strip_set_id(self, fd: int, st: os.stat_result) -> None:
        # A write by root keeps set-id bits; the guest does not see them and cannot drop them.
        if self._view.strips(st.st_mode):
            self._backing.chmod(fd, self._view.incoming_mode(S_IFMT(st.st_mode), st.st_mode))

    def readlink(self, node_id: int) -> bytes:
        """The text of a symlink."""
        node = self._gate.node(node_id)
        return self._backing.readlink(self._descriptors.of(node))

    def access(self, node_id: int, mask: int) -> None:
        """Whether the guard lets ``mask`` (access(2)) be done; permissions are the kernel's."""
        self._gate.node(node_id, change=bool(mask & os.W_OK))

    def statfs(self) -> os.statvfs_result:
        """Size and free space."""
        return self._backing.statvfs(self.inodes.root.fd)

    # New names

    def mkdir(self, caller: Caller, parent_id: int, name: bytes, mode: int) -> Attributes:
        """Make a directory, which belongs to the caller."""

        def make(dir_fd: int) -> int:
            self._backing.mkdir(dir_fd, name, mode)
            return -1

        return self._add(caller, parent_id, name, S_IFDIR | mode, make)[1]

    def mknod(
        self, caller: Caller, parent_id: int, name: bytes, mode: int, rdev: int
    ) -> Attributes:
        """Make a file, FIFO, socket or device, which belongs to the caller."""
        mode = S_IFMT(mode) | self._view.incoming_mode(S_IFMT(mode), mode)

        def make(dir_fd: int) -> int:
            self._backing.mknod(dir_fd, name, mode, rdev)
            return -1

        return self._add(caller, parent_id, name, mode, make)[1]

    def symlink(self, caller: Caller, parent_id: int, name: bytes, target: bytes) -> Attributes:
        """Make a symlink, which belongs to the caller."""

        def make(dir_fd: int) -> int:
            self._backing.symlink(dir_fd, name, target)
            return -1

        return self._add(caller, parent_id, name, 0, make)[1]

    def link(self, node_id: int, parent_id: int, name: bytes) -> Attributes:
        """Give a file another name."""
        node = self._gate.node(node_id, change=True)
        fd = self._descriptors.of(node)

        def make(dir_fd: int) -> int:
            self._backing.link(fd, dir_fd, name)
            return -1

        return self._add(None, parent_id, name, node.kind, make)[1]

    def create(
        self, caller: Caller, parent_id: int, name: bytes, mode: int, flags: int
    ) -> tuple[Opened, Attributes]:
        """Make a file and open it.

        One that is there by now is not opened, for the kernel has not checked its permissions:
        ESTALE makes it look the name up again and open what it finds (do_filp_open).
        """
        mode = self._view.incoming_mode(S_IFREG, mode)

        def make(dir_fd: int) -> int:
            try:
                return self._backing.create(dir_fd, name, _backing_flags(flags), mode)
            except FileExistsError:
                if flags & os.O_EXCL:
                    raise
                raise stale() from None

        node, attributes, fd = self._add_node(caller, parent_id, name, S_IFREG | mode, make)
        handle = self.handles.add_file(FileHandle(node, fd, flags))
        return Opened(handle, keep_pages=False, attributes_changed=False), attributes

    def _add(
        self,
        caller: Caller | None,
        parent_id: int,
        name: bytes,
        mode: int,
        make: Callable[[int], int],
    ) -> tuple[Node, Attributes]:
        node, attributes, _ = self._add_node(caller, parent_id, name, mode, make)
        return node, attributes

    def _add_node(
        self,
        caller: Caller | None,
        parent_id: int,
        name: bytes,
        mode: int,
        make: Callable[[int], int],
    ) -> tuple[Node, Attributes, int]:
        """Add a name: check it, make it, give it to the caller; all of that or nothing."""
        parent, dir_fd = self._gate.place(parent_id, name, change=True)
        owner = self._new_owner(caller)
        is_directory = S_ISDIR(mode)
        locks: dict[int, int] = {}
        try:
            self._gate.admit(parent, dir_fd, name, is_directory, locks)
            fd = make(dir_fd)
            try:
                st = self._backing.stat(fd) if fd >= 0 else self._backing.stat_at(dir_fd, name)
                self._gate.not_dotgit(parent, dir_fd, name, st)
                if owner is not None:
                    st = self._give(owner, dir_fd, name, fd, st, mode)
                node = self._see(parent, dir_fd, name, st)
                if node is None:
                    raise stale()
            except BaseException:
                if fd >= 0:
                    os.close(fd)
                with suppress(OSError):
                    self._backing.remove(dir_fd, name, is_directory)
                raise
        finally:
            for lock in locks.values():
                os.close(lock)
        node.lookups += 1
        return node, self._view.present(node, st), fd

    def _new_owner(self, caller: Caller | None) -> tuple[int, int] | None:
        if caller is None or not self._changes_owners:
            return None
        idmap = self._view.idmap
        return idmap.share_uid(GuestUid(caller.uid)), idmap.share_gid(GuestGid(caller.gid))

    def _give(
        self,
        owner: tuple[int, int],
        dir_fd: int,
        name: bytes,
        fd: int,
        st: os.stat_result,
        mode: int,
    ) -> os.stat_result:
        """Give a new object to ``owner``; OSError if it would stay somebody else's."""
        uid = -1 if st.st_uid == owner[0] else owner[0]
        gid = -1 if st.st_gid == owner[1] else owner[1]
        if gid != -1 and self._backing.stat(dir_fd).st_mode & S_ISGID:
            gid = -1
        if (uid, gid) == (-1, -1):
            return st
        try:
            if fd >= 0:
                self._backing.chown(fd, uid, gid)
            else:
                self._backing.chown_at(dir_fd, name, uid, gid)
        except OSError:
            # A share with one owner for all (QEMU's security_model=none) keeps it so.
            if st.st_uid in (owner[0], self._share_owner):
                return st
            raise
        if fd >= 0 and mode & 0o6000:
            self._backing.chmod(fd, mode & 0o7777)  # chown took the set-id bits
        return self._backing.stat(fd) if fd >= 0 else self._backing.stat_at(dir_fd, name)

    # Names that go or move

    def unlink(self, parent_id: int, name: bytes) -> None:
        """Remove an entry that is no directory."""
        self._remove(parent_id, name, is_directory=False)

    def rmdir(self, parent_id: int, name: bytes) -> None:
        """Remove an empty directory."""
        self._remove(parent_id, name, is_directory=True)

    def _remove(self, parent_id: int, name: bytes, is_directory: bool) -> None:
        parent, dir_fd = self._gate.place(parent_id, name, change=True)
        fd = self._backing.open_node(dir_fd, name)
        try:
            st = self._backing.stat(fd)
            self._gate.allowed(parent, dir_fd, name, st)
            self._backing.remove(dir_fd, name, is_directory)
        except BaseException:
            os.close(fd)
            raise
        self._lose_name(parent, name, st, fd)

    def _lose_name(self, parent: Node, name: bytes, st: os.stat_result, fd: int) -> None:
        """Note that ``name`` is gone; ``fd``, of the object, is now ours to keep or close.

        What the kernel still uses can only be reached by descriptor from now on.
        """
        node = self.inodes.find(st, guarded=False)
        if node is None:
            os.close(fd)
            return
        self._descriptors.keep(node, fd)
        last = node.is_directory or st.st_nlink <= 1
        if last:
            self.inodes.detach(node)
            self._descriptors.pin(node)
        if last or (node.parent is parent and node.name == name):
            node.parent = None

    def rename(
        self, old_parent_id: int, old: bytes, new_parent_id: int, new: bytes, flags: int
    ) -> None:
        """Move an entry, replace another by it, or (RENAME_EXCHANGE) swap two."""
        old_parent, old_fd = self._gate.place(old_parent_id, old, change=True)
        new_parent, new_fd = self._gate.place(new_parent_id, new, change=True)
        if flags & ~RENAME_FLAGS:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        exchange = bool(flags & syscalls.RENAME_EXCHANGE)
        same = old_parent is new_parent
        locks: dict[int, int] = {}
        fds: list[int] = []
        try:
            moved = self._take(old_parent, old_fd, old, fds, moves=True)
            target = None
            with suppress(FileNotFoundError):
                target = self._take(new_parent, new_fd, new, fds, moves=exchange)
            self._gate.admit(
                new_parent, new_fd, new, S_ISDIR(moved.st_mode), locks, old if same else b""
            )
            if exchange and target is not None:
                self._gate.admit(
                    old_parent, old_fd, old, S_ISDIR(target.st_mode), locks, new if same else b""
                )
            self._backing.rename(old_fd, old, new_fd, new, flags)
            self._undo_if_dotgit(old_parent, old_fd, old, new_parent, new_fd, new, flags)
            self._note_rename(
                (old_parent, old), (new_parent, new), moved, target, exchange, fds
            )
        finally:
            for fd in (*locks.values(), *fds):
                os.close(fd)

    def _take(
        self, parent: Node, dir_fd: int, name: bytes, fds: list[int], moves: bool
    ) -> os.stat_result:
        """Look at an end of a rename; its descriptor is added to ``fds``."""
        fd = self._backing.open_node(dir_fd, name)
        fds.append(fd)
        st = self._backing.stat(fd)
        self._gate.allowed(parent, dir_fd, name, st)
        if moves:
            self._gate.movable(parent, name, fd, st)
        return st

    def _undo_if_dotgit(
        self,
        old_parent: Node, old_fd: int, old: bytes,
        new_parent: Node, new_fd: int, new: bytes,
        flags: int,
    ) -> None:  # fmt: skip
        try:
            self._gate.not_dotgit(
                new_parent, new_fd, new, self._backing.stat_at(new_fd, new)
            )
            if flags & syscalls.RENAME_EXCHANGE:
                self._gate.not_dotgit(
                    old_parent, old_fd, old, self._backing.stat_at(old_fd, old)
                )
        except OSError:
            self._backing.rename(new_fd, new, old_fd, old, flags)
            raise

    def _note_rename(
        self,
        old: tuple[Node, bytes],
        new: tuple[Node, bytes],
        moved: os.stat_result,
        target: os.stat_result | None,
        exchange: bool,
        fds: list[int],
    ) -> None:
        if target is not None and (moved.st_dev, moved.st_ino) == (target.st_dev, target.st_ino):
            return  # two links of one file: rename(2) does nothing
        if target is not None and exchange:
            self._note_place(target, *old)
        elif target is not None:
            self._lose_name(*new, target, fds.pop())
        self._note_place(moved, *new)

    def _note_place(self, st: os.stat_result, parent: Node, name: bytes) -> None:
        node = self.inodes.find(st, guarded=False)
        if node is not None:
            node.parent, node.name = parent, name

    # Open files

    def open(self, node_id: int, flags: int) -> Opened:
        """Open a file, and say what the kernel may still believe of it (close-to-open)."""
        writes = flags & os.O_ACCMODE != os.O_RDONLY
        node = self._gate.node(node_id, change=writes or bool(flags & os.O_TRUNC))
        if node.kind != S_IFREG:
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
        fd = self._open(node, _backing_flags(flags))
        try:
            st = self._backing.stat(fd)
            if writes or flags & os.O_TRUNC:
                self._strip_set_id(fd, st)
            if flags & os.O_TRUNC:
                self._backing.truncate(fd, 0, writable=writes)
                st = self._backing.stat(fd)
            told = digest(st)
            same = told == node.told
            node.told, node.size = told, st.st_size
            handle = self.handles.add_file(FileHandle(node, fd, flags))
        except BaseException:
            os.close(fd)
            raise
        return Opened(handle, same and time.time_ns() - st.st_ctime_ns > RACY_NS, not same)

    def _open(self, node: Node, flags: int) -> int:
        if node.fd >= 0 or node.open_fds:
            return self._backing.open_file(self._descriptors.of(node), flags)
        try:
            fd = self._backing.open_file_at(self._descriptors.parent_of(node), node.name, flags)
        except FileNotFoundError:
            raise stale() from None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                raise stale() from None
            raise
        if not node.matches(self._backing.stat(fd)):
            os.close(fd)
            raise stale()
        return fd

    def write_offset(self, handle: FileHandle, offset: int) -> int | None:
        """Where a write has to go; None for the end of the file.

        The kernel writes for O_APPEND where it believes the end to be, but the host may have
        made the file longer. A page of a shared mapping that happens to be written back
        through an append handle begins before that end.
        """
        return None if handle.append and offset >= handle.node.size else offset

    def wrote(self, handle: FileHandle, offset: int, length: int) -> None:
        """Note a write that the kernel counts as ``length`` bytes at ``offset``."""
        node = handle.node
        node.size = max(node.size, offset + length)

    def release(self, handle: int) -> None:
        """Close a file."""
        self.handles.release_file(handle)

    # Directories

    def opendir(self, node_id: int) -> int:
        """Open a directory."""
        return self.handles.add_directory(DirectoryHandle(self._gate.node(node_id)))

    def directory_descriptor(self, handle: int) -> int:
        """A new descriptor of an open directory, for fsync; the caller closes it."""
        node = self._gate.node(self.handles.directory(handle).node.id)
        return self._backing.open_directory(self._descriptors.of(node))

    def read_directory(
        self, number: int, position: int
    ) -> Iterator[tuple[bytes, Attributes, int, Node | None]]:
        """Entries from ``position`` on: name, attributes, next position, and the node.

        The node is None for ``.`` and ``..``. For others the caller counts a lookup when it
        has told the kernel, and calls ``unused`` when it has not.
        """
        handle = self.handles.directory(number)
        if handle.node.verdict is not Verdict.ALLOW:
            self._gate.node(handle.node.id)
        dir_fd = self._descriptors.of(handle.node)
        if handle.names is None or position == 0:
            entries = self._backing.names(dir_fd)
            handle.names = [b".", b"..", *(n for n in entries if not self._gate.hidden(n))]
        dotgit = self._gate.dotgit(dir_fd)
        for index in range(position, len(handle.names)):
            name = handle.names[index]
            if index < 2:
                yield name, self._dots(handle.node, name), index + 1, None
                continue
            try:
                st = self._backing.stat_at(dir_fd, name)
                node = self._see(handle.node, dir_fd, name, st, dotgit)
            except OSError:
                continue  # gone since the snapshot
            if node is not None:
                yield name, self._view.present(node, st), index + 1, node

    def _dots(self, node: Node, name: bytes) -> Attributes:
        attributes = self._view.present(node, self._backing.stat(self._descriptors.of(node)))
        if name == b".." and node.parent is not None:
            return attributes._replace(ino=node.parent.id)
        return attributes

    def unused(self, node: Node) -> None:
        """A node was made for the kernel, which then was not told of it."""
        if node.lookups == 0:
            self.inodes.drop(node)
            self._descriptors.close(node)

    def releasedir(self, handle: int) -> None:
        """Close a directory."""
        self.handles.release_directory(handle)

    # Extended attributes

    def getxattr(self, node_id: int, name: bytes) -> bytes:
        """A value; ENOSYS, which the kernel remembers, when they are off."""
        node = self._xattr_node(node_id)
        if not name.startswith(b"user."):
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
        return self._backing.getxattr(self._descriptors.of(node), name)

    def listxattr(self, node_id: int) -> list[bytes]:
        """Their names; ENOSYS, which the kernel remembers, when they are off."""
        found = self._backing.listxattr(self._descriptors.of(self._xattr_node(node_id)))
        return [name for name in found if name.startswith(b"user.")]

    def _xattr_node(self, node_id: int) -> Node:
        node = self._gate.node(node_id)
        if self._xattr is XattrPolicy.NONE:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        return node

    def setxattr(self, node_id: int, name: bytes, value: bytes) -> None:
        """Set a value."""
        self._backing.setxattr(self._changeable_xattr(node_id, name), name, value)

    def removexattr(self, node_id: int, name: bytes) -> None:
        """Remove one."""
        self._backing.removexattr(self._changeable_xattr(node_id, name), name)

    def _changeable_xattr(self, node_id: int, name: bytes) -> int:
        # Other namespaces carry ids, capabilities and labels of the share: never the guest's.
        node = self._gate.node(node_id, change=True)
        if self._xattr is XattrPolicy.RO:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        if self._xattr is XattrPolicy.NONE or not name.startswith(b"user."):
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return self._descriptors.of(node)


def _backing_flags(flags: int) -> int:
    return flags & (os.O_ACCMODE | SYNC_FLAGS)
