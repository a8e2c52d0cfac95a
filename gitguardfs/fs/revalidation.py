"""Classifies directories again that the host may have changed or moved since the last time.

A process can stay in a directory: the kernel then looks up names in it, but never the directory
itself. So if a directory's verdict is older than VERDICT_TTL, or a rule needs a sure answer, the
directories above it are checked again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from functools import partial
from time import monotonic

from gitguardfs.fs.ancestors import walk_up
from gitguardfs.fs.descriptors import DescriptorCache
from gitguardfs.fs.nodes import Node, NodeTable, ancestors, stale
from gitguardfs.fs.source import Source
from gitguardfs.guard.rules import Refused, RuleSet, Verdict

VERDICT_TTL = 1.0
"""How long a directory's classification stays valid, in seconds."""

UNREADABLE = "cannot be looked into"
"""The rule behind a refusal of a directory that may be a repository, but cannot be searched."""


class Revalidation:
    """Classifies directories again. Raises Refused, or OSError if the source fails."""

    def __init__(
        self,
        guard: RuleSet,
        nodes: NodeTable,
        descriptors: DescriptorCache,
        source: Source,
        *,
        dotgit: Callable[[int], tuple[int, int] | None],
        path: Callable[[Node], bytes],
        path_based: bool,
        is_local: Callable[[int], bool],
    ) -> None:
        """Keep what is needed.

        ``dotgit`` returns a directory's ``.git`` as device and inode, ``path`` a path to show.

        ``path_based``: descriptors of the source hold paths, not objects. ``is_local`` returns
        whether ``..`` of a directory on a device leads to its present parent.
        """
        self._guard = guard
        self._nodes = nodes
        self._descriptors = descriptors
        self._source = source
        self._dotgit = dotgit
        self._path = path
        self._path_based = path_based
        self._is_local = is_local

    def revalidate(self, directory: Node) -> bool:
        """Classify a directory and those above it if their verdicts are older than VERDICT_TTL.

        Returns whether any was classified. The host may have made a repository there, or moved one
        of these directories. A moved directory on a local file system is classified at its present
        place. Over a share its place is unknown: raises OSError(ESTALE). Raises Refused for a
        directory that cannot be searched, and any other OSError of the source.
        """
        if monotonic() - directory.classified_at < VERDICT_TTL:
            return False
        now = since = monotonic()
        way: dict[Node, None] = {}
        step: Node | None = directory
        while step is not None and step not in way:
            if now - step.classified_at < VERDICT_TTL:
                since = step.classified_at
                break
            way[step] = None
            step = step.parent
        if self._path_based:
            for node in way:
                if node.parent is not None:
                    self._descriptors.close(node)
        self._classify(directory, reversed(way), since, now)
        return True

    def revalidate_root(self) -> None:
        """Classify the root again if it was a repository. Raises Refused, OSError.

        While the root is shown without permissions, the kernel asks for its attributes only.
        """
        root = self._nodes.root
        if root.verdict is not Verdict.ALLOW:
            self.revalidate(root)

    def classify_now(self, directory: Node) -> None:
        """Classify a directory whatever the age of its verdict.

        Raises Refused if the directory is guarded; OSError if the source fails.
        """
        self._classify(directory, (directory,), directory.classified_at, monotonic())
        self._check_allowed(directory)

    def confirm(self, *directories: Node) -> None:
        """Check that the node table has directories at their present places; update it if not.

        Raises Refused for a directory that the host has moved below a guarded one; OSError(ESTALE)
        if a place cannot be found out, and any other OSError of the source.
        """
        for directory in dict.fromkeys(directories):
            try:
                self._go_down_to(directory, directories)
            except OSError as error:
                if error.errno != errno.ESTALE:
                    raise
                if not self._source.stat(self._descriptors.of(directory)).st_nlink:
                    continue  # removed: no name can be added to it
                if not self._is_local(directory.dev):
                    raise
                self._classify_where_it_is(directory)
                self._check_allowed(directory)
                self._go_down_to(directory, directories)

    def _check_allowed(self, directory: Node) -> None:
        if directory.verdict is not Verdict.ALLOW:
            raise Refused(directory.rule, partial(self._path, directory))

    def _go_down_to(self, directory: Node, used: Iterable[Node]) -> None:
        """Compare each directory from the root down with the source.

        Raises OSError(ESTALE) if one is elsewhere. Keeps the descriptors of ``used`` open, since
        the caller works with them.
        """
        way = [*ancestors(directory)]
        if way.pop() is not self._nodes.root:
            raise stale()
        fd, own = self._nodes.root.fd, -1
        try:
            while way:
                node = way.pop()
                for other in used:
                    self._descriptors.of(other)
                if node.fd >= 0 and not self._path_based:
                    opened, next_fd = -1, self._descriptors.of(node)
                    st = self._source.find_at(fd, node.name)
                else:
                    opened = next_fd = self._open(fd, node.name)
                    st = self._source.stat(opened)
                if own >= 0:
                    os.close(own)
                fd, own = next_fd, opened
                if st is None or not node.matches(st):
                    raise stale()
        finally:
            if own >= 0:
                os.close(own)

    def _open(self, dir_fd: int, name: bytes) -> int:
        try:
            return self._source.open_node(dir_fd, name)
        except (FileNotFoundError, NotADirectoryError):
            raise stale() from None

    def _classify(
        self, directory: Node, way: Iterable[Node], since: float, where_it_is: float
    ) -> None:
        """Classify the directories on the ``way``; if one was moved, ``directory`` where it is now.

        The new value of ``classified_at`` is ``since``, or ``where_it_is`` after a move.
        """
        try:
            for node in way:
                self._classify_in_place(node)
                node.classified_at = since
        except OSError as error:
            if error.errno != errno.ESTALE or not self._is_local(directory.dev):
                raise
            self._classify_where_it_is(directory)
            directory.classified_at = where_it_is

    def _classify_in_place(self, node: Node) -> None:
        """Classify a directory below classified ones. Raises OSError(ESTALE) if it is gone."""
        root = self._nodes.root
        if node is root:
            holds = self._guard.checks_fake_repositories and self._is_repository(node)
            verdict = self._guard.git_verdict if holds else Verdict.ALLOW
            if verdict is not root.verdict:
                self._nodes.classify_root(verdict, "repository" if holds else "")
            return
        if not (self._path_based or self._guard.has_rules):
            return
        if node.parent is not None and not self._path_based:
            st = self._source.find_at(self._descriptors.of(node.parent), node.name)
            if st is None or not node.matches(st):
                raise stale()
        if node.verdict < self._guard.git_verdict and self._is_repository(node):
            self._nodes.restrict_below(node, self._guard.git_verdict, "repository")

    def _is_repository(self, node: Node) -> bool:
        fd = self._descriptors.of(node)
        try:
            return self._guard.checks_fake_repositories and self._source.holds_repository(fd)
        except PermissionError:
            raise Refused(UNREADABLE, partial(self._path, node)) from None

    def _classify_where_it_is(self, directory: Node) -> None:
        """Classify a directory that the host has moved, by the directories that are above it now.

        If its verdict is no stricter there, note its new place.
        """
        found, rule = Verdict.ALLOW, ""
        fd, root_fd = self._descriptors.of(directory), self._nodes.root.fd
        way: list[tuple[bytes, os.stat_result]] = []
        for step in walk_up(self._source, fd, root_fd):
            verdict, why = self._guard.verdict_of_name(step.name)
            if verdict < self._guard.git_verdict:
                if self._dotgit(step.parent_fd) == (step.st.st_dev, step.st.st_ino):
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
            self._place(directory, way)

    def _place(self, directory: Node, way: list[tuple[bytes, os.stat_result]]) -> None:
        """Note a directory's place; ``way`` holds names and attributes from it upwards."""
        above = self._nodes.root
        while way:
            name, st = way.pop()
            node = self._nodes.find(st) or self._nodes.unknown(st) if way else directory
            self._nodes.place(node, above, name)
            above = node
        while self._nodes.left:
            self._descriptors.close(self._nodes.left.pop())
