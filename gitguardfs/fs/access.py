"""The choke points: every node and every name from the kernel is checked here before its use.

``node`` checks a request on an object, ``name`` one on a name in a directory. ``classify`` returns
the verdict on an entry of the source. A request that skips these checks has no descriptor to work
with. ``new_name_check`` checks new names as well.
"""

from __future__ import annotations

import errno
import os
from functools import partial
from stat import S_IFDIR, S_ISDIR
from typing import NamedTuple

from gitguardfs.base.errors import os_error
from gitguardfs.base.protocol import NodeId, make
from gitguardfs.fs import revalidation
from gitguardfs.fs.descriptors import DescriptorCache
from gitguardfs.fs.node_table import NodeTable
from gitguardfs.fs.nodes import Directory, Node, ObjectKey, stale
from gitguardfs.fs.revalidation import MAX_DEPTH, UNREADABLE, VERDICT_TTL, Revalidation
from gitguardfs.fs.source import DOTGIT, Source
from gitguardfs.names import dotgit as names
from gitguardfs.names import repository
from gitguardfs.names.rules import ALLOW, Refused, RuleSet, Verdict

NO_NAMES = (b"", b".", b"..")


class NodeRef(NamedTuple):
    """A checked name in an open directory."""

    parent: Directory
    fd: int
    """A descriptor of the directory, valid during the operation."""
    name: bytes
    is_plain: bool = False
    """Whether no rule says anything about the name."""


class Renaming(NamedTuple):
    """A move of an entry from ``old`` to ``new``, or (``exchange``) an exchange of two entries."""

    old: NodeRef
    new: NodeRef
    moved: os.stat_result
    target: os.stat_result | None
    """The entry at ``new``; None if there is none."""
    flags: int
    exchange: bool
    moves_links: bool
    """Whether a symlink may come to a directory from which its text leads elsewhere."""
    is_plain: bool
    """Whether no rule says anything about either name."""
    fds: list[int]
    """Descriptors to close at the end; the last is of the replaced entry, if there is one."""

    @property
    def moves_directory(self) -> bool:
        """Whether one of the entries is a directory."""
        return S_ISDIR(self.moved.st_mode) or (
            self.target is not None and S_ISDIR(self.target.st_mode)
        )

    def moves(self) -> tuple[tuple[NodeRef, NodeRef, os.stat_result], ...]:
        """Return old name, new name and attributes of each entry that is moved."""
        moved = self.old, self.new, self.moved
        if self.exchange and self.target is not None:
            return moved, (self.new, self.old, self.target)
        return (moved,)

    def close(self) -> None:
        """Close the descriptors."""
        while self.fds:
            os.close(self.fds.pop())


class Classified(NamedTuple):
    """The verdict on an entry of the source, and what was found out for it."""

    verdict: Verdict
    rule: str
    fd: int = -1
    """An O_PATH descriptor that the caller must keep or close; -1 if ``classify`` opened none."""
    btime_ns: int = 0
    """The object's birth time in nanoseconds if ``fd`` is set; otherwise 0."""
    is_open: bool = True
    """False for a directory that the daemon may not search (EACCES, EPERM): it may be a repository.
    Its attributes are shown unchanged, and it is classified again at each use."""


