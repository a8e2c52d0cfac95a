"""The requests that remove a name: unlink and rmdir."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from stat import S_ISDIR, S_ISLNK

from gitguardfs.base.errors import os_error
from gitguardfs.base.protocol import Caller, NodeId
from gitguardfs.fs.access import NodeRef
from gitguardfs.fs.parts import Parts
from gitguardfs.fs.symlinks import LinkTarget, SymlinkResolver
from gitguardfs.names.rules import Refused
from gitguardfs.options.change_policy import Deletion


class Removals(Parts):
    """The requests that remove a name. Errors: see ``tree``."""

    def unlink(self, caller: Caller, parent_id: NodeId, name: bytes) -> None:
        """Remove an entry that is not a directory."""
        self._remove(caller, parent_id, name, is_directory=False)

    def rmdir(self, caller: Caller, parent_id: NodeId, name: bytes) -> None:
        """Remove an empty directory."""
        self._remove(caller, parent_id, name, is_directory=True)

    def _remove(self, caller: Caller, parent_id: NodeId, name: bytes, is_directory: bool) -> None:
        ref = self.check.name(parent_id, name, change=True)
        fd = self.source.open_node(ref.fd, name)
        try:
            st = self.source.stat(fd)
            self.check.check_unguarded(ref, st)
            if self.policy.delete_deny:
                raise os_error(errno.EPERM)
            if self.symlinks is not None and S_ISLNK(st.st_mode):
                self._remove_link(caller, self.symlinks, ref)
            else:
                self.source.remove(ref.fd, name, is_directory)
        except BaseException:
            os.close(fd)
            raise
        self.resolver.note_removed(ref, st, fd)

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
        self.source.remove(ref.fd, ref.name, is_directory=False)
        if target is None:
            return
        if deletion is Deletion.SYMLINK_FIRST:
            try:
                self._remove_target(target)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:  # as bindfs: the symlink is gone in any case
                    raise
        if target.subtree is not None:  # for the kernel, the target was removed
            self.resolver.unhash_target(target.st, target.subtree)

    def _remove_target(self, target: LinkTarget) -> None:
        ref = target.ref
        fd = self.source.open_node(ref.fd, ref.name)
        try:
            st = self.source.stat(fd)
            self.source.remove(ref.fd, ref.name, S_ISDIR(st.st_mode))
        except BaseException:
            os.close(fd)
            raise
        self.resolver.note_removed(ref, st, fd)
