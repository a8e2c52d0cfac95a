"""Refuses symlinks through which git on the host would write into guarded directories.

git checks a directory once and then writes file after file below it. If a symlink takes the
directory's place meanwhile, git writes to the symlink's target: a repository's metadata, or a
protected directory. So such a symlink is refused. A symlink to a protected file is allowed: git
replaces a symlink at the end of a path and never writes through it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing

from gitguardfs.fs.descriptors import DescriptorCache
from gitguardfs.fs.nodes import Node
from gitguardfs.fs.source import DOTGIT, Source
from gitguardfs.fs.walk import PathTooLong, PathWalk
from gitguardfs.guard.dotgit import may_be_short_name
from gitguardfs.guard.rules import RuleSet, Verdict

INTO_GIT = "symlink into a repository"
INTO_PROTECTED = "symlink into a protected directory"
TOO_LONG = "symlink that leads too far"


class _IntoGit(Exception):  # noqa: N818  # where the path leads, not that something broke
    pass


class SymlinkCheck:
    """Checks the text of a symlink before the symlink is made or moved."""

    def __init__(
        self,
        guard: RuleSet,
        source: Source,
        descriptors: DescriptorCache,
        root: Node,
        verdict_of_long_name: Callable[[int, bytes, os.stat_result], tuple[Verdict, str]],
    ) -> None:
        """Take ``verdict_of_long_name``, which is that of ``Access``."""
        self._guard = guard
        self._source = source
        self._descriptors = descriptors
        self._root = root
        self._verdict_of_long_name = verdict_of_long_name

    def why_refused(self, directory: Node, text: bytes) -> str:
        """Return the rule that forbids a symlink with ``text`` in a directory; "" if none does.

        Raises OSError if the source fails.
        """
        if not self._guard.has_rules:
            return ""
        if any(map(self._guard.is_dotgit, text.split(b"/"))):
            return INTO_GIT
        walk = PathWalk(self._source, self._descriptors, self._root, self._enter)
        try:
            with closing(walk.ends(directory, text)) as ends:
                return INTO_PROTECTED if any(marked for _, marked in ends) else ""
        except PathTooLong:
            return TOO_LONG
        except _IntoGit:
            return INTO_GIT

    def _enter(self, dir_fd: int, name: bytes, st: os.stat_result, fd: int) -> bool:
        """Raise _IntoGit for git's own directories; return whether ``name`` is protected."""
        guard = self._guard
        if guard.guards_git:
            dotgit = self._source.find_at(dir_fd, DOTGIT)
            is_gits = guard.is_dotgit(name) or (dotgit is not None and os.path.samestat(dotgit, st))
            if is_gits or (guard.checks_fake_repositories and self._source.holds_repository(fd)):
                raise _IntoGit
        if guard.has_globs and may_be_short_name(name):
            return self._verdict_of_long_name(dir_fd, name, st)[0] is not Verdict.ALLOW
        return guard.verdict_of_name(name)[0] is not Verdict.ALLOW
