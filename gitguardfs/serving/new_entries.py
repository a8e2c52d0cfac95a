"""Names that come: checked, made, looked at once more and given to the caller, or undone."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from stat import S_IFDIR, S_IFLNK, S_IFMT, S_IMODE, S_ISDIR, S_ISGID, S_ISLNK, S_ISREG

from gitguardfs.fs import symlinks
from gitguardfs.fs.access import NodeRef
from gitguardfs.fs.attributes import Attributes
from gitguardfs.fs.mount_state import Caller, State
from gitguardfs.fs.nodes import Node, stale

log = logging.getLogger(__name__)

CLOCK_TICK_NS = 20_000_000
"""File systems stamp with a clock that may be a tick behind; twice the longest tick."""

OWNS_ALL = (errno.EPERM, errno.EACCES, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)
"""What a share answers that does not let owners be changed; anything else is a failure."""


class NewNames(State):
    """The operations that add a name."""

    def mkdir(self, caller: Caller, parent_id: int, name: bytes, mode: int) -> Attributes:
        """Make a directory, which belongs to the caller."""
        mode = self._policy.new_mode(S_IFDIR | mode)

        def make(dir_fd: int) -> int:
            self._source.mkdir(dir_fd, name, S_IMODE(mode))
            return -1

        return self._add(caller, parent_id, name, mode, make)

    def mknod(
        self, caller: Caller, parent_id: int, name: bytes, mode: int, rdev: int
    ) -> Attributes:
        """Make a file, FIFO, socket or device, which belongs to the caller."""
        mode = S_IFMT(mode) | self._view.incoming_mode(S_IFMT(mode), mode)
        mode = self._policy.new_mode(mode)

        def make(dir_fd: int) -> int:
            self._source.mknod(dir_fd, name, mode, rdev)
            return -1

        return self._add(caller, parent_id, name, mode, make)

    def symlink(self, caller: Caller, parent_id: int, name: bytes, target: bytes) -> Attributes:
        """Make a symlink, which belongs to the caller; EPERM where they are resolved."""
        place = self._access.name(parent_id, name, change=True)
        if self._links is not None:
            raise symlinks.denied()
        self._host.before_symlink(place, target)

        def make(dir_fd: int) -> int:
            self._source.symlink(dir_fd, name, target)
            return -1

        return self._add(caller, parent_id, name, 0, make)

    def link(self, caller: Caller, node_id: int, parent_id: int, name: bytes) -> Attributes:
        """Give a file another name; its owner stays."""
        node = self._access.node(node_id, change=True)
        if node.kind == S_IFLNK:
            text = self._source.readlink(self._descriptors.of(node))
            self._host.before_symlink(self._access.name(parent_id, name, change=True), text)

        def make(dir_fd: int) -> int:
            self._source.link(self._descriptors.of(node), dir_fd, name)
            return -1

        return self._add(caller, parent_id, name, node.kind, make, node)

    def _add(
        self,
        caller: Caller,
        parent_id: int,
        name: bytes,
        mode: int,
        make: Callable[[int], int],
        linked: Node | None = None,
    ) -> Attributes:
        return self._add_node(caller, parent_id, name, mode, make, linked)[1]

    def _add_node(
        self,
        caller: Caller,
        parent_id: int,
        name: bytes,
        mode: int,
        make: Callable[[int], int],
        linked: Node | None = None,
    ) -> tuple[Node, Attributes, int]:
        """Add a name: check it, make it, give it to the caller; all of that or nothing.

        ``make`` gets the directory's descriptor and returns that of the new object, or -1.
        ``mode`` has the type and, for an open file, the permission bits it is to end with.
        ``linked`` is what gets another name, if nothing new is made.
        """
        place = self._access.name(parent_id, name, change=True)
        self._host.before_adding(place, _kind_of(mode))
        directory = self._source.stat(place.fd)
        owner = self._new_owner(caller, directory) if linked is None else None
        self._access.check_completes_no_repository(place, S_ISDIR(mode))
        fd = self._make(place, mode, make, linked)
        made = fd
        is_ours = True
        try:
            if fd < 0:
                made = self._source.open_node(place.fd, place.name)
                is_ours = self._is_ours(made, mode, directory.st_ctime_ns if linked is None else 0)
                if not is_ours:
                    raise stale()
            self._access.check_added(place, S_ISDIR(mode))
            st = self._source.stat(made)
            if S_ISLNK(st.st_mode):
                self._host.wait_for_git(S_IFLNK, place)
            if owner is not None:
                st = self._give(owner, made, st, mode)
            if linked is None:
                self._release_number(place, st)
            node = self._see(place, st)
            if node is None:
                raise stale()
            shown = self._present_found(node, st, caller.uid)
        except BaseException:
            if is_ours:
                self._undo(place, made, mode, linked)
            if made >= 0:
                os.close(made)
            self._host.note_change(place)
            raise
        if fd < 0:
            os.close(made)
        self._host.note_made(place, st, linked is None)
        node.lookup_count += 1
        return node, shown, fd

    def _make(
        self, place: NodeRef, mode: int, make: Callable[[int], int], linked: Node | None
    ) -> int:
        """Run ``make``; what a call that failed has made all the same is removed, if it matters."""
        was_free = self._access.matters(place.name)
        was_free = was_free and self._source.find_at(place.fd, place.name) is None
        try:
            return make(place.fd)
        except FileExistsError:
            raise
        except OSError:
            if was_free:
                self._undo(place, -1, mode, linked)
            raise

    def _is_ours(self, made: int, mode: int, before: int) -> bool:
        """Whether ``made`` is what was just made, and not something older in its place.

        Through another guard over the same source, that may have been moved there meanwhile; it
        is not the caller's to get, nor ours to remove. ``before`` is when the directory was last
        changed before that, in nanoseconds; 0 for a link, which may be to something as old as it
        likes.
        """
        birth = self._source.btime_ns(made)
        is_old = 0 < birth < before - CLOCK_TICK_NS
        return S_IFMT(self._source.stat(made).st_mode) == _kind_of(mode) and not is_old

    def _release_number(self, place: NodeRef, st: os.stat_result) -> None:
        """Of something new, the inode number is new: who has it in the table is gone.

        A descriptor keeps a local file system from giving it out again, but not a server. Unless
        it is still there, and another guard has moved it to ``place`` or linked it.
        """
        former = self.nodes.find_below(place.parent, st)
        if former is None:
            return
        with suppress(OSError):
            if self._source.is_at(self._descriptors.parent_of(former), former.name, st):
                return
        self.nodes.unhash(former)

    def _undo(self, place: NodeRef, made: int, mode: int, linked: Node | None) -> None:
        """Remove the name that was just made; without a descriptor, what can only be that."""

        def undo() -> None:
            st = self._source.find_at(place.fd, place.name)
            if st is None:
                return
            if made >= 0:
                is_it = os.path.samestat(st, self._source.stat(made))
            elif linked is not None:
                is_it = linked.matches(st)
            else:
                is_it = S_IFMT(st.st_mode) == _kind_of(mode) and not (
                    S_ISREG(st.st_mode) and st.st_size
                )
            if is_it:
                self._source.remove(place.fd, place.name, S_ISDIR(mode))

        self._surely(undo, place)

    def _surely(self, undo: Callable[[], None], place: NodeRef) -> None:
        """Undo something, and try again if that fails; an error is for the log."""
        for is_last in (False, True):
            try:
                undo()
                return
            except OSError as error:
                if is_last:
                    path = os.fsdecode(self._access.path(place.parent, place.name))
                    log.error(
                        "%r could not be undone: %s; look at it on the host", path, error.strerror
                    )

    def _new_owner(self, caller: Caller, directory: os.stat_result) -> tuple[int, int] | None:
        if not self._can_chown:
            return None
        inherits_group = bool(directory.st_mode & S_ISGID)
        return self._policy.new_owner(caller, inherits_group, self._view.idmap)

    def _give(
        self, owner: tuple[int, int], fd: int, st: os.stat_result, mode: int
    ) -> os.stat_result:
        """Give a new object to ``owner``; OSError if it would stay somebody else's."""
        uid = -1 if st.st_uid == owner[0] else owner[0]
        gid = -1 if st.st_gid == owner[1] else owner[1]
        if (uid, gid) == (-1, -1):
            return st
        try:
            self._source.chown(fd, uid, gid)
        except OSError as error:
            # A share with one owner for all (QEMU's security_model=none) keeps it so.
            if error.errno in OWNS_ALL and st.st_uid in (owner[0], self._share_owner):
                return st
            raise
        if mode & 0o6000 and not S_ISDIR(mode):
            self._source.chmod(fd, mode & 0o7777)  # chown took the set-id bits
        return self._source.stat(fd)


def _kind_of(mode: int) -> int:
    return S_IFMT(mode) or S_IFLNK
