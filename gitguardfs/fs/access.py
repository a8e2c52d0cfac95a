"""The choke points: every node and every name from the kernel passes here before it is used.

``node`` admits an operation on an object, ``place`` one on a name in a directory, ``classify``
says what an entry of the source is, and ``admit`` watches names that make a repository. An
operation that goes round them has no descriptor to work with.

Runs on the event loop's thread only. No operation of the tree awaits, so nothing can come
between a check here and the system call that it is for; other guards over the same source are
kept out by a lock where that matters (``admit``).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial
from stat import S_IFDIR, S_IFREG, S_ISDIR
from typing import NamedTuple

from gitguardfs.errors import os_error
from gitguardfs.fs.descriptors import DescriptorCache
from gitguardfs.fs.forming import Forming
from gitguardfs.fs.nodes import GUARDED, Node, NodeTable, ObjectKey, ancestors, stale
from gitguardfs.fs.removed_names import RemovedNames
from gitguardfs.fs.revalidation import UNREADABLE, Revalidation
from gitguardfs.fs.source import DOTGIT, Source
from gitguardfs.guard import dotgit as names
from gitguardfs.guard import repository
from gitguardfs.guard.rules import Guard, Refused, Verdict

MAX_SHOWN = 40
"""Components of a path that are shown to people."""

NO_NAMES = (b"", b".", b"..")


class NodeRef(NamedTuple):
    """A name in a directory that the gate has let through."""

    parent: Node
    fd: int
    """A descriptor of the directory, valid for the operation."""
    name: bytes


class Classified(NamedTuple):
    """What an entry of the source is, and to whom it is open."""

    st: os.stat_result
    verdict: Verdict
    rule: str
    fd: int = -1
    """An O_PATH descriptor if classifying needed one, which now is the caller's; otherwise -1."""
    btime_ns: int = 0
    """When the object was made, in nanoseconds, if the descriptor is new; otherwise 0."""
    is_open: bool = True
    """False for a directory that the source does not let us look into (EACCES, EPERM): nobody
    can tell whether it is a repository. It is shown as it is, and classified again at each use."""


