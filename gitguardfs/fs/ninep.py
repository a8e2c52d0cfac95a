"""Sources whose descriptors hold paths, not objects: 9p shares.

QEMU's server keeps the path of each object that the guest's kernel holds. So a descriptor leads
to the object that the host has at that path now. An object is held while a descriptor of it, or of
an object below it, is open. The guest's kernel shows a held object's first number and type for its
name, even after the host has replaced it. All other attributes, and listings, are the present ones.

So no descriptor of a file is kept from one request to the next. Where the number or type of a held
object would decide, a listing decides instead.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from stat import S_IFDIR, S_IFLNK, S_IFMT, S_IFREG, S_ISDIR

from gitguardfs.base.protocol import EntryReply, GuestUid
from gitguardfs.fs.access import NodeRef
from gitguardfs.fs.descriptors import OPEN_NODE, DescriptorCache
from gitguardfs.fs.nodes import NEVER, ROOT_ID, Directory, Node, ObjectKey, stale
from gitguardfs.fs.resolver import Resolver
from gitguardfs.fs.source import Source
from gitguardfs.names import repository
from gitguardfs.names.dotgit import any_spelling


class NinepDescriptors(DescriptorCache):
    """Descriptors of nodes; each is looked at again before it is relied on."""

    holds_objects = False

    def __init__(self, limit: int, root_fd: int) -> None:
        super().__init__(limit, root_fd)
        self._root_fd = root_fd
        self._device = os.fstat(root_fd).st_dev
        self._file: Node | None = None
        """The node of a file that has a descriptor, which the next request closes."""
        self._numbers: dict[Node, int] = {}
        """Descriptors that hold the root instead of a node, until the node is found again."""

    def of(self, node: Node) -> int:
        """Return a descriptor of ``node``; of a file, one that was opened in this request."""
        self._close_file()
        if not node.is_directory:
            if node.parent is None:
                if node.open_fds:  # without a name, an open file leads to the object
                    return node.open_fds[0]
                raise stale()
            if node.leased != self.request:
                self.close(node)  # it may lead to another object by now
            self._file = node
            node.leased = self.request
            if node.fd < 0:
                self.keep(node, self._open_again(node))
            return node.fd
        return super().of(node)

    def _close_file(self) -> None:
        if self._file is not None and self._file.leased != self.request:
            file, self._file = self._file, None
            self.close(file)

    def known(self, node: Node) -> int:
        """Return -1: a descriptor may lead to another object by now."""
        return -1

    def keep(self, node: Node, fd: int, is_here: bool = False) -> None:
        """Cache ``fd`` instead of an older descriptor, which may lead elsewhere by now."""
        if node.fd >= 0 and node.leased == self.request:
            os.dup2(fd, node.fd, inheritable=False)
            os.close(fd)
            return
        self.close(node)
        super().keep(node, fd, is_here)

    def _is_below_mount(self, node: Node) -> bool:
        """Return whether the node is on another file system.

        To compare mounts instead, 9p would ask the server.
        """
        return node.dev != self._device

    def note_replaced(self, node: Node) -> None:
        """Note nothing: no descriptor holds an object that is replaced."""

    def keep_removed(self, node: Node, fd: int, is_last: bool) -> None:
        """Keep ``fd`` of an object without a name; objects with names are found by those."""
        if is_last:
            self.keep(node, fd)
            if isinstance(node, Directory):
                node.classified_at = NEVER
        else:
            os.close(fd)
            self.close(node)

    def let_go(self, nodes: Sequence[Node]) -> None:
        """Hold the root instead of each of ``nodes`` that has a descriptor.

        The number of a descriptor stays in use: it may be leased.
        """
        while self._numbers:
            os.close(self._numbers.popitem()[1])
        for node in nodes:
            if node in self._cached:
                del self._cached[node]
                os.dup2(self._root_fd, node.fd, inheritable=False)
                self._numbers[node], node.fd = node.fd, -1

    def found(self, node: Node) -> int:
        """Open a directory by its name, after ``let_go``; return the descriptor."""
        if node.id == ROOT_ID:
            return node.fd
        if node.parent is None:
            raise stale()
        try:
            fd = self.open(OPEN_NODE, node.name, self.of(node.parent))
            try:
                if not node.matches(os.fstat(fd)):
                    raise stale()
            except OSError:
                os.close(fd)
                raise
        except (FileNotFoundError, NotADirectoryError):
            raise stale() from None
        number = self._numbers.pop(node, -1)
        if number >= 0:
            os.dup2(fd, number, inheritable=False)
            os.close(fd)
            fd = number
        self.keep(node, fd)
        return self.of(node)

    def check_nameless(self, node: Node) -> None:
        """Refuse a node without a name: another object may be at its path."""
        raise stale()

    def close_all(self) -> None:
        """Close all descriptors of this cache, at the end of a mount."""
        self.let_go(())
        super().close_all()


class NinepSource(Source):
    """System calls on a 9p share. Every method raises OSError."""

    closes_at_once = True

    def __init__(
        self, descriptors: DescriptorCache, is_local: Callable[[int], bool], noatime: bool,
        is_open: Callable[[os.stat_result], bool],
    ) -> None:  # fmt: skip
        """``is_open`` says whether the guest has a file of that number and type open."""
        super().__init__(descriptors, is_local, noatime)
        self._is_open = is_open

    def mode_at(self, dir_fd: int, name: bytes) -> int | None:
        """Return the st_mode of an entry; None if there is none. Raises OSError.

        A held name may show the type of a former directory: the mode is S_IFDIR only if a listing
        agrees. Raises ENOTDIR if ``dir_fd`` no longer is a directory.
        """
        try:
            mode = self.stat_at(dir_fd, name).st_mode
        except FileNotFoundError:
            return None
        if S_ISDIR(mode) and not self._is_listed_directory(dir_fd, name):
            return S_IFREG
        return mode

    def holds_repository(self, fd: int) -> bool:
        """Return whether a directory is treated as ``.git`` itself. Raises as ``mode_at`` does."""
        return repository.is_repository(partial(self.mode_at, fd))

    def _is_listed_directory(self, dir_fd: int, name: bytes) -> bool:
        """Return whether a listing has ``name``, in any spelling, and only as a directory."""
        types = {
            file_type
            for entry, (file_type, _) in self.typed_names(dir_fd).items()
            if entry == name or name in repository.parts(entry)
        }
        return types == {S_IFDIR}

    def is_at(self, dir_fd: int, name: bytes, st: os.stat_result) -> bool:
        """Return whether ``name`` is the object of ``st``; by a listing if a file is open there."""
        shown = self.find_at(dir_fd, name)
        if shown is not None and (self._is_open(st) or self._is_open(shown)):
            return self.typed_names(dir_fd).get(name, (0, None))[1] == st.st_ino
        return shown is not None and os.path.samestat(shown, st)

    def is_folded(
        self, dir_fd: int, name: bytes, other: bytes, means_other: Callable[[bytes], bool]
    ) -> bool:
        """Return whether ``other`` leads to the entry called ``name``.

        A moved entry may show an older number. ``other`` then counts as leading to it, unless
        ``means_other`` is true of another entry.
        """
        st, found = self.find_at(dir_fd, name), self.find_at(dir_fd, other)
        if st is None or found is None or os.path.samestat(st, found):
            return st is not None and found is not None
        return not any(means_other(entry) for entry in self.names(dir_fd) if entry != name)

    def arrived(self, dir_fd: int, name: bytes, moved: os.stat_result) -> os.stat_result:
        """Return ``moved`` if its type has arrived; else what a listing says of the entry.

        A held name still shows the number of the object that was there.
        """
        shown = super().arrived(dir_fd, name, moved)
        is_same = S_IFMT(shown.st_mode) == S_IFMT(moved.st_mode)
        if (is_same and not self._is_open(shown)) or not self._is_disguised(dir_fd, name, moved):
            return moved
        file_type, number = self.typed_names(dir_fd).get(name, (0, 0))
        return os.stat_result((file_type, number, moved.st_dev, *[0] * 7))

    def check_type(self, dir_fd: int, name: bytes, st: os.stat_result) -> None:
        """Check by a listing that an entry has the type that ``st`` says."""
        if (S_ISDIR(st.st_mode) or self._is_open(st)) and self._is_disguised(dir_fd, name, st):
            raise stale()

    def _is_disguised(self, dir_fd: int, name: bytes, st: os.stat_result) -> bool:
        file_type = S_IFMT(st.st_mode)
        if file_type not in (S_IFREG, S_IFLNK):
            file_type = S_IFDIR
        spelling = any_spelling(name)
        listed = self.typed_names(dir_fd).items()
        return any(t != file_type for n, (t, _) in listed if any_spelling(n) == spelling)

    def check_is_file(self, dir_fd: int, name: bytes) -> None:
        """Check that an entry at which a file is open is a file still.

        A directory there would seem to be the file, and would be changed, even a repository.
        No server reads a directory as a file.
        """
        try:
            st = self.stat_at(dir_fd, name)
            try:
                fd = self.open_file_at(dir_fd, name, os.O_RDONLY)
                try:
                    os.pread(fd, 1, 0)
                finally:
                    os.close(fd)
            except FileNotFoundError:
                raise
            except OSError:  # it may also be unreadable, or a symlink
                if self._is_disguised(dir_fd, name, st):
                    raise stale() from None
        except (FileNotFoundError, NotADirectoryError):
            raise stale() from None

    def is_taken_only_here(self, dir_fd: int, name: bytes) -> bool:
        """Return whether a name is taken for this machine's kernel, and free for the server.

        A descriptor of an object that the host has removed, or of one below it, has that effect.
        If the name is taken only here, closes the cached descriptors.
        """
        if self.find_at(dir_fd, name) is not None:
            return False
        self._descriptors.close_unleased()
        return True

    def is_repository_at(self, dir_fd: int, name: bytes) -> bool:
        """Return whether an entry is a directory that is treated as ``.git`` itself.

        Raises OSError(ESTALE) for an entry that is held, since its content cannot be seen.
        """
        try:
            fd = self.open_node(dir_fd, name)
        except FileNotFoundError:
            return False
        try:
            if not S_ISDIR(self.stat(fd).st_mode):
                raise stale()  # what it holds cannot be seen
            return self.holds_repository(fd)
        finally:
            os.close(fd)


class NinepResolver(Resolver):
    """Finds nodes; closes descriptors first if an entry may show the number of a held object."""

    def entry(
        self,
        ref: NodeRef,
        st: os.stat_result,
        uid: GuestUid,
        dotgit: ObjectKey | bool | None = True,
        *,
        made: int = -1,
    ) -> tuple[Node, EntryReply] | None:
        """Return the node of ``ref``, as ``Resolver.entry`` does.

        A directory's name shows its number also once the host has replaced it, while it is held.
        So if a node elsewhere has the number, all descriptors that are not leased are closed first.
        """
        if made >= 0:
            return super().entry(ref, st, uid, dotgit, made=made)
        if S_ISDIR(st.st_mode):
            node = self._nodes.find_below(ref.parent, st)
            if node is not None and (node.parent is not ref.parent or node.name != ref.name):
                st = self._unheld(ref)
        try:
            return super().entry(ref, st, uid, dotgit)
        except NotADirectoryError:  # something else is there now
            return super().entry(ref, self._unheld(ref), uid, dotgit)

    def _unheld(self, ref: NodeRef) -> os.stat_result:
        """Return the attributes of an entry when the daemon holds nothing but its directory."""
        self._descriptors.close_unleased()
        return self._source.stat_at(ref.fd, ref.name)

    def _is_same_at(self, parent: Directory, name: bytes, node: Node, st: os.stat_result) -> bool:
        """Return whether ``node`` is the object at a name, after a look by ``Source.is_at``.

        A name shows the number of a file that was opened at it for as long as the file is open,
        whatever the host has put there. Listings show the present numbers.
        """
        is_there = self._source.is_at(self._descriptors.of(parent), name, st)
        return is_there and super()._is_same_at(parent, name, node, st)
