"""Directories classified anew, because the host may have changed or moved what somebody stays in.

The kernel does not ask for the directory that somebody is in, but only for what is in it. So each
use of one that nobody has looked at for a while, or of all that a rule depends on, looks again at
the way that leads there.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from functools import partial
from time import monotonic

from gitguardfs.fs.ancestors import way_up
from gitguardfs.fs.descriptors import DescriptorCache
from gitguardfs.fs.nodes import Node, NodeTable, ancestors, stale
from gitguardfs.fs.source import Source
from gitguardfs.guard.rules import Guard, Refused, Verdict

VERDICT_TTL = 1.0
"""Seconds for which it holds that no directory above is a repository."""

UNREADABLE = "cannot be looked into"
"""The rule behind a refusal where nobody can tell whether a directory is a repository."""


class Revalidation:
    """Looks at directories again. Raises Refused, or OSError where nobody can tell."""

    def __init__(
        self,
        guard: Guard,
        nodes: NodeTable,
        descriptors: DescriptorCache,
        source: Source,
        *,
        dotgit: Callable[[int], tuple[int, int] | None],
        path: Callable[[Node], bytes],
        path_based: bool,
        is_local: Callable[[int], bool],
    ) -> None:
        """``dotgit`` gives the identity of a directory's ``.git``, ``path`` paths for people.

        ``path_based`` says that descriptors of the source hold paths, and ``is_local`` of a device
        that ``..`` of a directory there is where it is now.
        """
        self._guard = guard
        self._nodes = nodes
        self._descriptors = descriptors
        self._source = source
        self._dotgit = dotgit
        self._path = path
        self._path_based = path_based
        self._is_local = is_local

    def look_at(self, directory: Node) -> bool:
        """Classify a directory anew, and those above it, if nobody has for a while; whether it was.

        The host may be making a repository there. It may also have moved a directory on the way:
        on a local file system it is classified by where it is now, and over a share, where nobody
        can tell, that is OSError(ESTALE).
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

    def look_at_root(self) -> None:
        """Find out whether a root that was a repository still is one.

        While it is shown without permissions, the kernel asks for nothing but its attributes.
        """
        root = self._nodes.root
        if root.verdict is not Verdict.ALLOW:
            self.look_at(root)

    def look_now_at(self, directory: Node) -> None:
        """Classify a directory anew in any case; Refused if it is guarded."""
        self._classify(directory, (directory,), directory.classified_at, monotonic())
        self._let_pass(directory)

    def confirm(self, *directories: Node) -> None:
        """See to it that the tables have directories where they are now.

        What is above them counts then. OSError(ESTALE) where that cannot be told; Refused for one
        that the host has moved into something guarded.
        """
        for directory in dict.fromkeys(directories):
            try:
                self._go_down_to(directory, directories)
            except OSError as error:
                if error.errno != errno.ESTALE:
                    raise
                if not self._source.stat(self._descriptors.of(directory)).st_nlink:
                    continue  # removed: nothing comes about in it
                if not self._is_local(directory.dev):
                    raise
                self._classify_where_it_is(directory)
                self._let_pass(directory)
                self._go_down_to(directory, directories)

    def _let_pass(self, directory: Node) -> None:
        if directory.verdict is not Verdict.ALLOW:
            raise Refused(directory.rule, partial(self._path, directory))

    def _go_down_to(self, directory: Node, used: Iterable[Node]) -> None:
        """Compare each directory on the way with the source; OSError(ESTALE) if one is elsewhere.

        Descriptors of ``used`` stay open: the caller has them in hand.
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
        """Classify what is on the ``way`` to a directory, or, if that was moved, where it is now.

        ``since`` and ``where_it_is`` are the times that the judgement is of then.
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
        """Classify a directory, those above it being classified; ESTALE if it is gone."""
        root = self._nodes.root
        if node is root:
            holds = self._guard.checks_fake_repositories and self._is_repository(node)
            verdict = self._guard.git_verdict if holds else Verdict.ALLOW
            if verdict is not root.verdict:
                self._nodes.classify_root(verdict, "repository" if holds else "")
            return
        if not (self._path_based or self._guard.speaks):
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
        """Classify a directory, that the host has moved, by what is above it now.

        If it is free there, the tables have it there from now on.
        """
        found, rule = Verdict.ALLOW, ""
        fd, root_fd = self._descriptors.of(directory), self._nodes.root.fd
        way: list[tuple[bytes, os.stat_result]] = []
        for step in way_up(self._source, fd, root_fd):
            verdict, why = self._guard.name(step.name)
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
        elif directory.branch is None:
            self._place(directory, way)

    def _place(self, directory: Node, way: list[tuple[bytes, os.stat_result]]) -> None:
        """Note where a directory is; ``way`` has names and attributes from it upwards."""
        above = self._nodes.root
        while way:
            name, st = way.pop()
            node = self._nodes.find(st) or self._nodes.unknown(st) if way else directory
            self._nodes.place(node, above, name)
            above = node
        while self._nodes.left:
            self._descriptors.close(self._nodes.left.pop())
