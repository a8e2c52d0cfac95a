"""The request RENAME: the checks in their order, the rename, and its undoing.

A rename that is refused or fails changes nothing, or undoes its change. The tables of nodes follow
the source.
"""

from __future__ import annotations

import errno
import os
from stat import S_IFMT, S_ISDIR, S_ISLNK

from gitguardfs.base.errors import os_error
from gitguardfs.base.protocol import RENAME_EXCHANGE, RENAME_NOREPLACE, Caller, NodeId
from gitguardfs.fs.access import NodeRef, Renaming
from gitguardfs.fs.nodes import stale
from gitguardfs.fs.parts import Parts

RENAME_FLAGS = RENAME_NOREPLACE | RENAME_EXCHANGE
"""The flags allowed. RENAME_WHITEOUT is not: it leaves a device, for overlay mounts only."""

Name = tuple[NodeId, bytes]
"""The node number of a directory, and a name in it."""


class Renames(Parts):
    """The request that moves a name."""

    def rename(
        self,
        caller: Caller,
        old_parent_id: NodeId,
        old_name: bytes,
        new_parent_id: NodeId,
        new_name: bytes,
        flags: int,
    ) -> None:
        """Move an entry, replacing one at the new name, or (RENAME_EXCHANGE) swap two entries."""
        old, new = (old_parent_id, old_name), (new_parent_id, new_name)
        if not self.rename_file(old, new, flags):
            self.finish_rename(self.check_rename(caller, old, new, flags))

    def rename_file(self, old_name: Name, new_name: Name, flags: int) -> bool:
        """Move a file at once if that is surely allowed; return whether it was moved."""
        return False  # see fs/lean

    def check_rename(self, caller: Caller, old_name: Name, new_name: Name, flags: int) -> Renaming:
        """Check a rename. The caller gives the result to ``finish_rename``, or closes it.

        Also raises OSError: EINVAL for unknown flags, ENOENT for a missing entry, EXDEV for
        symlinks that would lead out of their work tree, EACCES for a symlink's target.
        """
        old = self.check.name(*old_name, change=True)
        new = self.check.name(*new_name, change=True)
        if flags & ~RENAME_FLAGS:
            raise os_error(errno.EINVAL)
        if self.policy.rename_deny:
            raise os_error(errno.EPERM)
        if self.symlinks is not None:
            target = self.symlinks.replaced(new)
            if target is not None:
                new = self.symlinks.check_replaceable(caller, target)
        exchange = bool(flags & RENAME_EXCHANGE)
        fds: list[int] = []
        try:
            moved = self._check_end(old, fds, moves=True)
            replaced = self._check_end(new, fds, moves=exchange)
            if moved is None or (exchange and replaced is None):
                raise os_error(errno.ENOENT)
            moves_links = exchange or S_ISLNK(moved.st_mode)
            if S_ISDIR(moved.st_mode) and old.parent is not new.parent:
                moves_links = True
            is_plain = old.is_plain and new.is_plain
            renaming = Renaming(
                old, new, moved, replaced, flags, exchange, moves_links, is_plain, fds
            )
            # A plain rename within a directory takes its old name away; an exchange leaves both.
            leaving = old.name if old.parent is new.parent and not exchange else b""
            for _, ref, st in () if is_plain else renaming.moves():
                self.new_names.check_type(ref, S_IFMT(st.st_mode))
                # False, whatever its type was: through another guard over the same source, it may
                # have been exchanged for a file since the check.
                self.new_names.check_completes_no_repository(ref, False, leaving)
            if moves_links:
                self.link_check.check_rename(renaming)
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise
        return renaming

    def _check_end(self, ref: NodeRef, fds: list[int], moves: bool) -> os.stat_result | None:
        """Check one end of a rename; add a descriptor that is needed later to ``fds``.

        Returns the attributes of the entry, or None if there is no entry.
        """
        st = self.source.find_at(ref.fd, ref.name)
        if st is None:
            return None
        if not moves or S_ISDIR(st.st_mode):
            fd = self.source.open_node(ref.fd, ref.name)
            fds.append(fd)
            st = self.source.stat(fd)
        self.source.check_type(ref.fd, ref.name, st)
        self.check.check_unguarded(ref, st)
        if moves and S_ISDIR(st.st_mode):
            self.check.check_holds_no_repository(ref, fds[-1], st)
        return st

    def finish_rename(self, renaming: Renaming) -> None:
        """Rename, or exchange, and undo that if the new names turn out to be forbidden.

        A rename(2) that failed may have been done on a server: that is undone as well if a new name
        could be ``.git`` or a part of a repository.
        """
        old, new, arrived = renaming.old, renaming.new, renaming.moved
        try:
            try:
                self.source.rename(old.fd, old.name, new.fd, new.name, renaming.flags)
            except OSError:
                if not (new.is_plain and (old.is_plain or not renaming.exchange)):
                    self._move_back(renaming, arrived)
                raise
            try:
                arrived = self.source.arrived(new.fd, new.name, arrived)
                for _, ref, st in renaming.moves():
                    there = arrived if ref is new else self.source.arrived(ref.fd, ref.name, st)
                    # Another guard may have replaced the entry; a new object can get its number.
                    is_same_type = S_IFMT(there.st_mode) == S_IFMT(st.st_mode)
                    if not (is_same_type and os.path.samestat(there, st)):
                        raise stale()
                if not renaming.is_plain:
                    for _, ref, _ in renaming.moves():
                        self.new_names.check_added(ref, False)
                if renaming.moves_links:
                    self.link_check.check_rename(renaming)
            except BaseException:
                self._move_back(renaming, arrived)
                raise
            self.resolver.note_renamed(renaming)
        finally:
            for fd in renaming.fds:
                os.close(fd)

    def _move_back(self, renaming: Renaming, arrived: os.stat_result) -> None:
        old, new = renaming.old, renaming.new

        def undo() -> None:
            # Not the descriptors in the refs: after a failed check they may be of the root (ninep).
            old_fd, new_fd = self.descriptors.of(old.parent), self.descriptors.of(new.parent)
            if not self.source.is_at(new_fd, new.name, arrived):
                return
            back = renaming.flags if renaming.exchange else RENAME_NOREPLACE
            try:
                self.source.rename(new_fd, new.name, old_fd, old.name, back)
            except OSError as error:  # 9p has no flags
                if error.errno != errno.EINVAL or self.source.find_at(old_fd, old.name):
                    raise
                self.source.rename(new_fd, new.name, old_fd, old.name, 0)

        self.undo_or_log(undo, new.parent, new.name)
