"""Directories judged anew, because the host may have changed or moved what somebody stays in.

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
from gitguardfs.fs.nodes import InodeTable, Node, ancestors, stale
from gitguardfs.fs.source import Backing
from gitguardfs.guard.rules import Guard, Refused, Verdict

JUDGED_FOR = 1.0
"""Seconds for which it holds that no directory above is a repository."""

UNREADABLE = "cannot be looked into"
"""The rule behind a refusal where nobody can tell whether a directory is a repository."""


class Revalidation:
    """Looks at directories again. Raises Refused, or OSError where nobody can tell."""

    def __init__(
        self,
        guard: Guard,
        inodes: InodeTable,
        descriptors: DescriptorCache,
        backing: Backing,
        *,
        dotgit: Callable[[int], tuple[int, int] | None],
        path: Callable[[Node], bytes],
        by_paths: bool,
        is_local: Callable[[int], bool],
    ) -> None:
        """``dotgit`` gives the identity of a directory's ``.git``, ``path`` paths for people.

        ``by_paths`` says that descriptors of the source hold paths, and ``is_local`` of a device
        that ``..`` of a directory there is where it is now.
        """
        self._guard = guard
        self._inodes = inodes
        self._descriptors = descriptors
        self._backing = backing
        self._dotgit = dotgit
        self._path = path
        self._by_paths = by_paths
        self._is_local = is_local

    def look_at(self, directory: Node) -> bool:
        """Judge a directory anew, and those above it, if nobody has for a while; whether it was.

        The host may be making a repository there. It may also have moved a directory on the way:
        on a local file system it is judged by where it is now, and over a share, where nobody can
        tell, that is OSError(ESTALE).
        """
        if monotonic() - directory.judged < JUDGED_FOR:
            return False
        now = since = monotonic()
        way: dict[Node, None] = {}
        step: Node | None = directory
        while step is not None and step not in way:
            if now - step.judged < JUDGED_FOR:
                since = step.judged
                break
            way[step] = None
            step = step.parent
        if self._by_paths:
            for node in way:
                if node.parent is not None:
                    self._descriptors.close(node)
        self._judge(directory, reversed(way), since, now)
        return True

    def look_at_root(self) -> None:
        """Find out whether a root that was a repository still is one.

        While it is shown without permissions, the kernel asks for nothing but its attributes.
        """
        root = self._inodes.root
        if root.verdict is not Verdict.ALLOW:
            self.look_at(root)

    def look_now_at(self, directory: Node) -> None:
        """Judge a directory anew in any case; Refused if it is guarded."""
        self._judge(directory, (directory,), directory.judged, monotonic())
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
                if not self._backing.stat(self._descriptors.of(directory)).st_nlink:
                    continue  # removed: nothing comes about in it
                if not self._is_local(directory.dev):
                    raise
                self._judge_where_it_is(directory)
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
        if way.pop() is not self._inodes.root:
            raise stale()
        fd, own = self._inodes.root.fd, -1
        try:
            while way:
                node = way.pop()
                for other in used:
                    self._descriptors.of(other)
                if node.fd >= 0 and not self._by_paths:
                    opened, next_fd = -1, self._descriptors.of(node)
                    st = self._backing.find_at(fd, node.name)
                else:
                    opened = next_fd = self._open(fd, node.name)
                    st = self._backing.stat(opened)
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
            return self._backing.open_node(dir_fd, name)
        except (FileNotFoundError, NotADirectoryError):
            raise stale() from None

    def _judge(
        self, directory: Node, way: Iterable[Node], since: float, where_it_is: float
    ) -> None:
        """Judge what is on the ``way`` to a directory, or, if that was moved, where it is now.

        ``since`` and ``where_it_is`` are the times that the judgement is of then.
        """
        try:
            for node in way:
                self._judge_in_place(node)
                node.judged = since
        except OSError as error:
            if error.errno != errno.ESTALE or not self._is_local(directory.dev):
                raise
            self._judge_where_it_is(directory)
            directory.judged = where_it_is

    def _judge_in_place(self, node: Node) -> None:
        """Judge a directory, the one above it being judged; ESTALE if it is not there any more."""
        root = self._inodes.root
        if node is root:
            holds = self._guard.forges and self._is_repository(node)
            verdict = self._guard.git_verdict if holds else Verdict.ALLOW
            if verdict is not root.verdict:
                self._inodes.judge_root(verdict, "repository" if holds else "")
            return
        if not (self._by_paths or self._guard.speaks):
            return
        if node.parent is not None and not self._by_paths:
            st = self._backing.find_at(self._descriptors.of(node.parent), node.name)
            if st is None or not node.matches(st):
                raise stale()
        if node.verdict < self._guard.git_verdict and self._is_repository(node):
            self._inodes.guard(node, self._guard.git_verdict, "repository")

    def _is_repository(self, node: Node) -> bool:
        fd = self._descriptors.of(node)
        try:
            return self._guard.forges and self._backing.holds_repository(fd)
        except PermissionError:
            raise Refused(UNREADABLE, partial(self._path, node)) from None

    def _judge_where_it_is(self, directory: Node) -> None:
        """Judge a directory, that the host has moved, by what is above it now.

        If it is free there, the tables have it there from now on.
        """
        found, rule = Verdict.ALLOW, ""
        fd, root_fd = self._descriptors.of(directory), self._inodes.root.fd
        way: list[tuple[bytes, os.stat_result]] = []
        for step in way_up(self._backing, fd, root_fd):
            verdict, why = self._guard.name(step.name)
            if verdict < self._guard.git_verdict:
                if self._dotgit(step.parent_fd) == (step.st.st_dev, step.st.st_ino):
                    verdict, why = self._guard.git_verdict, "git alias"
                elif self._guard.forges and self._backing.holds_repository(step.fd):
                    verdict, why = self._guard.git_verdict, "repository"
            if verdict > found:
                found, rule = verdict, why
            way.append((step.name, step.st))
        if found > directory.verdict:
            self._inodes.guard(directory, found, rule)
        elif directory.branch is None:
            self._place(directory, way)

    def _place(self, directory: Node, way: list[tuple[bytes, os.stat_result]]) -> None:
        """Note where a directory is; ``way`` has names and attributes from it upwards."""
        above = self._inodes.root
        while way:
            name, st = way.pop()
            node = self._inodes.find(st) or self._inodes.unknown(st) if way else directory
            self._inodes.place(node, above, name)
            above = node
        while self._inodes.left:
            self._descriptors.close(self._inodes.left.pop())
