"""The choke points: every node and every name from the kernel is checked here before its use.

``node`` checks an operation on an object, ``name`` one on a name in a directory. ``classify``
returns the verdict on an entry of the source. An operation that skips these checks has no
descriptor to work with. A name that is added is checked by ``new_name_check`` as well.

Runs on the event loop's thread only. No operation awaits, so no other request comes between a
check and its system call.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial
from stat import S_IFDIR, S_ISDIR
from typing import NamedTuple

from gitguardfs.errors import os_error
from gitguardfs.fs.descriptors import DescriptorCache
from gitguardfs.fs.forming import Forming
from gitguardfs.fs.nodes import GUARDED, Node, NodeTable, ObjectKey, ancestors, stale
from gitguardfs.fs.revalidation import UNREADABLE, Revalidation
from gitguardfs.fs.source import DOTGIT, Source
from gitguardfs.guard import dotgit as names
from gitguardfs.guard import repository
from gitguardfs.guard.rules import ALLOW, HIDE, Refused, RuleSet, Verdict
from gitguardfs.protocol import NodeId, make

MAX_SHOWN = 40
"""Components of a path that the audit log and messages show; trees can be deeper."""

NO_NAMES = (b"", b".", b"..")


class NodeRef(NamedTuple):
    """A checked name in an open directory."""

    parent: Node
    fd: int
    """A descriptor of the directory, valid during the operation."""
    name: bytes


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


class Access:
    """Checks the requests of one mount."""

    def __init__(
        self,
        guard: RuleSet,
        nodes: NodeTable,
        descriptors: DescriptorCache,
        source: Source,
        read_only: bool,
        forming: Forming,
        path_based: bool = False,
        is_local: Callable[[int], bool] = lambda _: True,
    ) -> None:
        """Keep what the checks need.

        ``path_based``: descriptors of the source hold paths, not objects.

        ``is_local`` returns whether ``..`` of a directory on a device leads to its present parent.
        """
        self._guard = guard
        self._nodes = nodes
        self._descriptors = descriptors
        self._source = source
        self._read_only = read_only
        self._forming = forming
        self._path_based = path_based
        self.revalidation = Revalidation(
            guard, nodes, descriptors, source,
            dotgit=self.dotgit, path=self.path, path_based=path_based, is_local=is_local,
        )  # fmt: skip

    def node(self, node_id: NodeId, change: bool = False) -> Node:
        """Return the node if it may be read or, with ``change``, changed.

        Raises Refused, Later, OSError(EROFS, ESTALE), and any other OSError of the source, as the
        verdict is unknown then.
        """
        if self._path_based:
            self._descriptors.close_file()
        node = self._nodes.get(node_id)
        directory = node if node.file_type == S_IFDIR else node.parent
        if directory is not None and self.revalidation.revalidate(directory):
            node = self._nodes.get(node_id)
        if node.verdict is not ALLOW and (change or node.verdict >= Verdict.DENY):
            raise Refused(node.rule, partial(self.path, node))
        if change and self._read_only:
            raise os_error(errno.EROFS)
        if self._path_based and node.parent is None and node is not self._nodes.root:
            raise stale()  # removed: another object may have its path now
        if change and node.file_type != S_IFDIR and node.parent is not None:
            self._settle(node.parent, node.name, is_new=False)
            if self._path_based and node.open_fds:
                self._check_is_file(node)
        return node

    def _check_is_file(self, node: Node) -> None:
        """Check that no directory is in the place of an open file, over 9p.

        Its name would seem to be of the file, and a directory would be changed, even a repository.
        Raises OSError(ESTALE), and any other OSError of the source.
        """
        dir_fd = self._descriptors.parent_of(node)
        try:
            st = self._source.stat_at(dir_fd, node.name)
            if self._source.is_held_file(dir_fd, node.name, st):
                return
        except (FileNotFoundError, NotADirectoryError):
            pass
        raise stale()

    def settle(self, ref: NodeRef) -> None:
        """Wait while git on the host may be making a repository of a directory to be changed.

        Raises Later; Refused if the directory has become a repository or lies in one; OSError of
        the source.
        """
        self._settle(ref.parent, ref.name, is_new=True)

    def _settle(self, directory: Node, name: bytes, is_new: bool) -> None:
        """Classify again if git would read ``name``, however new the verdict is; then wait.

        ``is_new``: the name itself may be added or removed, not only its object changed. The
        request then waits for the directory whatever the name is.
        """
        if not self._guard.checks_fake_repositories:
            return
        if repository.is_read_at_top(name):
            self.revalidation.classify_now(directory)
            is_new = True
        for below in ancestors(directory):
            if below.parent is not None and repository.is_read_below(below.name):
                self.revalidation.classify_now(below.parent)
                self._forming.wait_for(self._descriptors.of(below.parent))
        if is_new:
            self._forming.wait_for(self._descriptors.of(directory))

    def name(self, parent_id: NodeId, name: bytes, change: bool = False) -> NodeRef:
        """Return a name in a directory if it may be looked up or, with ``change``, changed.

        A guarded name may be looked up, since it is shown; it may not be changed. Raises Refused,
        Later, OSError(EINVAL, EROFS, ESTALE), and any other OSError of the source.
        """
        if name in NO_NAMES or b"/" in name or b"\0" in name:
            raise os_error(errno.EINVAL)
        parent = self.node(parent_id, change)
        if change:
            verdict, rule = self._guard.verdict_of_name(name)
            if verdict is not ALLOW:
                raise Refused(rule, partial(self.path, parent, name))
            self._settle(parent, name, is_new=True)
        return make(NodeRef, (parent, self._descriptors.of(parent), name))

    def allows(self, name: bytes) -> bool:
        """Return whether no rule matches ``name``."""
        return self._guard.verdict_of_name(name)[0] is ALLOW

    def hides(self, name: bytes) -> bool:
        """Return whether a rule hides ``name``."""
        return self._guard.verdict_of_name(name)[0] is HIDE

    def link_component(self, directory: Node, name: bytes) -> NodeRef:
        """Return one component of a symlink's target.

        Raises Refused if a rule denies the component; OSError if its directory is gone.
        """
        verdict, rule = self._guard.verdict_of_name(name)
        if directory.verdict >= verdict:
            verdict, rule = directory.verdict, directory.rule
        if verdict >= Verdict.DENY:
            raise Refused(rule, partial(self.path, directory, name))
        return NodeRef(directory, self._descriptors.of(directory), name)

    def reopened(self, ref: NodeRef) -> NodeRef:
        """Return ``ref`` with a valid descriptor; opening others may have closed the old one.

        Raises OSError.
        """
        return make(NodeRef, (ref.parent, self._descriptors.of(ref.parent), ref.name))

    def dotgit(self, dir_fd: int) -> ObjectKey | None:
        """Return device and inode of a directory's ``.git``; None if there is none.

        Also None if no git rule is on. Raises any other OSError of the source.
        """
        if not self._guard.guards_git:
            return None
        st = self._source.find_at(dir_fd, DOTGIT)
        return None if st is None else (st.st_dev, st.st_ino)

    def classify(
        self, ref: NodeRef, st: os.stat_result, dotgit: ObjectKey | bool | None = True
    ) -> Classified:
        """Return the verdict on an entry, by its name, parent, device and inode, and content.

        ``dotgit`` is the result of ``self.dotgit(ref.fd)`` if the caller has it. Raises
        OSError if the source fails: only ENOENT and ENOTDIR mean "not there".
        """
        guard = self._guard
        verdict, rule = guard.verdict_of_name(ref.name)
        if guard.has_globs and names.may_be_short_name(ref.name):
            verdict, rule = self.verdict_of_long_name(ref.fd, ref.name, st)
        if ref.parent.verdict > verdict:
            verdict, rule = ref.parent.verdict, ref.parent.rule
        if not guard.guards_git or verdict >= guard.git_verdict:
            return make(Classified, (verdict, rule, -1, 0, True))
        is_directory = S_ISDIR(st.st_mode)
        # A second name of .git: a hard link, or a folding that dotgit.py does not know.
        if is_directory or st.st_nlink > 1 or not names.is_portable(ref.name):
            if dotgit is True:
                dotgit = self.dotgit(ref.fd)
            if (st.st_dev, st.st_ino) == dotgit:
                return Classified(guard.git_verdict, "git alias")
        if not (is_directory and guard.checks_fake_repositories):
            return make(Classified, (verdict, rule, -1, 0, True))
        return self._classify_directory(ref, st, verdict, rule)

    def verdict_of_long_name(
        self, dir_fd: int, name: bytes, st: os.stat_result
    ) -> tuple[Verdict, str]:
        """Return the verdict on an entry by all its names; ``name`` may be a short one (8.3).

        The source finds an entry by its short name, but a listing shows the long one only. Raises
        OSError if the source fails.
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
        self, ref: NodeRef, st: os.stat_result, verdict: Verdict, rule: str
    ) -> Classified:
        """Classify a directory that is no second name of ``.git``, given the verdict so far."""
        known = self._nodes.find_below(ref.parent, st)
        if verdict is not ALLOW:
            known = self._nodes.find(st, GUARDED)
        if known is not None and known.fd >= 0 and not self._path_based:
            fd, own = known.fd, -1
        else:
            fd = own = self._source.open_node(ref.fd, ref.name)
        try:
            btime_ns = 0
            if own >= 0:
                if not os.path.samestat(self._source.stat(own), st):
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

        A directory that cannot be searched is denied. Raises OSError as ``classify`` does.
        """
        classified = self.classify(ref, st, dotgit)
        if classified.fd >= 0:
            os.close(classified.fd)
        if not classified.is_open and classified.verdict < Verdict.DENY:
            return Verdict.DENY, UNREADABLE
        return classified.verdict, classified.rule

    def check_unguarded(self, ref: NodeRef, st: os.stat_result) -> None:
        """Refuse to remove or move an entry whose verdict is not ALLOW.

        Raises Refused; OSError as ``classify`` does.
        """
        verdict, rule = self.verdict_of(ref, st)
        if verdict is not ALLOW:
            raise self.refused(rule, ref)

    def check_holds_no_repository(self, ref: NodeRef, fd: int, st: os.stat_result) -> None:
        """Refuse to move a directory that holds a repository.

        A relative ``gitdir:`` in that repository, or one that points to it, would lead elsewhere.
        Raises Refused; OSError if the source fails.
        """
        if not self._guard.guards_git or not S_ISDIR(st.st_mode):
            return
        if any(self._guard.is_dotgit(entry) for entry in self._source.names(fd)):
            raise self.refused("repository root", ref)
        try:
            holds = self._guard.checks_fake_repositories and self._source.has_repository_inside(fd)
        except PermissionError:
            raise self.refused(UNREADABLE, ref) from None
        if holds:
            raise self.refused("holds a repository", ref)

    def refused(self, rule: str, ref: NodeRef) -> Refused:
        """Return the exception for a name that a rule refuses."""
        return Refused(rule, partial(self.path, ref.parent, ref.name))

    def path(self, node: Node, name: bytes | None = None) -> bytes:
        """Return the path where a node was last seen, relative to the mount's root, for messages.

        Of a path of more than MAX_SHOWN components, return the end.
        """
        parts = [] if name is None else [name]
        step: Node | None = node
        while step is not None and step is not self._nodes.root:
            if len(parts) == MAX_SHOWN:
                parts.append(b"...")
                break
            parts.append(step.name)
            step = step.parent
        return b"/".join(reversed(parts)) or b"."