class Access(Revalidation):
    """Checks the requests on one tree.

    Every method raises Refused by the guard, and OSError if the source fails: the verdict is
    unknown then. Only ENOENT and ENOTDIR mean "not there".
    """

    def __init__(
        self,
        guard: RuleSet,
        nodes: NodeTable,
        descriptors: DescriptorCache,
        source: Source,
        read_only: bool,
    ) -> None:
        super().__init__(guard, nodes, descriptors, source)
        self._read_only = read_only
        self.kernel_keeps = False
        """Whether the kernel may use names for long that it does not look up again."""
        self._is_plain = guard.is_plain
        self._by_id = nodes.by_id

    def node(self, node_id: NodeId, change: bool = False) -> Node:
        """Return the node if it may be read or, with ``change``, changed.

        Raises OSError(EROFS, ESTALE) as well.
        """
        node = self._by_id.get(node_id)
        if node is None or node.restrictions != self._nodes.restrictions:
            node = self._nodes.get(node_id)
        directory = node if isinstance(node, Directory) else node.parent
        if directory is None:
            self._descriptors.check_nameless(node)
        elif revalidation.clock() - directory.classified_at >= VERDICT_TTL and self.revalidate(
            directory
        ):
            node = self._nodes.get(node_id)
        if self.kernel_keeps and not node.open_fds:
            self.check_place(node)
        if node.verdict is not ALLOW and (change or node.verdict >= Verdict.DENY):
            raise Refused(node.rule, partial(self.path, node))
        if change:
            if self._read_only:
                raise os_error(errno.EROFS)
            if self._guard.checks_fake_repositories:
                self._check_no_payload(node)
            if node.open_fds and node.parent is not None:
                self._source.check_is_file(self._descriptors.of(node.parent), node.name)
        return node

    def check_place(self, node: Node) -> None:
        """Check that a file is where it was last seen, if the kernel does not look that up.

        The host may have moved it to a guarded place. Raises OSError(ESTALE), after which the
        kernel looks the name up.
        """
        if self.kernel_keeps and node.parent is not None and node.file_type != S_IFDIR:
            st = self._source.find_at(self._descriptors.of(node.parent), node.name)
            if st is None or not node.matches(st):
                raise stale()

    def directory(self, node_id: NodeId) -> Directory:
        """Return a directory if it may be read. Raises as ``node`` does, and OSError(ENOTDIR)."""
        node = self.node(node_id)
        if not isinstance(node, Directory):
            raise os_error(errno.ENOTDIR)
        return node

    def _check_no_payload(self, node: Node) -> None:
        """Refuse to change a file that makes git run programs in half a repository (rule G4).

        The file is the node itself, or lies in a directory of hooks.
        """
        step: Node = node
        if node.file_type != S_IFDIR:
            if node.parent is None:
                return
            if repository.is_payload(node.name):
                self.check_no_payload(node.parent, node.name)
            step = node.parent
        for _ in range(MAX_DEPTH):  # paths can form a ring
            above = step.parent
            if above is None:
                return
            if repository.is_hooks(step.name):
                self.check_no_payload(above, step.name)
            step = above

    def check_no_payload(self, directory: Directory, name: bytes) -> None:
        """Refuse a name that makes git run programs if its directory is half a repository."""
        if repository.is_payload(name) and repository.is_half_repository(
            partial(self._source.mode_at, self._descriptors.of(directory))
        ):
            raise Refused("half a repository", partial(self.path, directory, name))

    def name(self, parent_id: NodeId, name: bytes, change: bool = False) -> NodeRef:
        """Return a name in a directory if it may be looked up or, with ``change``, changed.

        A guarded name may be looked up, since it is shown; it may not be changed. Raises
        OSError(EINVAL, EROFS, ESTALE) as well.
        """
        is_plain = self._is_plain(name)
        if not is_plain and (name in NO_NAMES or b"/" in name or b"\0" in name):
            raise os_error(errno.EINVAL)
        parent = self.node(parent_id, change)
        if not isinstance(parent, Directory):
            raise os_error(errno.ENOTDIR)
        if change and not is_plain:
            verdict, rule = self._guard.verdict_of_name(name)
            if verdict is not ALLOW:
                raise Refused(rule, partial(self.path, parent, name))
            if self._guard.checks_fake_repositories:
                self.check_no_payload(parent, name)
        return make(NodeRef, (parent, self._descriptors.of(parent), name, is_plain))

    def allows(self, name: bytes) -> bool:
        """Return whether no rule matches ``name``."""
        return self._guard.verdict_of_name(name)[0] is ALLOW

    def link_component(self, directory: Directory, name: bytes) -> NodeRef:
        """Return one component of a symlink's target, if no rule denies it."""
        verdict, rule = self._guard.verdict_of_name(name)
        if directory.verdict >= verdict:
            verdict, rule = directory.verdict, directory.rule
        if verdict >= Verdict.DENY:
            raise Refused(rule, partial(self.path, directory, name))
        return NodeRef(directory, self._descriptors.of(directory), name)

    def classify(
        self,
        ref: NodeRef,
        st: os.stat_result,
        dotgit: ObjectKey | bool | None = True,
        made: int = -1,
    ) -> Classified:
        """Return the verdict on an entry, by its name, parent, device and inode, and content.

        ``dotgit`` is the result of ``self.dotgit(ref.fd)``, and ``made`` a descriptor of the
        object, if the caller has them.
        """
        guard = self._guard
        verdict, rule = ALLOW, ""
        if not ref.is_plain:
            verdict, rule = guard.verdict_of_name(ref.name)
            if guard.has_globs and names.may_be_short_name(ref.name):
                verdict, rule = self.verdict_of_long_name(ref.fd, ref.name, st)
        if ref.parent.verdict > verdict:
            verdict, rule = ref.parent.verdict, ref.parent.rule
        if not guard.guards_git or verdict >= guard.git_verdict:
            return make(Classified, (verdict, rule, -1, 0, True))
        is_directory = S_ISDIR(st.st_mode)
        # A second name of .git: a hard link, or a folding that dotgit.py does not know.
        if is_directory or st.st_nlink > 1 or not (ref.is_plain or names.is_portable(ref.name)):
            if dotgit is True:
                dotgit_st = self._source.find_at(ref.fd, DOTGIT)
                is_alias = dotgit_st is not None and os.path.samestat(st, dotgit_st)
            else:
                is_alias = (st.st_dev, st.st_ino) == dotgit
            if is_alias:
                return Classified(guard.git_verdict, "git alias")
        if not (is_directory and guard.checks_fake_repositories):
            return make(Classified, (verdict, rule, -1, 0, True))
        return self._classify_directory(ref, st, verdict, rule, made)

    def verdict_of_long_name(
        self, dir_fd: int, name: bytes, st: os.stat_result
    ) -> tuple[Verdict, str]:
        """Return the verdict on an entry by all its names; ``name`` may be a short one (8.3).

        The source finds an entry by its short name, but a listing shows the long one only.
        """
        found = self._guard.verdict_of_name(name)
        listed = self._source.names(dir_fd)
        if name in listed:
            return found
        for entry in listed:
            other = self._guard.verdict_of_name(entry)
            if other[0] > found[0] and self._source.is_at(dir_fd, entry, st):
                found = other
        return found

    def _classify_directory(
        self, ref: NodeRef, st: os.stat_result, verdict: Verdict, rule: str, made: int
    ) -> Classified:
        """Classify a directory that is no second name of ``.git``, given the verdict so far."""
        node = self._by_id.get(st.st_ino)
        if node is None or node.dev != st.st_dev or node.ino != st.st_ino:
            node = self._nodes.find_below(ref.parent, st)
        own = -1
        if made >= 0:
            fd = own = self._source.duplicate(made)
        elif (
            node is not None and node.fd >= 0 and node.file_type == S_IFDIR
            and self._descriptors.holds_objects
        ):  # fmt: skip
            fd = node.fd
        else:
            fd = own = self._source.open_node(ref.fd, ref.name)
        try:
            btime_ns = 0
            if own >= 0:
                if made < 0 and not os.path.samestat(self._source.stat(own), st):
                    raise stale()
                btime_ns = self._source.btime_ns(own)
            is_repository = self._source.holds_repository(fd)
        except PermissionError:
            return Classified(verdict, rule, own, btime_ns, is_open=False)
        except BaseException:
            if own >= 0:
                os.close(own)
            raise
        if is_repository:
            verdict, rule = self._guard.git_verdict, "repository"
        return make(Classified, (verdict, rule, own, btime_ns, True))

    def verdict_of(
        self, ref: NodeRef, st: os.stat_result, dotgit: ObjectKey | bool | None = True
    ) -> tuple[Verdict, str]:
        """Return the verdict on an entry and the rule behind it, as ``classify`` does.

        A directory that cannot be searched is denied.
        """
        classified = self.classify(ref, st, dotgit)
        if classified.fd >= 0:
            os.close(classified.fd)
        if not classified.is_open and classified.verdict < Verdict.DENY:
            return Verdict.DENY, UNREADABLE
        return classified.verdict, classified.rule

    def check_unguarded(self, ref: NodeRef, st: os.stat_result) -> None:
        """Refuse to remove or move an entry whose verdict is not ALLOW."""
        verdict, rule = self.verdict_of(ref, st)
        if verdict is not ALLOW:
            raise self.refused(rule, ref)

    def check_holds_no_repository(self, ref: NodeRef, fd: int, st: os.stat_result) -> None:
        """Refuse to move a directory that holds a repository.

        A relative ``gitdir:`` in that repository, or one that points to it, would lead elsewhere.
        """
        if not self._guard.guards_git or not S_ISDIR(st.st_mode):
            return
        listed = self._source.typed_names(fd)
        for name in listed:
            if not self._is_plain(name) and self._guard.is_dotgit(name):
                raise self.refused("repository root", ref)
        if not self._guard.checks_fake_repositories:
            return
        try:
            for name, (file_type, _) in listed.items():
                if file_type == S_IFDIR and self._source.is_repository_at(fd, name):
                    raise self.refused("holds a repository", ref)
        except Refused:
            raise
        except PermissionError:
            raise self.refused(UNREADABLE, ref) from None

    def refused(self, rule: str, ref: NodeRef) -> Refused:
        """Return the exception for a name that a rule refuses."""
        return Refused(rule, partial(self.path, ref.parent, ref.name))
