"""The requests that change a name, in their usual cases (see ``looks``).

What has changed the source when a later step fails is undone as the tree undoes it.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from stat import S_IFDIR, S_IFREG, S_IMODE

from gitguardfs.base.protocol import (
    RENAME_NOREPLACE,
    Caller,
    EntryReply,
    NodeId,
    OpenReply,
    make,
)
from gitguardfs.fs import revalidation
from gitguardfs.fs.access import NodeRef, Renaming
from gitguardfs.fs.files import SOURCE_FLAGS
from gitguardfs.fs.lean.looks import TYPE, LeanLooks
from gitguardfs.fs.new_entries import CLOCK_TICK_NS
from gitguardfs.fs.nodes import PLAIN_VARIANT, Directory, Node, stale
from gitguardfs.fs.parts import SourceTraits
from gitguardfs.fs.renaming import Name
from gitguardfs.fs.tree import Tree
from gitguardfs.names.rules import ALLOW
from gitguardfs.options.mount_options import MountOptions

NOT_RENAMED = (errno.EEXIST, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
"""The errors of a rename with RENAME_NOREPLACE where the name is taken, or the flag is unknown."""


class LeanTree(LeanLooks):
    """UNLINK, RMDIR, RENAME, CREATE and MKDIR in their usual cases. Errors: see ``Tree``."""

    def _parent(self, parent_id: NodeId, name: bytes) -> Directory | None:
        """Return a directory in which a name may be changed; None if that is not certain."""
        parent = self._by_id.get(parent_id)
        if (
            type(parent) is not Directory
            or parent.fd < 0
            or parent.verdict is not ALLOW
            or parent.restrictions != self.nodes.restrictions
            or revalidation.clock() - parent.classified_at >= self._ttl
            or not self._may_change(parent, name)
        ):
            return None
        parent.leased = self.descriptors.request
        return parent

    # Removing

    def unlink(self, caller: Caller, parent_id: NodeId, name: bytes) -> None:
        """Remove a file that is known by this name alone."""
        parent = self._parent(parent_id, name)
        if parent is None or self.policy.delete_deny:
            return super().unlink(caller, parent_id, name)
        fd = self.source.open_node(parent.fd, name)
        try:
            st = self.source.stat(fd)
            node = self._known_at(parent, name, st) if st.st_mode & TYPE == S_IFREG else None
            if node is not None:
                self.source.remove(parent.fd, name, is_directory=False)
        except BaseException:
            os.close(fd)
            raise
        if node is None:
            os.close(fd)
            return super().unlink(caller, parent_id, name)
        # A process may hold it by O_PATH, of which the view knows nothing.
        self.descriptors.keep(node, fd, is_here=True)
        self._note_removed(node, st)

    def rmdir(self, caller: Caller, parent_id: NodeId, name: bytes) -> None:
        """Remove a directory that was classified a moment ago. It is empty, so no repository."""
        parent = self._parent(parent_id, name)
        if parent is not None and not self.policy.delete_deny:
            st = self.source.find_at(parent.fd, name)
            node = None if st is None else self._known_at(parent, name, st)
            if (
                st is not None
                and type(node) is Directory
                and node.fd >= 0
                and revalidation.clock() - node.classified_at < self._ttl
            ):
                try:
                    self.source.remove(parent.fd, name, is_directory=True)
                except OSError:
                    pass  # the tree finds out why
                else:
                    return self._note_removed(node, st)
        return super().rmdir(caller, parent_id, name)

    def _note_removed(self, node: Node, st: os.stat_result) -> None:
        """Note that the object of a node has lost its last name; the node has its descriptor."""
        self.nodes.unhash(node)
        self.descriptors.pin(node)
        node.parent = None
        node.unplaced_as = st.st_size, st.st_mtime_ns

    # Renaming

    def rename_file(self, old_name: Name, new_name: Name, flags: int) -> bool:
        """Move a file that is known by its old name alone, to a name that is free."""
        (old_id, name), (new_id, other) = old_name, new_name
        if flags & ~RENAME_NOREPLACE or self.policy.rename_deny or not self._is_plain(name):
            return False
        above, st = self._by_id.get(old_id), None
        if above is not None and above.fd >= 0:
            with suppress(OSError):  # first, since most of what is no file is a directory
                st = self.source.find_at(above.fd, name)
        if st is None or st.st_mode & TYPE != S_IFREG:
            return False
        old, new = self._parent(old_id, name), self._parent(new_id, other)
        node = None if old is None or new is None else self._known_at(old, name, st)
        if old is None or new is None or node is None:
            return False
        try:
            self.source.rename(old.fd, name, new.fd, other, RENAME_NOREPLACE)
        except OSError as error:
            if error.errno in NOT_RENAMED:
                return False
            raise
        arrived = st
        try:
            arrived = self.source.arrived(new.fd, other, st)
            # Another guard may have replaced the file; a new object can get its number.
            if arrived.st_mode & TYPE != S_IFREG or not os.path.samestat(arrived, st):
                raise stale()
        except BaseException:
            refs = NodeRef(old, old.fd, name, True), NodeRef(new, new.fd, other, True)
            self._move_back(Renaming(*refs, st, None, flags, False, False, True, []), arrived)
            raise
        node.parent, node.name = new, other
        if self.nodes.note is not None:
            self.nodes.note(node)
        return True

    # Adding

    def create(
        self, caller: Caller, parent_id: NodeId, name: bytes, mode: int, flags: int
    ) -> tuple[OpenReply, EntryReply]:
        """Make a file at a free name, and open it."""
        parent = self._parent(parent_id, name)
        if parent is None:
            return super().create(caller, parent_id, name, mode, flags)
        stored = self.new_mode(S_IFREG, mode)
        owner = self.owner_in(self.source.stat(parent.fd), caller)
        try:
            fd = self.source.create(parent.fd, name, flags & SOURCE_FLAGS, S_IMODE(stored))
        except FileExistsError:
            fd = -1
        if fd < 0:
            return super().create(caller, parent_id, name, mode, flags)
        ref = make(NodeRef, (parent, parent.fd, name, True))
        node, entry = self._add_made(caller, ref, stored, owner, fd)
        return self._created(node, fd, flags, stored, entry), entry

    def mkdir(self, caller: Caller, parent_id: NodeId, name: bytes, mode: int) -> EntryReply:
        """Make a directory at a free name. A fresh one is empty, so no repository."""
        parent = self._parent(parent_id, name)
        if parent is None:
            return super().mkdir(caller, parent_id, name, mode)
        mode = self.new_mode(S_IFDIR, mode)
        directory = self.source.stat(parent.fd)
        owner = self.owner_in(directory, caller)
        ref = make(NodeRef, (parent, parent.fd, name, True))
        self.source.mkdir(parent.fd, name, S_IMODE(mode))
        fd, is_fresh = -1, False
        with suppress(OSError):
            fd = self.source.open_node(parent.fd, name)
            st, birth = self.source.stat(fd), self.source.btime_ns(fd)
            # Not an older one, moved here through another guard: that may have been written to in
            # the same tick of the clock, and some sources have no ctime of their own.
            is_fresh = (
                birth >= directory.st_ctime_ns - CLOCK_TICK_NS
                and st.st_mode & TYPE == S_IFDIR
                and st.st_mtime_ns == st.st_ctime_ns
            )
        if not is_fresh:
            if fd >= 0:
                os.close(fd)
            return self.add_made(caller, ref, mode, owner, directory)[1]
        is_checked = self.guard.checks_fake_repositories  # at each lookup
        born = birth if is_checked else 0
        node, entry = self._add_made(caller, ref, mode, owner, fd, st, born)
        if is_checked:
            self.descriptors.keep(node, fd, is_here=True)
        else:
            os.close(fd)
        return entry

    def _add_made(
        self,
        caller: Caller,
        ref: NodeRef,
        mode: int,
        owner: tuple[int, int] | None,
        fd: int,
        st: os.stat_result | None = None,
        birth: int = 0,
    ) -> tuple[Node, EntryReply]:
        """Give a fresh object to the caller's user and add its node, or remove it again.

        ``st`` has its attributes, and ``birth`` is its birth time (ns), if the caller has them.
        Closes its descriptor ``fd`` if a step fails. Counts a lookup.
        """
        nodes, node = self.nodes, None
        try:
            if st is None:
                st = self.source.stat(fd)
            if owner is not None and owner != (st.st_uid, st.st_gid):
                st = self._give(owner, fd, st, mode)
            if nodes.find(st) is not None:  # of an object that is gone, or with another name
                self.resolver.release_number(ref, st)
                found = self.resolver.entry(ref, st, caller.uid, made=fd)
                assert found is not None  # a plain name is not hidden
                return found
            node = nodes.add(st, PLAIN_VARIANT, ALLOW, "")
            node.parent, node.name, node.btime_ns = ref.parent, ref.name, birth
            if nodes.note is not None:
                nodes.note(node)
            node.restrictions = nodes.restrictions
            if isinstance(node, Directory):
                node.classified_at = ref.parent.classified_at
            entry = self.attributes.report(node, st, caller.uid)
            node.lookup_count = 1
        except BaseException:
            if node is not None:
                self.resolver.drop_unknown(node)
            self._remove_new(ref, fd, mode, None)
            os.close(fd)
            raise
        return node, entry


def tree_of(options: MountOptions, traits: SourceTraits, reports_names_only: bool) -> Tree:
    """Return the tree of a source, with the lean methods unless every request there is unusual.

    They rely on descriptors that hold objects, and on symlinks that are shown as such.
    """
    kind = Tree if traits.is_ninep or options.symlinks is not None else LeanTree
    return kind(options, traits, reports_names_only)
