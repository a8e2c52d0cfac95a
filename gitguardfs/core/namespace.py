"""Names that come, go and move. All or nothing, and the tables follow."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from stat import S_IFDIR, S_IFLNK, S_IFMT, S_IMODE, S_ISDIR, S_ISGID, S_ISLNK, S_ISREG

from gitguardfs.core import links, syscalls
from gitguardfs.core.gate import Place
from gitguardfs.core.guard import Refused
from gitguardfs.core.inodes import Node, stale
from gitguardfs.core.links import Links, Target
from gitguardfs.core.policy import Deletion
from gitguardfs.core.state import Caller, State
from gitguardfs.core.view import Attributes

log = logging.getLogger(__name__)

CLOCK_TICK_NS = 20_000_000
"""File systems stamp with a clock that may be a tick behind; twice the longest tick."""

OWNS_ALL = (errno.EPERM, errno.EACCES, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)
"""What a share answers that does not let owners be changed; anything else is a failure."""

RENAME_FLAGS = syscalls.RENAME_NOREPLACE | syscalls.RENAME_EXCHANGE
"""RENAME_WHITEOUT would leave a device behind, which only overlay mounts have a use for."""


class Names(State):
    """The operations that change which names there are."""

    # New names

    def mkdir(self, caller: Caller, parent_id: int, name: bytes, mode: int) -> Attributes:
        """Make a directory, which belongs to the caller."""
        mode = self._policy.new_mode(S_IFDIR | mode)

        def make(dir_fd: int) -> int:
            self._backing.mkdir(dir_fd, name, S_IMODE(mode))
            return -1

        return self._add(caller, parent_id, name, mode, make)

    def mknod(
        self, caller: Caller, parent_id: int, name: bytes, mode: int, rdev: int
    ) -> Attributes:
        """Make a file, FIFO, socket or device, which belongs to the caller."""
        mode = S_IFMT(mode) | self._view.incoming_mode(S_IFMT(mode), mode)
        mode = self._policy.new_mode(mode)

        def make(dir_fd: int) -> int:
            self._backing.mknod(dir_fd, name, mode, rdev)
            return -1

        return self._add(caller, parent_id, name, mode, make)

    def symlink(self, caller: Caller, parent_id: int, name: bytes, target: bytes) -> Attributes:
        """Make a symlink, which belongs to the caller; EPERM where they are resolved."""
        place = self._gate.place(parent_id, name, change=True)
        if self._links is not None:
            raise links.denied()
        self._host.before_symlink(place, target)

        def make(dir_fd: int) -> int:
            self._backing.symlink(dir_fd, name, target)
            return -1

        return self._add(caller, parent_id, name, 0, make)

    def link(self, caller: Caller, node_id: int, parent_id: int, name: bytes) -> Attributes:
        """Give a file another name; its owner stays."""
        node = self._gate.node(node_id, change=True)
        if node.kind == S_IFLNK:
            text = self._backing.readlink(self._descriptors.of(node))
            self._host.before_symlink(self._gate.place(parent_id, name, change=True), text)

        def make(dir_fd: int) -> int:
            self._backing.link(self._descriptors.of(node), dir_fd, name)
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
        place = self._gate.place(parent_id, name, change=True)
        directory = self._backing.stat(place.fd)
        owner = self._new_owner(caller, directory) if linked is None else None
        self._gate.admit(place, S_ISDIR(mode))
        fd = self._make(place, mode, make, linked)
        made = fd
        is_ours = True
        try:
            if fd < 0:
                made = self._backing.open_node(place.fd, place.name)
                is_ours = self._is_ours(made, mode, directory.st_ctime_ns if linked is None else 0)
                if not is_ours:
                    raise stale()
            self._gate.check_added(place, S_ISDIR(mode))
            st = self._backing.stat(made)
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
        node.lookups += 1
        return node, shown, fd

    def _make(
        self, place: Place, mode: int, make: Callable[[int], int], linked: Node | None
    ) -> int:
        """Run ``make``; what a call that failed has made all the same is removed, if it matters."""
        was_free = self._gate.matters(place.name)
        was_free = was_free and self._backing.find_at(place.fd, place.name) is None
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
        birth = self._backing.birth(made)
        is_old = 0 < birth < before - CLOCK_TICK_NS
        return S_IFMT(self._backing.stat(made).st_mode) == _kind_of(mode) and not is_old

    def _release_number(self, place: Place, st: os.stat_result) -> None:
        """Of something new, the inode number is new: who has it in the table is gone.

        A descriptor keeps a local file system from giving it out again, but not a server. Unless
        it is still there, and another guard has moved it to ``place`` or linked it.
        """
        former = self.inodes.at(place.parent, st)
        if former is None:
            return
        with suppress(OSError):
            if self._backing.is_at(self._descriptors.parent_of(former), former.name, st):
                return
        self.inodes.detach(former)

    def _undo(self, place: Place, made: int, mode: int, linked: Node | None) -> None:
        """Remove the name that was just made; without a descriptor, what can only be that."""

        def undo() -> None:
            st = self._backing.find_at(place.fd, place.name)
            if st is None:
                return
            if made >= 0:
                is_it = os.path.samestat(st, self._backing.stat(made))
            elif linked is not None:
                is_it = linked.matches(st)
            else:
                is_it = S_IFMT(st.st_mode) == _kind_of(mode) and not (
                    S_ISREG(st.st_mode) and st.st_size
                )
            if is_it:
                self._backing.remove(place.fd, place.name, S_ISDIR(mode))

        self._surely(undo, place)

    def _surely(self, undo: Callable[[], None], place: Place) -> None:
        """Undo something, and try again if that fails; an error is for the log."""
        for is_last in (False, True):
            try:
                undo()
                return
            except OSError as error:
                if is_last:
                    path = os.fsdecode(self._gate.path(place.parent, place.name))
                    log.error(
                        "%r could not be undone: %s; look at it on the host", path, error.strerror
                    )

    def _new_owner(self, caller: Caller, directory: os.stat_result) -> tuple[int, int] | None:
        if not self._changes_owners:
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
            self._backing.chown(fd, uid, gid)
        except OSError as error:
            # A share with one owner for all (QEMU's security_model=none) keeps it so.
            if error.errno in OWNS_ALL and st.st_uid in (owner[0], self._share_owner):
                return st
            raise
        if mode & 0o6000 and not S_ISDIR(mode):
            self._backing.chmod(fd, mode & 0o7777)  # chown took the set-id bits
        return self._backing.stat(fd)

    # Names that go or move

    def unlink(self, caller: Caller, parent_id: int, name: bytes) -> None:
        """Remove an entry that is no directory."""
        self._remove(caller, parent_id, name, is_directory=False)

    def rmdir(self, caller: Caller, parent_id: int, name: bytes) -> None:
        """Remove an empty directory."""
        self._remove(caller, parent_id, name, is_directory=True)

    def _remove(self, caller: Caller, parent_id: int, name: bytes, is_directory: bool) -> None:
        place = self._gate.place(parent_id, name, change=True)

        def remove(st: os.stat_result) -> None:
            if self._links is not None and S_ISLNK(st.st_mode):
                self._remove_link(caller, self._links, place)
            else:
                self._backing.remove(place.fd, place.name, is_directory)

        self._remove_at(place, remove)

    def _remove_at(self, place: Place, remove: Callable[[os.stat_result], None]) -> None:
        fd = self._backing.open_node(place.fd, place.name)
        try:
            st = self._backing.stat(fd)
            self._gate.allowed(place, st)
            self._policy.may_remove()
            self._host.before_removal(place, st)
            remove(st)
        except BaseException:
            os.close(fd)
            raise
        self._host.note_change(place)
        self._lose_name(place, st, fd)

    def _remove_link(self, caller: Caller, resolved: Links, place: Place) -> None:
        """Remove a symlink that is shown as its target, and the target as the policy says."""
        deletion = resolved.deletion
        if deletion is Deletion.DENY:
            raise links.denied()
        target = None
        with suppress(Refused):  # one that leads where it must not just goes
            target = resolved.target(place)
        takes_target = deletion in (Deletion.SYMLINK_FIRST, Deletion.TARGET_FIRST)
        if target is not None and takes_target:
            self._may_replace(caller, target)
        if target is not None and deletion is Deletion.TARGET_FIRST:
            self._remove_target(target)
        self._backing.remove(self._gate.again(place).fd, place.name, is_directory=False)
        if target is None:
            return
        if deletion is Deletion.SYMLINK_FIRST:
            try:
                self._remove_target(target)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:  # as bindfs: the symlink is gone in any case
                    raise
        if target.branch is not None:  # the kernel takes it for removed
            node = self.inodes.find(target.st, target.branch.view)
            if node is not None:
                self.inodes.detach(node)

    def _remove_target(self, target: Target) -> None:
        place = self._gate.again(target.place)
        is_directory = S_ISDIR(target.st.st_mode)
        self._remove_at(place, lambda _: self._backing.remove(place.fd, place.name, is_directory))

    def _may_replace(self, caller: Caller, target: Target) -> Place:
        """The place of a symlink's target, which the caller is about to remove or replace.

        The kernel has looked at the rights in the symlink's directory only. Raises Refused,
        Later, or OSError(EACCES) if the caller may not do that in the target's, as the view
        shows it.
        """
        self._gate.settle(target.place)  # while nothing is removed yet
        place = self._gate.again(target.place)
        self._gate.allowed(place, target.st)
        place = self._gate.again(place)
        directory, entry = (
            self._view.unguarded(0, st, caller.uid)
            for st in (self._backing.stat(place.fd), target.st)
        )
        if not links.may_remove(caller, directory, entry):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        return place

    def _lose_name(self, place: Place, st: os.stat_result, fd: int) -> None:
        """Note that a name is gone; ``fd``, of the object, is now ours to keep or close.

        What the kernel still uses can only be reached by descriptor from now on.
        """
        node = self.inodes.at(place.parent, st)
        if node is None:
            os.close(fd)
            return
        self._descriptors.keep(node, fd)
        last = node.is_directory or st.st_nlink <= 1
        if last:
            self.inodes.detach(node)
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
        old = self._gate.place(old_parent_id, old_name, change=True)
        new = self._gate.place(new_parent_id, new_name, change=True)
        if flags & ~RENAME_FLAGS:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._policy.may_rename()
        if self._links is not None:
            target = self._links.replaced(new)
            new = self._gate.again(new if target is None else self._may_replace(caller, target))
        old = self._gate.again(old)
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
            self._gate.admit(new, False, old_name if leaves else b"")
            if exchange:
                self._gate.admit(old, False)
            self._host.before_rename(old, new, moved, replaced, exchange)
            old, new = self._gate.again(old), self._gate.again(new)
            self._move(old, new, moved, replaced, flags)
            self._host.note_moved(*((new, old) if exchange else (new,)))
            self._note_rename(old, new, moved, replaced, exchange, fds)
        finally:
            self._host.note_change(old, new)
            for fd in fds:
                os.close(fd)

    def _take(self, place: Place, fds: list[int], moves: bool) -> os.stat_result | None:
        """Look at an end of a rename; a descriptor that is needed later is added to ``fds``.

        None if there is nothing.
        """
        st = self._backing.find_at(place.fd, place.name)
        if st is None:
            return None
        if not moves or S_ISDIR(st.st_mode):
            fd = self._backing.open_node(place.fd, place.name)
            fds.append(fd)
            st = self._backing.stat(fd)
        self._gate.allowed(place, st)
        if moves and S_ISDIR(st.st_mode):
            self._gate.movable(place, fds[-1], st)
        return st

    def _move(
        self,
        old: Place,
        new: Place,
        moved: os.stat_result,
        target: os.stat_result | None,
        flags: int,
    ) -> None:
        """Rename, or exchange, and undo that if the new names turn out to be forbidden ones.

        So is undone what a call that failed has done all the same, if the names matter.
        """
        ends = (new, old) if flags & syscalls.RENAME_EXCHANGE else (new,)

        def undo() -> None:
            if not self._backing.is_at(new.fd, new.name, moved):
                return
            back = flags if len(ends) == 2 else syscalls.RENAME_NOREPLACE
            try:
                self._backing.rename(new.fd, new.name, old.fd, old.name, back)
            except OSError as error:  # 9p has no flags
                if error.errno != errno.EINVAL or self._backing.find_at(old.fd, old.name):
                    raise
                self._backing.rename(new.fd, new.name, old.fd, old.name, 0)

        try:
            self._backing.rename(old.fd, old.name, new.fd, new.name, flags)
        except OSError:
            if any(self._gate.matters(place.name) for place in ends):
                self._surely(undo, new)
            raise
        try:
            for place in ends:
                self._gate.check_added(place, False)
            self._host.after_rename(old, new, moved, target, len(ends) == 2)
        except BaseException:
            self._surely(undo, new)
            raise

    def _note_rename(
        self,
        old: Place,
        new: Place,
        moved: os.stat_result,
        target: os.stat_result | None,
        exchange: bool,
        fds: list[int],
    ) -> None:
        if target is not None and exchange:
            self._note_place(target, old)
        elif target is not None:
            self._lose_name(new, target, fds.pop())
        self._note_place(moved, new)

    def _note_place(self, st: os.stat_result, place: Place) -> None:
        node = self.inodes.at(place.parent, st)
        if node is not None:
            node.parent, node.name = place.parent, place.name


def _kind_of(mode: int) -> int:
    return S_IFMT(mode) or S_IFLNK
