"""The checks of a rename, in their order: those before rename(2) and those after it."""

from __future__ import annotations

import errno
import os
from stat import S_IFMT, S_ISDIR, S_ISLNK

from gitguardfs.base.errors import os_error
from gitguardfs.base.protocol import RENAME_EXCHANGE, RENAME_NOREPLACE, Caller, NodeId
from gitguardfs.fs.access import Access, NodeRef
from gitguardfs.fs.new_name_check import NewNameCheck
from gitguardfs.fs.placing import Placing
from gitguardfs.fs.renaming import Renaming
from gitguardfs.fs.source import Source
from gitguardfs.fs.symlinks import SymlinkResolver
from gitguardfs.options.change_policy import ChangePolicy

RENAME_FLAGS = RENAME_NOREPLACE | RENAME_EXCHANGE
"""The flags allowed. RENAME_WHITEOUT is not: it leaves a device, for overlay mounts only."""

Name = tuple[NodeId, bytes]
"""The node number of a directory, and a name in it."""


class RenameCheck:
    """Checks the renames of one mount."""

    def __init__(
        self,
        access: Access,
        new_names: NewNameCheck,
        placing: Placing,
        source: Source,
        policy: ChangePolicy,
        symlinks: SymlinkResolver | None,
    ) -> None:
        """Keep what the checks need; ``symlinks`` is None unless symlinks are resolved."""
        self._access = access
        self._new_names = new_names
        self._placing = placing
        self._source = source
        self._policy = policy
        self._symlinks = symlinks

    def check(self, caller: Caller, old_name: Name, new_name: Name, flags: int) -> Renaming:
        """Check a rename. The caller closes the descriptors of what is returned.

        The checks raise in this order:

        1. the old name and its directory, then the new ones: Refused, OSError(EINVAL, ESTALE,
           EROFS)
        2. the flags: OSError(EINVAL)
        3. the policy: OSError(EPERM)
        4. the target of a resolved symlink at the new name: Refused, OSError(EACCES)
        5. the moved entry, then the entry at the new name: Refused
        6. a missing entry: OSError(ENOENT)
        7. new names that stop git or complete a repository: Refused
        8. symlinks that would lead out of their work tree: OSError(EXDEV)

        Any check raises OSError if the source fails.
        """
        old = self._access.name(*old_name, change=True)
        new = self._access.name(*new_name, change=True)
        if flags & ~RENAME_FLAGS:
            raise os_error(errno.EINVAL)
        self._policy.check_rename_allowed()
        if self._symlinks is not None:
            target = self._symlinks.replaced(new)
            if target is not None:
                new = self._symlinks.check_replaceable(caller, target)
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
            renaming = Renaming(old, new, moved, replaced, exchange, moves_links, fds)
            # A plain rename within a directory takes its old name away; an exchange leaves both.
            leaving = old.name if old.parent is new.parent and not exchange else b""
            for ref, st in () if old.is_plain and new.is_plain else renaming.arriving():
                self._new_names.check_type(ref, S_IFMT(st.st_mode))
                # False, whatever its type was: through another guard over the same source, it may
                # have been exchanged for a file since the check.
                self._new_names.check_completes_no_repository(ref, False, leaving)
            if renaming.moves_links:
                self._placing.check_rename(renaming)
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise
        return renaming

    def check_done(self, renaming: Renaming) -> None:
        """Check again the entries at their new names.

        Raises Refused, OSError(EXDEV, ESTALE), and any other OSError of the source; after each, the
        caller moves the entries back.
        """
        if not (renaming.old.is_plain and renaming.new.is_plain):
            for ref, _ in renaming.arriving():
                self._new_names.check_added(ref, False)
        if renaming.moves_links:
            self._placing.check_rename(renaming)

    def undoes_failed(self, renaming: Renaming) -> bool:
        """Return whether a rename that failed must be undone if a server has done it all the same.

        It must be if a new name could be ``.git`` or a part of a repository.
        """
        return not all(ref.is_plain for ref, _ in renaming.arriving())

    def _check_end(self, ref: NodeRef, fds: list[int], moves: bool) -> os.stat_result | None:
        """Check one end of a rename; add a descriptor that is needed later to ``fds``.

        Returns the attributes of the entry, or None if there is no entry.
        """
        st = self._source.find_at(ref.fd, ref.name)
        if st is None:
            return None
        if not moves or S_ISDIR(st.st_mode):
            fd = self._source.open_node(ref.fd, ref.name)
            fds.append(fd)
            st = self._source.stat(fd)
        self._source.check_type(ref.fd, ref.name, st)
        self._access.check_unguarded(ref, st)
        if moves and S_ISDIR(st.st_mode):
            self._access.check_holds_no_repository(ref, fds[-1], st)
        return st
