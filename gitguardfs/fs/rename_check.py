"""The checks of a rename, in their order: those before rename(2) and those after it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from stat import S_ISDIR
from typing import NamedTuple

from gitguardfs.bindfs.change_policy import ChangePolicy
from gitguardfs.errors import os_error
from gitguardfs.fs.access import Access, NodeRef
from gitguardfs.fs.host_rules import HostRules
from gitguardfs.fs.new_name_check import NewNameCheck
from gitguardfs.fs.nodes import stale
from gitguardfs.fs.renaming import Renaming
from gitguardfs.fs.source import Source
from gitguardfs.fs.symlinks import SymlinkResolver
from gitguardfs.protocol import RENAME_EXCHANGE, RENAME_NOREPLACE, Caller, NodeId

RENAME_FLAGS = RENAME_NOREPLACE | RENAME_EXCHANGE
"""The flags allowed. RENAME_WHITEOUT is not: it leaves a device, for overlay mounts only."""

Name = tuple[NodeId, bytes]
"""The node number of a directory, and a name in it."""


class CheckedRename(NamedTuple):
    """A rename that has passed all checks."""

    renaming: Renaming
    fds: list[int]
    """Descriptors to close at the end; the last is of the replaced entry, if there is one."""

    def take_target_fd(self) -> int:
        """Return the descriptor of the replaced entry, for the caller to close; -1 if none is."""
        replaces = self.renaming.target is not None and not self.renaming.exchange
        return self.fds.pop() if replaces else -1


class RenameCheck:
    """Checks the renames of one mount.

    It stands apart from Access because it uses HostRules and SymlinkResolver, which use Access.
    """

    def __init__(
        self,
        access: Access,
        new_names: NewNameCheck,
        source: Source,
        host: HostRules,
        policy: ChangePolicy,
        symlinks: SymlinkResolver | None,
        is_open: Callable[[os.stat_result], bool],
    ) -> None:
        """Keep what the checks need; ``is_open`` returns whether the guest has a file open."""
        self._access = access
        self._new_names = new_names
        self._source = source
        self._host = host
        self._policy = policy
        self._symlinks = symlinks
        self._is_open = is_open

    @contextmanager
    def check_rename(
        self, caller: Caller, old_name: Name, new_name: Name, flags: int
    ) -> Iterator[CheckedRename]:
        """Check a rename; its descriptors stay open during the body of the with statement.

        The checks raise in this order:

        1. the old name and its directory, then the new ones: Refused, Later, OSError(EINVAL,
           ESTALE, EROFS)
        2. the flags: OSError(EINVAL)
        3. the policy: OSError(EPERM)
        4. the target of a resolved symlink at the new name: Refused, Later, OSError(EACCES)
        5. the moved entry, then the entry at the new name: Refused
        6. a missing entry: OSError(ENOENT)
        7. names that complete a repository, the new one, then (exchange) the old one: Refused
        8. git at work on the host (``host_rules``): Refused, Later, OSError(EBUSY, ESTALE)

        Any check raises OSError if the source fails.
        """
        old = self._access.name(*old_name, change=True)
        new = self._access.name(*new_name, change=True)
        if flags & ~RENAME_FLAGS:
            raise os_error(errno.EINVAL)
        self._policy.check_rename_allowed()
        new = self._target_of(caller, new)
        old = self._access.reopened(old)
        exchange = bool(flags & RENAME_EXCHANGE)
        fds: list[int] = []
        try:
            moved = self._check_end(old, fds, moves=True)
            replaced = self._check_end(new, fds, moves=exchange)
            if moved is None or (exchange and replaced is None):
                raise os_error(errno.ENOENT)
            # A plain rename takes its old name away; an exchange leaves both.
            leaves = old.parent is new.parent and not exchange
            # False, whatever its type was: through another guard over the same source, it may have
            # been exchanged for a file since the check.
            self._new_names.check_completes_no_repository(new, False, old.name if leaves else b"")
            if exchange:
                self._new_names.check_completes_no_repository(old, False)
            self._host.before_rename(Renaming(old, new, moved, replaced, exchange))
            old, new = self._access.reopened(old), self._access.reopened(new)
            yield CheckedRename(Renaming(old, new, moved, replaced, exchange), fds)
        finally:
            self._host.note_change(old, new)
            for fd in fds:
                os.close(fd)

    def check_done(self, renaming: Renaming) -> None:
        """Check again the names that entries were moved to.

        Raises Refused, Later, OSError(EBUSY, ESTALE), and any other OSError of the source; after
        each, the caller moves the entries back.
        """
        for ref, _ in renaming.arriving():
            self._new_names.check_added(ref, False)
        self._host.after_rename(renaming)

    def undoes_failed(self, renaming: Renaming) -> bool:
        """Return whether a rename that failed must be undone if a server has done it all the same.

        It must be if a new name could be ``.git`` or a part of a repository.
        """
        return any(self._new_names.matters(ref.name) for ref, _ in renaming.arriving())

    def _target_of(self, caller: Caller, new: NodeRef) -> NodeRef:
        """Return the place of the target if a resolved symlink is at ``new``; else ``new``."""
        if self._symlinks is None:
            return new
        target = self._symlinks.replaced(new)
        replaced = new if target is None else self._symlinks.check_replaceable(caller, target)
        return self._access.reopened(replaced)

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
        # Over 9p, what is held keeps its type when the host replaces it.
        may_be_held = self._source.path_based and (S_ISDIR(st.st_mode) or self._is_open(st))
        if may_be_held and self._source.is_disguised(ref.fd, ref.name, st):
            raise stale()
        self._access.check_unguarded(ref, st)
        if moves and S_ISDIR(st.st_mode):
            self._access.check_holds_no_repository(ref, fds[-1], st)
        return st
