"""The requests that remove or move a name: unlink, rmdir, rename.

A request that is refused or fails changes nothing, or undoes what it changed. The tables of nodes
follow what was done.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from stat import S_ISDIR, S_ISLNK

from gitguardfs.base.errors import os_error
from gitguardfs.base.protocol import RENAME_NOREPLACE, Caller, NodeId
from gitguardfs.fs.access import NodeRef
from gitguardfs.fs.boundary import Boundary, GuardedBy, guarded_by
from gitguardfs.fs.mount import Mount
from gitguardfs.fs.nodes import stale
from gitguardfs.fs.renaming import Renaming
from gitguardfs.fs.symlinks import LinkTarget, SymlinkResolver
from gitguardfs.fs.undoing import undo_or_log
from gitguardfs.names.rules import Refused
from gitguardfs.options.change_policy import Deletion


class Entries:
    """The requests that remove or move a name. Each raises RequestError.

    EACCES comes from the guard, EPERM from the change policy, EROFS from a read-only mount or
    object, ESTALE from a node whose object is gone. Other errors are the source's.
    """

    def __init__(self, mount: Mount, boundary: Boundary) -> None:
        self.boundary = boundary
        self._access = mount.access
        self._resolver = mount.resolver
        self._source = mount.source
        self._descriptors = mount.descriptors
        self._renames = mount.renames
        self._policy = mount.policy
        self._symlinks = mount.symlinks

    @guarded_by(GuardedBy.NAME)
    def unlink(self, caller: Caller, parent_id: NodeId, name: bytes) -> None:
        """Remove an entry that is not a directory. Raises RequestError."""
        self._remove(caller, parent_id, name, is_directory=False)

    @guarded_by(GuardedBy.NAME)
    def rmdir(self, caller: Caller, parent_id: NodeId, name: bytes) -> None:
        """Remove an empty directory. Raises RequestError."""
        self._remove(caller, parent_id, name, is_directory=True)

    def _remove(self, caller: Caller, parent_id: NodeId, name: bytes, is_directory: bool) -> None:
        ref = self._access.name(parent_id, name, change=True)
        fd = self._source.open_node(ref.fd, name)
        try:
            st = self._source.stat(fd)
            self._access.check_unguarded(ref, st)
            self._policy.check_removal_allowed()
            if self._symlinks is not None and S_ISLNK(st.st_mode):
                self._remove_link(caller, self._symlinks, ref)
            else:
                self._source.remove(ref.fd, name, is_directory)
        except BaseException:
            os.close(fd)
            raise
        self._resolver.note_removed(ref, st, fd)

    def _remove_link(self, caller: Caller, resolved: SymlinkResolver, ref: NodeRef) -> None:
        """Remove a symlink that is shown as its target, and the target if the policy says so."""
        deletion = resolved.deletion
        if deletion is Deletion.DENY:
            raise os_error(errno.EPERM)
        target = None
        with suppress(Refused):  # the target is forbidden: only the symlink is removed
            target = resolved.target(ref)
        takes_target = deletion in (Deletion.SYMLINK_FIRST, Deletion.TARGET_FIRST)
        if target is not None and takes_target:
            resolved.check_replaceable(caller, target)
        if target is not None and deletion is Deletion.TARGET_FIRST:
            self._remove_target(target)
        self._source.remove(ref.fd, ref.name, is_directory=False)
        if target is None:
            return
        if deletion is Deletion.SYMLINK_FIRST:
            try:
                self._remove_target(target)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:  # as bindfs: the symlink is gone in any case
                    raise
        if target.subtree is not None:  # for the kernel, the target was removed
            self._resolver.unhash_target(target.st, target.subtree)

    def _remove_target(self, target: LinkTarget) -> None:
        ref = target.ref
        fd = self._source.open_node(ref.fd, ref.name)
        try:
            st = self._source.stat(fd)
            self._source.remove(ref.fd, ref.name, S_ISDIR(st.st_mode))
        except BaseException:
            os.close(fd)
            raise
        self._resolver.note_removed(ref, st, fd)

    @guarded_by(GuardedBy.NAME)
    def rename(
        self,
        caller: Caller,
        old_parent_id: NodeId,
        old_name: bytes,
        new_parent_id: NodeId,
        new_name: bytes,
        flags: int,
    ) -> None:
        """Move an entry, replacing one at the new name, or (RENAME_EXCHANGE) swap two entries.

        Raises RequestError.
        """
        renaming = self._renames.check(
            caller, (old_parent_id, old_name), (new_parent_id, new_name), flags
        )
        try:
            self._move(renaming, flags)
            self._resolver.note_renamed(renaming)
        finally:
            while renaming.fds:
                os.close(renaming.fds.pop())

    def _move(self, renaming: Renaming, flags: int) -> None:
        """Rename, or exchange, and undo that if the new names turn out to be forbidden.

        A rename(2) that failed may have been done on a server: that is undone as well, where
        RenameCheck says so.
        """
        old, new, arrived = renaming.old, renaming.new, renaming.moved
        try:
            self._source.rename(old.fd, old.name, new.fd, new.name, flags)
        except OSError:
            if self._renames.undoes_failed(renaming):
                self._undo(renaming, flags, arrived)
            raise
        try:
            arrived = self._source.arrived(new.fd, new.name, arrived)
            if not os.path.samestat(arrived, renaming.moved):
                raise stale()  # another guard has put another object in its place
            self._renames.check_done(renaming)
        except BaseException:
            self._undo(renaming, flags, arrived)
            raise

    def _undo(self, renaming: Renaming, flags: int, arrived: os.stat_result) -> None:
        old, new = renaming.old, renaming.new

        def undo() -> None:
            # Not the descriptors in the refs: after a failed check they may be of the root (ninep).
            old_fd, new_fd = self._descriptors.of(old.parent), self._descriptors.of(new.parent)
            if not self._source.is_at(new_fd, new.name, arrived):
                return
            back = flags if renaming.exchange else RENAME_NOREPLACE
            try:
                self._source.rename(new_fd, new.name, old_fd, old.name, back)
            except OSError as error:  # 9p has no flags
                if error.errno != errno.EINVAL or self._source.find_at(old_fd, old.name):
                    raise
                self._source.rename(new_fd, new.name, old_fd, old.name, 0)

        undo_or_log(undo, lambda: self._access.path(new.parent, new.name))
