"""The checks of a rename, in their order."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from stat import S_ISDIR
from typing import NamedTuple

from gitguardfs.bindfs.change_policy import Policy
from gitguardfs.errors import os_error
from gitguardfs.fs.access import Access, NodeRef
from gitguardfs.fs.host_rules import HostRules
from gitguardfs.fs.renaming import Renaming
from gitguardfs.fs.source import Source
from gitguardfs.fs.symlinks import Links
from gitguardfs.protocol import RENAME_EXCHANGE, RENAME_NOREPLACE, Caller

RENAME_FLAGS = RENAME_NOREPLACE | RENAME_EXCHANGE
"""RENAME_WHITEOUT would leave a device behind, which only overlay mounts have a use for."""

Name = tuple[int, bytes]
"""A directory by its number, and a name in it."""


class CheckedRename(NamedTuple):
    """A rename that may be done now."""

    renaming: Renaming
    fds: list[int]
    """Descriptors that are closed at the end; the last is of what is replaced."""

    def take_target_fd(self) -> int:
        """Return the descriptor of what is replaced, now the caller's; -1 if nothing is."""
        replaces = self.renaming.target is not None and not self.renaming.exchange
        return self.fds.pop() if replaces else -1


class RenameCheck:
    """Checks the renames of one mount."""

    def __init__(
        self,
        access: Access,
        source: Source,
        host: HostRules,
        policy: Policy,
        links: Links | None,
    ) -> None:
        self._access = access
        self._source = source
        self._host = host
        self._policy = policy
        self._links = links

    @contextmanager
    def check_rename(
        self, caller: Caller, old_name: Name, new_name: Name, flags: int
    ) -> Iterator[CheckedRename]:
        """Check a rename from its names to what git on the host may be doing there.

        While the body of the with statement runs, descriptors are open. Raises, by what is wrong
        first: for the old name and its directory, then for the new ones, OSError(EINVAL, ESTALE,
        EROFS) or Refused; OSError(EINVAL) for flags; OSError(EPERM) by policy; Refused for what is
        moved, then for what is replaced; OSError(ENOENT); Refused for names that complete a
        repository, at the new end and then at the old one; Refused and Later by ``host_rules``.
        Later also where a directory is waited for, OSError where the source fails.
        """
        old = self._access.name(*old_name, change=True)
        new = self._access.name(*new_name, change=True)
        if flags & ~RENAME_FLAGS:
            raise os_error(errno.EINVAL)
        self._policy.may_rename()
        new = self._target_of(caller, new)
        old = self._access.reopened(old)
        exchange = bool(flags & RENAME_EXCHANGE)
        fds: list[int] = []
        try:
            moved = self._look_at(old, fds, moves=True)
            replaced = self._look_at(new, fds, moves=exchange)
            if moved is None or (exchange and replaced is None):
                raise os_error(errno.ENOENT)
            # A plain rename takes its old name away; an exchange leaves both.
            leaves = old.parent is new.parent and not exchange
            # Whatever it was when looked at: through another guard over the same source, it can
            # have been exchanged for something else since.
            self._access.check_completes_no_repository(new, False, old.name if leaves else b"")
            if exchange:
                self._access.check_completes_no_repository(old, False)
            self._host.before_rename(Renaming(old, new, moved, replaced, exchange))
            old, new = self._access.reopened(old), self._access.reopened(new)
            yield CheckedRename(Renaming(old, new, moved, replaced, exchange), fds)
        finally:
            self._host.note_change(old, new)
            for fd in fds:
                os.close(fd)

    def _target_of(self, caller: Caller, new: NodeRef) -> NodeRef:
        """Return what a symlink at the new name, if there is a resolved one, leads to."""
        if self._links is None:
            return new
        target = self._links.replaced(new)
        replaced = new if target is None else self._links.check_replaceable(caller, target)
        return self._access.reopened(replaced)

    def _look_at(self, place: NodeRef, fds: list[int], moves: bool) -> os.stat_result | None:
        """Check one end of a rename; a descriptor that is needed later is added to ``fds``.

        Returns None if there is nothing.
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
