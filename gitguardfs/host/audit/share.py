"""The shared directory, and which paths in it the agent can write: all that no guard protects."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial

from gitguardfs.base.paths import mode_at
from gitguardfs.base.walk import readlink, trail
from gitguardfs.names import dotgit, repository
from gitguardfs.names.rules import RuleSet, Verdict

CACHED = 1 << 14
"""How many paths are remembered: in a deep tree most of a path was asked for before."""


@dataclass(frozen=True)
class Share:
    """The shared directory, and the rules of the guard over it."""

    path: str
    """Its absolute path, without symlinks."""
    guard: RuleSet
    readlink: Callable[[str], str | None] = field(
        default_factory=lambda: lru_cache(CACHED)(readlink)
    )
    is_repository: Callable[[str], bool] = field(
        default_factory=lambda: lru_cache(CACHED)(looks_like_repository)
    )

    def resolved(self, path: str) -> str:
        """Return an absolute path with its symlinks resolved."""
        return trail(path, self.readlink)[-1]

    def is_agents(self, path: str) -> bool:
        """Return whether the agent can write or create a file, or a symlink on its path."""
        return self.agents_places(path) != []

    def agents_places(self, path: str) -> list[str]:
        """Return the symlinks on a path, and its end, as far as the agent can write them."""
        places = dict.fromkeys((os.path.normpath(path), *trail(path, self.readlink)))
        return [one for one in places if self.holds(one) and not self.is_guarded(one)]

    def holds(self, path: str) -> bool:
        """Return whether a path is the shared directory or lies in it."""
        return path == self.path or path.startswith(self.path.rstrip("/") + "/")

    def is_guarded(self, path: str) -> bool:
        """Return whether a rule protects a path of the share, or a git directory holds it."""
        if path == self.path:
            return False
        return self.is_kept(self.parts(path)) or self.is_git(path)

    def parts(self, path: str) -> list[str]:
        """Return the components of a path in the share, relative to the shared directory."""
        return path[len(self.path.rstrip("/")) + 1 :].split("/")

    def is_git(self, path: str) -> bool:
        """Return whether a path in the share is a git directory or lies in one."""
        directory = self.path
        for part in self.parts(path):
            if self.is_repository(directory) or dotgit.is_dotgit(os.fsencode(part)):
                return True
            directory = os.path.join(directory, part)
        return self.is_repository(directory)

    def is_kept(self, parts: list[str], limit: Verdict = Verdict.READONLY) -> bool:
        """Return whether one of the components is ``.git``, or read-only or stricter by a rule."""
        return any(self.guard.verdict_of_name(os.fsencode(part))[0] >= limit for part in parts)

    def is_unreadable(self, path: str) -> bool:
        """Return whether a rule keeps the agent from reading a file of the share."""
        return self.is_kept(self.parts(path), Verdict.DENY)


def looks_like_repository(path: str) -> bool:
    """Return whether a guard treats a directory like a ``.git``; False if unknown.

    A symlink gives False: the agent could replace it.
    """
    if os.path.islink(path):
        return False
    try:
        return repository.is_repository(partial(mode_at, path))
    except OSError:
        return False  # unknown: then it must not count as guarded
