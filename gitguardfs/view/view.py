"""The view: takes every request, finds its tree, and is the error boundary.

A request goes to a tree by the number of its node or handle. Where a name in the share decides, or
two directories do, ``OwnDirectories`` decides; ``GitFiles`` shows the virtual file ``.git``.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Protocol

from gitguardfs.base.constants import HELPER_GID
from gitguardfs.base.errors import os_error
from gitguardfs.base.protocol import Caller, GuestGid, GuestUid, HandleId, RequestError
from gitguardfs.fs.audit_log import AuditLog
from gitguardfs.fs.handles import FileHandle
from gitguardfs.fs.nodes import LOCAL_TREE, TREE_BITS
from gitguardfs.fs.saved import Saved, restore, saved
from gitguardfs.fs.source import DOTGIT
from gitguardfs.fs.tree import Tree
from gitguardfs.names.rules import Refused
from gitguardfs.view.git_files import GIT_TREE, GitFiles
from gitguardfs.view.own_directories import OwnDirectories
from gitguardfs.view.rows import Note, note_changes, rows_of

MAX_ERRNO = 511
"""The largest errno that the kernel takes in a reply. It drops a reply with a larger one, and the
caller would hang."""

ENOSYS_IS_MEANT = ("getxattr", "listxattr")
"""Requests that may be answered ENOSYS, after which the kernel sends no more of that kind for the
whole mount. An ENOSYS of the source is about one object: a single file that cannot be synced would
turn fsync off for all."""

UNKNOWN = Caller(GuestUid(-1), GuestGid(-1))

log = logging.getLogger(__name__)


ONE_NAME = frozenset(("lookup", "mknod", "mkdir", "symlink", "create", "unlink"))
"""Requests on a name in one directory: their second argument."""
NO_DIRECTORY = frozenset(("mknod", "symlink", "create"))
"""Requests that give a name to something other than a directory."""
BOTH_TREES = frozenset(("forget", "link", "rename", "rmdir"))
"""Requests that may concern both trees, whatever their names."""


CHANGES = frozenset((
    "setattr", "create", "mknod", "mkdir", "symlink", "link", "unlink", "rmdir", "rename",
))  # fmt: skip
"""Requests that change a name or attributes, which the host then tells of."""
LOOKS = frozenset(("lookup", "getattr", "statx", "access", "statfs"))
"""Requests that change nothing and open nothing."""
NOT_ANNOUNCED = object()
"""Says that a request is an ordinary one."""


class OwnChanges(Protocol):
    """Is told of changes that the guest makes."""

    def closes(self, handle_id: int) -> None:
        """Note that a file is closed."""

    def note(self, request: str, arguments: tuple[Any, ...], reply: Any) -> None:
        """Note that a request of ``CHANGES`` was served."""


class View:
    """All requests of one mount point."""

    def __init__(
        self,
        share: Tree,
        audit: AuditLog,
        own: OwnDirectories | None = None,
        git_files: GitFiles | None = None,
    ) -> None:
        """Serve ``share``, the guest's ``own`` directories and ``git_files`` in it.

        Refusals are reported to ``audit``.
        """
        self._audit = audit
        self._share = share
        self._own = own
        self._git_files = git_files
        self._descriptors = [share.descriptors]
        self._trees: dict[int, Any] = {}
        """The trees beside the share, by the upper bits of their numbers."""
        if git_files is not None:
            self._trees[GIT_TREE] = git_files
            share.overlays.append(git_files.overlay)
        self.announced: Callable[[str, tuple[Any, ...]], Any] | None = None
        """Answers requests of the process that repeats the host's changes (``live``)."""
        self.own_changes: OwnChanges | None = None
        """Told of the guest's changes, while the host tells of its own."""
        self._tables = [share] if own is None else [share, own.local]
        if own is not None:
            self._trees[LOCAL_TREE] = own.local
            self._descriptors.append(own.local.descriptors)
            share.overlays.append(own.overlay)
            share.attributes.may_be_elsewhere = own.marker

    @property
    def share(self) -> Tree:
        """The tree of the share."""
        return self._share

    def is_ordinary(self, name: bytes) -> bool:
        """Return whether no rule guards a name, and no other tree has it."""
        is_own = self._own is not None and self._own.marker(name) is not None
        return not is_own and self._share.check.allows(name)

    def apart(self, call: Callable[[], None]) -> None:
        """Make a call on the share that is no request. Raises what it raises."""
        try:
            call()
        finally:
            self._end_leases()

    def _end_leases(self) -> None:
        """End the leases of a request."""
        for descriptors in self._descriptors:
            descriptors.request += 1
            if descriptors.passing:
                descriptors.close_passing()

    @property
    def lends_files(self) -> bool:
        """Whether the session may let the kernel read and write files of the share by itself."""
        return self._share.lends_files

    def drop_listings(self, drop: Callable[[int], None]) -> None:
        """Have ``drop`` called with a directory's number when its listing may not be kept."""
        for tree in self._tables:
            tree.attributes.drop_listing = drop

    @property
    def forwards_locks(self) -> bool:
        """Whether locks are those of the source's files."""
        return self._share.locks is not None

    def serve(self, request: str, caller: Caller | None, *args: Any) -> Any:
        """Return the reply to a request, or a ``Blocking``; ``args`` begin with a number.

        Requests on a handle have no ``caller``. Raises RequestError only.
        """
        try:
            if caller is not None and caller.gid == HELPER_GID:
                answer = self._repeated(request, args)
                if answer is not NOT_ANNOUNCED:
                    return answer
            if self.own_changes is not None and request == "release":
                self.own_changes.closes(args[0])
            tree: Any = self._share
            if self._trees and args:
                tree = self._trees.get(args[0] >> TREE_BITS, self._share)
                if tree is self._share and request in ONE_NAME:
                    if request == "lookup" and args[1] == DOTGIT and self._git_files is not None:
                        tree = self._git_files
                    elif self._own is not None and self._own.marker(args[1]) is not None:
                        if request in NO_DIRECTORY:
                            self._own.check_free(*args[:2])
                        else:
                            tree = self._own
                elif (
                    self._own is not None and request in BOTH_TREES and tree is not self._git_files
                ):
                    tree = self._own
            verb = getattr(tree, request)
            reply = verb(*args) if caller is None else verb(caller, *args)
            if self.own_changes is not None and request in CHANGES and tree is not self._git_files:
                self._note_own(request, args, reply)
            return reply
        except Exception as error:
            number = self.errno_of(error, request, caller)
        finally:
            for descriptors in self._descriptors:  # as _end_leases, without the call
                descriptors.request += 1
                if descriptors.passing:
                    descriptors.close_passing()
        # Not in the except clause: the new error would keep the old one alive as its context,
        # and with that all objects in its frames.
        raise RequestError(number)

    def _repeated(self, request: str, arguments: tuple[Any, ...]) -> Any:
        """Return the answer to a request of the process that repeats the host's changes.

        It may look. Of changes it may ask for what it was told to, and nothing is changed then: so
        without ``announced``, all are refused, also one that a former daemon has not answered.
        """
        if self.announced is not None:
            return self.announced(request, arguments)
        if request in LOOKS:
            return NOT_ANNOUNCED
        raise os_error(errno.EPERM)

    def _note_own(self, request: str, arguments: tuple[Any, ...], reply: Any) -> None:
        if self.own_changes is not None:
            with suppress(OSError):  # the change is made
                self.own_changes.note(request, arguments, reply)

    @property
    def can_be_taken_over(self) -> bool:
        """Whether another daemon can go on with this view.

        A linked subtree is known by the way that led to it. A lock ends with the daemon.
        """
        return self._share.symlinks is None and self._share.locks is None

    def saved(self, descriptors: dict[str, int]) -> Saved:
        """Return the tables of all trees, for the next daemon, if it can take them over.

        To be called when no request is under way. Adds to ``descriptors`` as ``fs.saved`` does.
        """
        share = saved(self._share, descriptors)
        own = () if self._own is None else saved(self._own.local, descriptors)
        git_files = () if self._git_files is None else self._git_files.saved()
        return share, own, git_files

    def note_changes(self, note: Note) -> None:
        """Have the tables' changes noted from now on, for the next daemon if this one is killed."""
        note_changes(note, self._tables, self._git_files)

    def rows(self) -> Iterator[Saved]:
        """Yield the rows of the tables as they are now."""
        return rows_of(self._tables, self._git_files)

    def file(self, handle: int) -> FileHandle:
        """Return an open file of the source. Raises OSError."""
        tree: Tree = self._trees.get(handle >> TREE_BITS, self._share)
        return tree.handles.file(HandleId(handle))

    def open_directory_again(self, caller: Caller, handle: int, node: int) -> None:
        """Open a directory that a killed daemon had open, unless that was done before."""
        tree = self._trees.get(handle >> TREE_BITS, self._share)
        tree.open_directory_again(caller, handle, node)

    def restore(self, former: Saved, descriptors: dict[str, int]) -> None:
        """Fill the tables with those of a former daemon."""
        share, own, git_files = former
        restore(self._share, share, descriptors)
        if own and self._own is not None:
            restore(self._own.local, own, descriptors)
        if git_files and self._git_files is not None:
            self._git_files.restore(git_files)

    def errno_of(self, error: Exception, request: str, caller: Caller | None = None) -> int:
        """Return the errno of the answer to a request that raised ``error``. Raises nothing.

        EACCES for Refused, the error's own errno for OSError and RequestError. Anything else is a
        bug: it is logged, and the answer is EIO.
        """
        if isinstance(error, Refused):
            try:
                uid, _, pid = UNKNOWN if caller is None else caller
                self._audit.refuse(request, error, uid, pid)
            except Exception as failure:
                _report(failure, "a refused %s was not noted", request)
            return errno.EACCES
        number = error.errno if isinstance(error, (OSError, RequestError)) else None
        if isinstance(error, OSError) and number == errno.ENOSYS and request not in ENOSYS_IS_MEANT:
            return errno.EOPNOTSUPP
        if isinstance(number, int) and 0 < number <= MAX_ERRNO:
            return number
        _report(error, "%s failed; answered EIO", request)
        return errno.EIO


def _report(error: Exception, message: str, request: str) -> None:
    with suppress(Exception):  # even if a log handler fails, the request is answered
        log.error(message, request, exc_info=error)
