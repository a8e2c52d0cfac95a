"""Classifies directories again that the host may have changed or moved since the last time.

A process can stay in a directory: the kernel then looks up names in it, but never the directory
itself. So if a directory's verdict is older than VERDICT_TTL, or a rule needs a sure answer, the
directories above it are checked again: on a local source all of them at once. Over a share one
request checks the nearest and those that were not checked for longest, and the next requests check
the rest. So a request costs about the same at each depth. The node table knows where a directory
was last seen; on a local file system ``..`` leads to its present parent.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from functools import partial
from itertools import islice
from time import monotonic
from typing import NamedTuple

from gitguardfs.fs.descriptors import DescriptorCache
from gitguardfs.fs.node_table import NodeTable
from gitguardfs.fs.nodes import NEVER, Directory, Node, ObjectKey, ancestors, stale
from gitguardfs.fs.source import DOTGIT, Source
from gitguardfs.names.rules import Refused, RuleSet, Verdict

clock = monotonic
"""The clock of verdicts, in seconds."""

VERDICT_TTL = 1.0
"""How long a directory's classification stays valid, in seconds."""

NEAREST, LONGEST_AGO = 4, 4
"""Directories that one request checks over a share: the nearest ones, and further ones above them.
Each costs two round trips to the server. What git would run lies at most three levels down in a
repository: ``modules/NAME/hooks``."""

MAX_SHOWN = 40
"""Components of a path that the audit log and messages show; trees can be deeper."""

MAX_DEPTH = 2048
"""Directories above a node that are looked at: PATH_MAX allows no more in one path."""

UNREADABLE = "cannot be looked into"
"""The rule behind a refusal of a directory that may be a repository, but cannot be searched."""