class Access:
    """Admission of requests."""

    def __init__(
        self,
        guard: Guard,
        nodes: NodeTable,
        descriptors: DescriptorCache,
        source: Source,
        read_only: bool,
        forming: Forming,
        removed: RemovedNames,
        path_based: bool = False,
        is_local: Callable[[int], bool] = lambda _: True,
    ) -> None:
        """``path_based`` says that descriptors of the source hold paths, not objects.

        ``is_local`` says of a device that ``..`` of a directory there is where it is now.
        """
        self._guard = guard
        self._nodes = nodes
        self._descriptors = descriptors
        self._source = source
        self._read_only = read_only
        self._forming = forming
        self._removed = removed
        self._path_based = path_based
        self.revalidation = Revalidation(
            guard, nodes, descriptors, source,
            dotgit=self.dotgit, path=self.path, path_based=path_based, is_local=is_local,
        )  # fmt: skip

    def node(self, node_id: int, change: bool = False) -> Node:
        """The node, if it may be used (with ``change``: changed); Refused, EROFS or ESTALE.

        Other errors are those of the source, where nobody can tell whether it may be used.
        """
        node = self._nodes.get(node_id)
        directory = node if node.kind == S_IFDIR else node.parent
        if directory is not None and self.revalidation.look_at(directory):
            node = self._nodes.get(node_id)
        if node.verdict is not Verdict.ALLOW and (change or node.verdict >= Verdict.DENY):
            raise Refused(node.rule, partial(self.path, node))
        if change and self._read_only:
            raise os_error(errno.EROFS)
        if self._path_based and node.parent is None and node is not self._nodes.root:
            raise stale()  # removed: something else may have come to its path
        if change and node.kind != S_IFDIR and node.parent is not None:
            self._settle(node.parent, node.name, is_new=False)
        return node

    def settle(self, place: NodeRef) -> None:
        """Wait for git on the host to be ready with a directory that is to be changed.

        Raises Later; Refused if the directory is, or lies in, a repository by now.
        """
        self._settle(place.parent, place.name, is_new=True)

    def _settle(self, directory: Node, name: bytes, is_new: bool) -> None:
        """Classify anew, without any grace, where git would read ``name``; then wait.

        ``is_new`` says that the name may be added or taken away, and not only what it stands for
        be changed: then the directory is waited for whatever the name.
        """
        if not self._guard.checks_fake_repositories:
            return
        if repository.is_read_at_top(name):
            self.revalidation.look_now_at(directory)
            is_new = True
        for below in ancestors(directory):
            if below.parent is not None and repository.is_read_below(below.name):
                self.revalidation.look_now_at(below.parent)
                self._forming.wait_for(self._descriptors.of(below.parent))
        if is_new:
            self._forming.wait_for(self._descriptors.of(directory))

    def name(self, parent_id: int, name: bytes, change: bool = False) -> NodeRef:
        """The name and its directory, if it may be looked up or (with ``change``) changed.

        Looking up a guarded name is allowed, to see it; nothing else on it is.
        """
        if name in NO_NAMES or b"/" in name or b"\0" in name:
            raise os_error(errno.EINVAL)
        parent = self.node(parent_id, change)
        if change:
            verdict, rule = self._guard.name(name)
            if verdict is not Verdict.ALLOW:
                raise Refused(rule, partial(self.path, parent, name))
            self._settle(parent, name, is_new=True)
        return NodeRef(parent, self._descriptors.of(parent), name)

    def is_ordinary(self, name: bytes) -> bool:
        """Whether no rule speaks of ``name``."""
        return self._guard.name(name)[0] is Verdict.ALLOW

    def hides(self, name: bytes) -> bool:
        """Whether a rule hides ``name``."""
        return self._guard.name(name)[0] is Verdict.HIDE

    def link_component(self, directory: Node, name: bytes) -> NodeRef:
        """A component on the way that a symlink leads; Refused if that cannot be gone."""
        verdict, rule = self._guard.name(name)
        if directory.verdict >= verdict:
            verdict, rule = directory.verdict, directory.rule
        if verdict >= Verdict.DENY:
            raise Refused(rule, partial(self.path, directory, name))
        return NodeRef(directory, self._descriptors.of(directory), name)

    def reopened(self, place: NodeRef) -> NodeRef:
        """``place`` with a descriptor that is valid after others were used in between."""
        return place._replace(fd=self._descriptors.of(place.parent))

    def dotgit(self, dir_fd: int) -> ObjectKey | None:
        """What a directory's ``.git`` is, by identity; OSError if that cannot be told."""
        if not self._guard.on:
            return None
        st = self._source.find_at(dir_fd, DOTGIT)
        return None if st is None else (st.st_dev, st.st_ino)

    def classify(
        self, place: NodeRef, st: os.stat_result, dotgit: ObjectKey | bool | None = True
    ) -> Classified:
        """Classify an entry by its name, its parent, its identity and its content.

        ``dotgit`` is what ``self.dotgit(place.fd)`` gives, where the caller has it. OSError if
        the source fails: what it does not tell is never taken for "not there".
        """
        guard = self._guard
        verdict, rule = guard.name(place.name)
        if place.parent.verdict > verdict:
            verdict, rule = place.parent.verdict, place.parent.rule
        if not guard.on or verdict >= guard.git_verdict:
            return Classified(st, verdict, rule)
        is_directory = S_ISDIR(st.st_mode)
        # A second name of .git: a hard link, or a folding that dotgit.py does not know.
        if is_directory or st.st_nlink > 1 or not names.is_portable(place.name):
            if dotgit is True:
                dotgit = self.dotgit(place.fd)
            if (st.st_dev, st.st_ino) == dotgit:
                return Classified(st, guard.git_verdict, "git alias")
        if not (is_directory and guard.checks_fake_repositories):
            return Classified(st, verdict, rule)
        return self._classify_directory(place, Classified(st, verdict, rule))

    def _classify_directory(self, place: NodeRef, so_far: Classified) -> Classified:
        st = so_far.st
        known = self._nodes.find_below(place.parent, st)
        if so_far.verdict is not Verdict.ALLOW:
            known = self._nodes.find(st, GUARDED)
        if known is not None and known.fd >= 0 and not self._path_based:
            fd, own = known.fd, -1
        else:
            fd = own = self._source.open_node(place.fd, place.name)
        try:
            btime_ns = 0
            if own >= 0:
                if not os.path.samestat(self._source.stat(own), st):
                    raise stale()
                btime_ns = self._source.btime_ns(own)
            is_repository = self._source.holds_repository(fd)
        except PermissionError:
            return Classified(st, so_far.verdict, so_far.rule, own, btime_ns, is_open=False)
        except BaseException:
            if own >= 0:
                os.close(own)
            raise
        if is_repository:
            return Classified(st, self._guard.git_verdict, "repository", own, btime_ns)
        return Classified(st, so_far.verdict, so_far.rule, own, btime_ns)

    def verdict_of(
        self, place: NodeRef, st: os.stat_result, dotgit: ObjectKey | bool | None = True
    ) -> tuple[Verdict, str]:
        """The verdict on an entry and the rule behind it, as ``classify`` has them.

        What cannot be looked into is denied.
        """
        classified = self.classify(place, st, dotgit)
        if classified.fd >= 0:
            os.close(classified.fd)
        if not classified.is_open and classified.verdict < Verdict.DENY:
            return Verdict.DENY, UNREADABLE
        return classified.verdict, classified.rule

    def check_unguarded(self, place: NodeRef, st: os.stat_result) -> None:
        """Refuse to remove or move an entry that is guarded in any way."""
        verdict, rule = self.verdict_of(place, st)
        if verdict is not Verdict.ALLOW:
            raise self._refused(rule, place)

    def check_holds_no_repository(self, place: NodeRef, fd: int, st: os.stat_result) -> None:
        """Refuse to move a directory with a repository in it.

        A relative ``gitdir:``, in it or pointing to it, would lead elsewhere.
        """
        if not self._guard.on or not S_ISDIR(st.st_mode):
            return
        if any(self._guard.is_dotgit(entry) for entry in self._source.names(fd)):
            raise self._refused("repository root", place)
        try:
            holds = self._guard.checks_fake_repositories and self._source.has_repository_inside(fd)
        except PermissionError:
            raise self._refused(UNREADABLE, place) from None
        if holds:
            raise self._refused("holds a repository", place)

    def matters(self, name: bytes) -> bool:
        """Whether ``name`` could be ``.git`` by a folding of the source, or make a repository."""
        return self._guard.on and (
            not names.is_portable(name)
            or (self._guard.checks_fake_repositories and bool(repository.parts(name)))
        )

    def check_completes_no_repository(
        self, place: NodeRef, is_directory: bool, leaving: bytes = b""
    ) -> None:
        """Refuse a name that would make its directory a repository (rule R2).

        ``leaving`` is a name that the same operation takes away.
        """
        if not (self._guard.checks_fake_repositories and repository.parts(place.name)):
            return
        if self._removed.knows_any:  # which is remembered by path
            self.revalidation.confirm(place.parent)
        present = self._parts_in(place, leaving)
        if repository.would_complete(place.name, is_directory, present.get):
            raise self._refused("fake repository", place)

    def check_added(self, place: NodeRef, is_directory: bool) -> None:
        """Look at a name once more after it was added; raises Refused, or OSError.

        Another guard over the same source, in another kernel, may have added its counterpart
        meanwhile, and the source may have folded it. The caller undoes it after any exception.
        """
        if not self.matters(place.name):
            return
        self.check_completes_no_repository(place, is_directory)
        if names.is_portable(place.name):
            return
        self.check_not_folded_to_dotgit(place)
        if self._guard.checks_fake_repositories and self._source.holds_repository(place.fd):
            raise self._refused("fake repository", place)

    def _parts_in(self, place: NodeRef, leaving: bytes) -> dict[bytes, int]:
        """The parts of a repository beside ``place``, and their modes.

        Where several entries could resolve to one, that of one that is no directory. What git on
        the host may bring back counts.
        """
        found = dict(self._removed.at(place.parent))
        for entry in self._source.names(place.fd):
            if entry == place.name:
                continue
            if entry == leaving and self._removed.was_made_here(place.fd, entry):
                continue
            for part in repository.parts(entry):
                mode = self._source.mode_at(place.fd, entry)
                if S_ISDIR(found.get(part, S_IFDIR)):
                    # What is listed is there: a kernel may believe in its absence for a while.
                    found[part] = S_IFREG if mode is None else mode
        return found

    def check_not_folded_to_dotgit(self, place: NodeRef) -> None:
        """Refuse what turned out to be ``.git`` once the source had folded its new name."""
        st = self._source.find_at(place.fd, place.name)
        if st is not None and self._source.is_at(place.fd, DOTGIT, st):
            raise self._refused("git alias", place)

    def _refused(self, rule: str, place: NodeRef) -> Refused:
        return Refused(rule, partial(self.path, place.parent, place.name))

    def path(self, node: Node, name: bytes | None = None) -> bytes:
        """Where a node was last seen, for people; relative to the mount's root.

        Of a path that is too long, the end; trees can be deeper than PATH_MAX.
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
