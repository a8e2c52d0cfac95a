"""Names that go and move. All or nothing, and the tables follow."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from stat import S_ISDIR, S_ISLNK

from gitguardfs.bindfs.change_policy import Deletion
from gitguardfs.fs import symlinks
from gitguardfs.fs.access import NodeRef
from gitguardfs.fs.mount_state import Caller
from gitguardfs.fs.renaming import Renaming
from gitguardfs.fs.symlinks import Links, Target
from gitguardfs.guard.rules import Refused
from gitguardfs.linux import syscalls
from gitguardfs.serving.new_entries import NewNames

RENAME_FLAGS = syscalls.RENAME_NOREPLACE | syscalls.RENAME_EXCHANGE
"""RENAME_WHITEOUT would leave a device behind, which only overlay mounts have a use for."""


class Names(NewNames):
    """The operations that change which names there are."""

    def unlink(self, caller: Caller, parent_id: int, name: bytes) -> None:
        """Remove an entry that is no directory."""
        self._remove(caller, parent_id, name, is_directory=False)

    def rmdir(self, caller: Caller, parent_id: int, name: bytes) -> None:
        """Remove an empty directory."""
        self._remove(caller, parent_id, name, is_directory=True)

    def _remove(self, caller: Caller, parent_id: int, name: bytes, is_directory: bool) -> None:
        place = self._access.name(parent_id, name, change=True)

        def remove(st: os.stat_result) -> None:
            if self._links is not None and S_ISLNK(st.st_mode):
                self._remove_link(caller, self._links, place)
            else:
                self._source.remove(place.fd, place.name, is_directory)

        self._remove_at(place, remove)

    def _remove_at(self, place: NodeRef, remove: Callable[[os.stat_result], None]) -> None:
        fd = self._source.open_node(place.fd, place.name)
        try:
            st = self._source.stat(fd)
            self._access.check_unguarded(place, st)
            self._policy.may_remove()
            self._host.before_removal(place, st, fd)
            remove(st)
        except BaseException:
            os.close(fd)
            raise
        self._host.note_gone(place)
        self._host.note_change(place)
        self._lose_name(place, st, fd)

    def _remove_link(self, caller: Caller, resolved: Links, place: NodeRef) -> None:
        """Remove a symlink that is shown as its target, and the target as the policy says."""
        deletion = resolved.deletion
        if deletion is Deletion.DENY:
            raise symlinks.denied()
        target = None
        with suppress(Refused):  # one that leads where it must not just goes
            target = resolved.target(place)
        takes_target = deletion in (Deletion.SYMLINK_FIRST, Deletion.TARGET_FIRST)
        if target is not None and takes_target:
            self._may_replace(caller, target)
        if target is not None and deletion is Deletion.TARGET_FIRST:
            self._remove_target(target)
        self._source.remove(self._access.reopened(place).fd, place.name, is_directory=False)
        if target is None:
            return
        if deletion is Deletion.SYMLINK_FIRST:
            try:
                self._remove_target(target)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:  # as bindfs: the symlink is gone in any case
                    raise
        if target.branch is not None:  # the kernel takes it for removed
            node = self.nodes.find(target.st, target.branch.variant)
            if node is not None:
                self.nodes.unhash(node)

    def _remove_target(self, target: Target) -> None:
        place = self._access.reopened(target.place)
        is_directory = S_ISDIR(target.st.st_mode)
        self._remove_at(place, lambda _: self._source.remove(place.fd, place.name, is_directory))

    def _may_replace(self, caller: Caller, target: Target) -> NodeRef:
        """The place of a symlink's target, which the caller is about to remove or replace.

        The kernel has looked at the rights in the symlink's directory only. Raises Refused,
        Later, or OSError(EACCES) if the caller may not do that in the target's, as the view
        shows it.
        """
        self._access.settle(target.place)  # while nothing is removed yet
        place = self._access.reopened(target.place)
        self._access.check_unguarded(place, target.st)
        place = self._access.reopened(place)
        directory, entry = (
            self._view.unguarded(0, st, caller.uid)
            for st in (self._source.stat(place.fd), target.st)
        )
        if not symlinks.may_remove(caller, directory, entry):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        return place

    def _lose_name(self, place: NodeRef, st: os.stat_result, fd: int) -> None:
        """Note that a name is gone; ``fd``, of the object, is now ours to keep or close.

        What the kernel still uses can only be reached by descriptor from now on.
        """
        self._host.note_removed(st)
        node = self.nodes.find_below(place.parent, st)
        if node is None:
            os.close(fd)
            return
        self._descriptors.keep(node, fd)
        last = node.is_directory or st.st_nlink <= 1
        if last:
            self.nodes.unhash(node)
            self._descriptors.pin(node)
            if self._links is not None:
                self._links.let_go(node)
                self._drop_unknown(node)
        if last or (node.parent is place.parent and node.name == place.name):
            node.parent = None

    def rename(
        self,
        caller: Caller,
        old_parent_id: int,
        old_name: bytes,
        new_parent_id: int,
        new_name: bytes,
        flags: int,
    ) -> None:
        """Move an entry, replace another by it, or (RENAME_EXCHANGE) swap two."""
        old = self._access.name(old_parent_id, old_name, change=True)
        new = self._access.name(new_parent_id, new_name, change=True)
        if flags & ~RENAME_FLAGS:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._policy.may_rename()
        if self._links is not None:
            target = self._links.replaced(new)
            new = self._access.reopened(
                new if target is None else self._may_replace(caller, target)
            )
        old = self._access.reopened(old)
        exchange = bool(flags & syscalls.RENAME_EXCHANGE)
        fds: list[int] = []
        try:
            moved = self._take(old, fds, moves=True)
            replaced = self._take(new, fds, moves=exchange)
            if moved is None or (exchange and replaced is None):
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
            # A plain rename takes its old name away; an exchange leaves both.
            leaves = old.parent is new.parent and not exchange
            # Whatever it was when looked at: through another guard over the same source, it can
            # have been exchanged for something else since.
            self._access.check_completes_no_repository(new, False, old_name if leaves else b"")
            if exchange:
                self._access.check_completes_no_repository(old, False)
            self._host.before_rename(Renaming(old, new, moved, replaced, exchange))
            renaming = Renaming(
                self._access.reopened(old), self._access.reopened(new), moved, replaced, exchange
            )
            self._move(renaming, flags)
            self._host.note_moved(renaming)
            self._note_rename(renaming, fds)
        finally:
            self._host.note_change(old, new)
            for fd in fds:
                os.close(fd)

    def _take(self, place: NodeRef, fds: list[int], moves: bool) -> os.stat_result | None:
        """Look at an end of a rename; a descriptor that is needed later is added to ``fds``.

        None if there is nothing.
        """
        st = self._source.find_at(place.fd, place.name)
        if st is None:
            return None
        if not moves or S_ISDIR(st.st_mode):
            fd = self._source.open_node(place.fd, place.name)
            fds.append(fd)
            st = self._source.stat(fd)
        self._access.check_unguarded(place, st)
        if moves and S_ISDIR(st.st_mode):
            self._access.check_holds_no_repository(place, fds[-1], st)
        return st

    def _move(self, renaming: Renaming, flags: int) -> None:
        """Rename, or exchange, and undo that if the new names turn out to be forbidden ones.

        So is undone what a call that failed has done all the same, if the names matter.
        """
        old, new = renaming.old, renaming.new

        def undo() -> None:
            if not self._source.is_at(new.fd, new.name, renaming.moved):
                return
            back = flags if renaming.exchange else syscalls.RENAME_NOREPLACE
            try:
                self._source.rename(new.fd, new.name, old.fd, old.name, back)
            except OSError as error:  # 9p has no flags
                if error.errno != errno.EINVAL or self._source.find_at(old.fd, old.name):
                    raise
                self._source.rename(new.fd, new.name, old.fd, old.name, 0)

        try:
            self._source.rename(old.fd, old.name, new.fd, new.name, flags)
        except OSError:
            if any(self._access.matters(place.name) for place, _ in renaming.arriving()):
                self._surely(undo, new)
            raise
        try:
            for place, _ in renaming.arriving():
                self._access.check_added(place, False)
            self._host.after_rename(renaming)
        except BaseException:
            self._surely(undo, new)
            raise

    def _note_rename(self, renaming: Renaming, fds: list[int]) -> None:
        if renaming.target is not None and not renaming.exchange:
            self._lose_name(renaming.new, renaming.target, fds.pop())
        for place, st in reversed([*renaming.arriving()]):
            self._note_place(st, place)

    def _note_place(self, st: os.stat_result, place: NodeRef) -> None:
        node = self.nodes.find_below(place.parent, st)
        if node is not None:
            node.parent, node.name = place.parent, place.name