class Revalidation:
    """Classifies directories again. Every method raises Refused, and OSError of the source."""

    def __init__(
        self, guard: RuleSet, nodes: NodeTable, descriptors: DescriptorCache, source: Source
    ) -> None:
        self._guard = guard
        self._nodes = nodes
        self._descriptors = descriptors
        self._source = source

    def revalidate(self, directory: Directory) -> bool:
        """Classify a directory and those above it if their verdicts are older than VERDICT_TTL.

        Returns whether any was classified. The host may have made a repository there, or moved one
        of these directories. A moved directory on a local file system is classified where it is
        now; over a share its path is unknown: OSError(ESTALE).
        """
        now = since = clock()
        if now - directory.classified_at < VERDICT_TTL:
            return False
        if not self._guard.has_rules and self._descriptors.holds_objects:
            return False
        way: list[Directory] = []
        due: list[Directory] = []
        for step in ancestors(directory):
            if now - step.classified_at < VERDICT_TTL:
                since = min(since, step.classified_at)
                break
            way.append(step)
            if now - step.looked_at < VERDICT_TTL and step.classified_at != NEVER:
                since = min(since, step.looked_at)
            else:
                due.append(step)
        is_whole = len(due) <= NEAREST + LONGEST_AGO or self._source.is_local(directory.dev)
        if not is_whole:
            further = sorted(due[NEAREST:], key=lambda node: node.looked_at)
            left = set(further[LONGEST_AGO:])
            due = [node for node in due if node not in left]
        self._check(directory, due)
        if is_whole and directory.classified_at < since:
            for node in way:
                node.classified_at = since
        return True

    def check_now(self, directory: Directory, levels: int | None = None) -> None:
        """Classify a directory and ``levels`` directories above it (None: all) at once.

        Their paths in the node table are then the present ones. Raises Refused if the directory is
        guarded by now.
        """
        self._check(
            directory, [*islice(ancestors(directory), None if levels is None else levels + 1)]
        )
        if directory.verdict is not Verdict.ALLOW:
            raise Refused(directory.rule, partial(self.path, directory))

    def _check(self, directory: Directory, way: list[Directory]) -> None:
        """Classify ``way``, which leads up from ``directory``, from its top.

        If one was moved, classify ``directory`` where it is now.
        """
        now = clock()
        way = way[::-1]
        self._descriptors.let_go(way)
        above, lease = None, -1
        try:
            for node in way:
                before = node.leased
                self._classify_in_place(node)
                node.looked_at = now
                if above is not None:
                    above.leased = lease  # a long way would use up all descriptors
                above, lease = node, before
        except OSError as error:
            if error.errno != errno.ESTALE or not self._source.is_local(directory.dev):
                raise
            self._classify_where_it_is(directory)
            directory.classified_at = now

    def revalidate_root(self) -> None:
        """Classify the root again if it was a repository.

        While the root is shown without permissions, the kernel asks for its attributes only.
        """
        root = self._nodes.root
        if root.verdict is not Verdict.ALLOW:
            self.revalidate(root)

    def _classify_in_place(self, node: Directory) -> None:
        """Classify a directory below classified ones. Raises OSError(ESTALE) if it is gone."""
        fd = self._descriptors.found(node)
        is_root = node is self._nodes.root
        try:
            holds = (
                self._guard.checks_fake_repositories
                and (is_root or node.verdict < self._guard.git_verdict)
                and self._source.holds_repository(fd)
            )
        except PermissionError:
            raise Refused(UNREADABLE, partial(self.path, node)) from None
        if is_root:
            verdict = self._guard.git_verdict if holds else Verdict.ALLOW
            if verdict is not node.verdict:
                self._nodes.classify_root(verdict, "repository" if holds else "")
        elif holds:
            self._nodes.restrict_below(node, self._guard.git_verdict, "repository")

    def _classify_where_it_is(self, directory: Directory) -> None:
        """Classify a directory that the host has moved, by the directories that are above it now.

        If its verdict is no stricter there, note its new path.
        """
        found, rule = Verdict.ALLOW, ""
        fd, root_fd = self._descriptors.of(directory), self._nodes.root.fd
        way: list[tuple[bytes, os.stat_result]] = []
        for step in walk_up(self._source, fd, root_fd):
            verdict, why = self._guard.verdict_of_name(step.name)
            if verdict < self._guard.git_verdict:
                if self.dotgit(step.parent_fd) == (step.st.st_dev, step.st.st_ino):
                    verdict, why = self._guard.git_verdict, "git alias"
                elif self._guard.checks_fake_repositories and self._source.holds_repository(
                    step.fd
                ):
                    verdict, why = self._guard.git_verdict, "repository"
            if verdict > found:
                found, rule = verdict, why
            way.append((step.name, step.st))
        if found > directory.verdict:
            self._nodes.restrict_below(directory, found, rule)
        elif directory.subtree is None:
            self._note_path(directory, way)

    def _note_path(self, directory: Directory, way: list[tuple[bytes, os.stat_result]]) -> None:
        """Note a directory's path; ``way`` holds names and attributes from it upwards."""
        above = self._nodes.root
        while way:
            name, st = way.pop()
            node = self._nodes.find(st) or self._nodes.unknown(st) if way else directory
            self._nodes.move(node, above, name)
            assert isinstance(node, Directory)
            above = node

    def dotgit(self, dir_fd: int) -> ObjectKey | None:
        """Return device and inode of a directory's ``.git``; None if it has none.

        Also None if no git rule is on.
        """
        if not self._guard.guards_git:
            return None
        st = self._source.find_at(dir_fd, DOTGIT)
        return None if st is None else (st.st_dev, st.st_ino)

    def names_to(self, node: Node) -> list[bytes]:
        """Return the names that lead from the mount's root to a node, as last seen.

        Raises OSError(ESTALE) if it has no path, or too deep a one.
        """
        parts: list[bytes] = []
        step: Node | None = node
        while step is not self._nodes.root:
            if step is None or len(parts) == MAX_DEPTH:
                raise stale()
            parts.append(step.name)
            step = step.parent
        return parts[::-1]

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


class Ancestor(NamedTuple):
    """One directory on the way up, with descriptors that are valid until the next step."""

    fd: int
    st: os.stat_result
    parent_fd: int
    name: bytes
    """Its name in the directory above it."""


def walk_up(source: Source, fd: int, root_fd: int) -> Iterator[Ancestor]:
    """Yield the directory behind ``fd`` and all above it, without the root.

    Yields nothing for a directory that was removed. Raises OSError(ESTALE) if the root is not
    above the directory, and any other OSError of the source.
    """
    root, st = source.stat(root_fd), source.stat(fd)
    if not st.st_nlink:
        return
    own = -1
    try:
        while not os.path.samestat(st, root):
            parent = _open_parent(source, fd, root_fd)
            try:
                name = source.name_of(parent, st)
                if name is None:
                    raise stale()
                yield Ancestor(fd, st, parent, name)
            except BaseException:
                os.close(parent)
                raise
            if own >= 0:
                os.close(own)
            fd = own = parent
            st = source.stat(fd)
    finally:
        if own >= 0:
            os.close(own)


def _open_parent(source: Source, fd: int, root_fd: int) -> int:
    try:
        return source.open_parent(fd)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return os.dup(root_fd)  # the root is covered by a seal, or by this mount
