"""The requests that add a name: mkdir, mknod, symlink, link, and ``create`` of an open file.

Each checks the name, makes the object, checks it again and gives it to the caller's user. If one
of these steps fails, the new name is removed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial
from stat import S_IFDIR, S_IFLNK, S_IFMT, S_IMODE, S_ISDIR, S_ISGID, S_ISREG

from gitguardfs.base.constants import PERMISSION_BITS, SET_ID_BITS
from gitguardfs.base.errors import os_error
from gitguardfs.base.protocol import Caller, EntryReply, NodeId
from gitguardfs.fs.access import NodeRef
from gitguardfs.fs.nodes import Node, stale
from gitguardfs.fs.parts import Parts

CLOCK_TICK_NS = 20_000_000
"""Nanoseconds: twice the longest tick. File systems stamp with a clock that may be one behind."""

OWNS_ALL = (errno.EPERM, errno.EACCES, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)
"""The errors of chown(2) on a share that cannot change owners. Any other error is a failure."""


class NewEntries(Parts):
    """The requests that add a name. Errors: see ``tree``."""

    def mkdir(self, caller: Caller, parent_id: NodeId, name: bytes, mode: int) -> EntryReply:
        """Make a directory that belongs to the caller."""
        mode = self.new_mode(S_IFDIR, mode)
        ref = self.check.name(parent_id, name, change=True)
        return self.add(caller, ref, mode, partial(self.source.mkdir, ref.fd, name, S_IMODE(mode)))[
            1
        ]

    def mknod(
        self, caller: Caller, parent_id: NodeId, name: bytes, mode: int, rdev: int
    ) -> EntryReply:
        """Make a file, FIFO, socket or device that belongs to the caller."""
        mode = self.new_mode(S_IFMT(mode), mode)
        ref = self.check.name(parent_id, name, change=True)
        return self.add(caller, ref, mode, partial(self.source.mknod, ref.fd, name, mode, rdev))[1]

    def symlink(self, caller: Caller, parent_id: NodeId, name: bytes, target: bytes) -> EntryReply:
        """Make a symlink that belongs to the caller; EPERM if the mount resolves symlinks."""
        ref = self.check.name(parent_id, name, change=True)
        if self.symlinks is not None:
            raise os_error(errno.EPERM)
        stored = self.link_check.text_to_store(ref, target)
        make = partial(self.source.symlink, ref.fd, name, stored)
        return self.add(caller, ref, S_IFLNK, make, stored=stored)[1]

    def link(self, caller: Caller, node_id: NodeId, parent_id: NodeId, name: bytes) -> EntryReply:
        """Give a file another name; its owner does not change."""
        node = self.check.node(node_id, change=True)
        self.check.check_place(node)
        ref = self.check.name(parent_id, name, change=True)
        fd = self.descriptors.of(node)
        stored = None
        if node.file_type == S_IFLNK:
            stored = self.source.readlink(fd)
            self.link_check.check_fits(ref, stored)
        make = partial(self.source.link, fd, ref.fd, name)
        entry = self.add(caller, ref, node.file_type, make, node, stored)[1]
        self.descriptors.unpin(node)
        return entry

    def new_mode(self, file_type: int, mode: int) -> int:
        """Return the mode, with its type, of a new object that was requested with ``mode``."""
        mode = file_type | self.attributes.mode_for_source(file_type, mode)
        perms = self.policy.create_with_perms
        return mode if perms is None else perms.apply(mode)

    def add(
        self,
        caller: Caller,
        ref: NodeRef,
        mode: int,
        make: Callable[[], int | None],
        linked: Node | None = None,
        stored: bytes | None = None,
    ) -> tuple[Node, EntryReply, int]:
        """Add a name: check it, make it, give it to the caller's user; all of that or nothing.

        ``make`` adds the name; it may return a descriptor of the new object. ``mode`` has the file
        type and the permission bits of the new object. ``linked`` is the node that gets another
        name, if no object is made. ``stored`` is the text of a symlink.

        Returns the node, the reply and that descriptor or -1; counts a lookup.
        """
        if not ref.is_plain:
            self.new_names.check_type(ref, S_IFMT(mode))
            self.new_names.check_completes_no_repository(ref, S_ISDIR(mode))
        directory = self.source.stat(ref.fd)
        owner = self.owner_in(directory, caller) if linked is None else None
        try:
            returned = make() if ref.is_plain else self._make(ref, mode, make, linked)
        except FileExistsError:
            if not self.source.is_taken_only_here(ref.fd, ref.name):
                raise
            returned = self._make(ref, mode, make, linked)
        fd = -1 if returned is None else returned
        return self.add_made(caller, ref, mode, owner, directory, fd, linked, stored)

    def owner_in(self, directory: os.stat_result, caller: Caller) -> tuple[int, int] | None:
        """Return the owner in share ids of a new object; None if the daemon cannot give it away.

        -1 leaves an id as the file system sets it. Raises OSError(EOVERFLOW).
        """
        if not self.can_chown:
            return None
        return self.new_owner(caller.uid, caller.gid, bool(directory.st_mode & S_ISGID))

    def add_made(
        self,
        caller: Caller,
        ref: NodeRef,
        mode: int,
        owner: tuple[int, int] | None,
        directory: os.stat_result,
        fd: int = -1,
        linked: Node | None = None,
        stored: bytes | None = None,
    ) -> tuple[Node, EntryReply, int]:
        """Check a name that was made, and give its object to ``owner``; or remove it again.

        ``directory`` has the attributes of the directory before. ``fd`` is a descriptor of the new
        object, or -1. For the rest see ``add``.
        """
        made = fd
        is_ours = True
        try:
            if fd < 0:
                made = self.source.open_node(ref.fd, ref.name)
            st = self.source.stat(made)
            if fd < 0:
                before = directory.st_ctime_ns - CLOCK_TICK_NS if linked is None else 0
                birth = self.source.btime_ns(made) if before else 0
                is_ours = S_IFMT(st.st_mode) == S_IFMT(mode) and not 0 < birth < before
                if not is_ours:  # an older object, moved here through another guard
                    # Or, over 9p, link(2) has named what another guard had put at the node's path.
                    is_ours = linked is not None and not self.descriptors.holds_objects
                    raise stale()
                if stored is not None:
                    stored = self.source.readlink(made)
            if not ref.is_plain:
                self.new_names.check_added(ref, S_ISDIR(mode))
            if stored is not None:
                self.link_check.check_fits(ref, stored)
            if owner is not None and owner != (st.st_uid, st.st_gid):
                st = self._give(owner, made, st, mode)
            if linked is None:
                self.resolver.release_number(ref, st)
            found = self.resolver.entry(ref, st, caller.uid, made=made)
            if found is None:
                raise stale()
        except BaseException:
            if is_ours:
                self._remove_new(ref, made, mode, linked)
            if made >= 0:
                os.close(made)
            raise
        if fd < 0:
            os.close(made)
        return (*found, fd)

    def _make(
        self, ref: NodeRef, mode: int, make: Callable[[], int | None], linked: Node | None
    ) -> int | None:
        """Run ``make``. If it fails, remove what a server has made all the same, if it matters.

        A name matters that could be ``.git`` or a part of a repository. What had the name before
        the call is left alone.
        """
        was_free = self.new_names.matters(ref.name)
        was_free = was_free and self.source.find_at(ref.fd, ref.name) is None
        try:
            return make()
        except FileExistsError:
            raise
        except OSError:
            if was_free:
                self._remove_new(ref, -1, mode, linked)
            raise

    def _remove_new(self, ref: NodeRef, made: int, mode: int, linked: Node | None) -> None:
        """Remove the name that was just made, if it still leads to the new object.

        ``made`` is a descriptor of the new object. If there is none (-1), the object at the name
        must be the ``linked`` one, or have the type of ``mode`` and no content.
        """

        def undo() -> None:
            # Not the descriptor in ``ref``: after a failed check it may be of the root (ninep).
            dir_fd = self.descriptors.of(ref.parent)
            st = self.source.find_at(dir_fd, ref.name)
            if st is None:
                return
            if made >= 0:
                is_it = os.path.samestat(st, self.source.stat(made))
            elif linked is not None:
                is_it = linked.matches(st)
            else:
                is_it = S_IFMT(st.st_mode) == S_IFMT(mode) and not (
                    S_ISREG(st.st_mode) and st.st_size
                )
            if is_it:
                self.source.remove(dir_fd, ref.name, S_ISDIR(mode))

        self.undo_or_log(undo, ref.parent, ref.name)

    def _give(
        self, owner: tuple[int, int], fd: int, st: os.stat_result, mode: int
    ) -> os.stat_result:
        """Give a new object to ``owner``; return its stat. OSError if another user would own it."""
        uid = -1 if st.st_uid == owner[0] else owner[0]
        gid = -1 if st.st_gid == owner[1] else owner[1]
        if (uid, gid) == (-1, -1):
            return st
        try:
            self.source.chown(fd, uid, gid)
        except OSError as error:
            # A share may have one owner for all files (QEMU's security_model=none).
            if error.errno in OWNS_ALL and st.st_uid in (owner[0], self.share_owner):
                return st
            raise
        if mode & SET_ID_BITS and not S_ISDIR(mode):
            self.source.chmod(fd, mode & PERMISSION_BITS)  # chown(2) cleared the set-id bits
        return self.source.stat(fd)
