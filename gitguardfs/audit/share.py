"""What in the shared directory the agent can write: all but what a guard keeps from it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from gitguardfs.audit.walk import trail
from gitguardfs.guard import dotgit, repository
from gitguardfs.guard.rules import Guard, Verdict


@dataclass(frozen=True)
class Share:
    """The shared directory, and the rules of the guard over it."""

    path: str
    """Without symlinks."""
    guard: Guard

    def is_agents(self, path: str) -> bool:
        """Whether the agent can write a file, or put it there, or a symlink on the way to it."""
        return self.agents_places(path) != []

    def agents_places(self, path: str) -> list[str]:
        """Return what decides where a path leads, or is its end, and that the agent can write."""
        places = dict.fromkeys((os.path.normpath(path), *trail(path)))
        return [one for one in places if self.holds(one) and not self.is_guarded(one)]

    def holds(self, path: str) -> bool:
        """Whether a path lies in the shared directory, or is it."""
        return path == self.path or path.startswith(self.path.rstrip("/") + "/")

    def is_guarded(self, path: str) -> bool:
        """Whether a path in the shared directory is kept by a rule, or lies in a repository."""
        if path == self.path:
            return False
        return self.is_kept(self.parts(path)) or self.is_git(path)

    def parts(self, path: str) -> list[str]:
        """Return the names on the way to a path in the shared directory, from there on."""
        return path[len(self.path.rstrip("/")) + 1 :].split("/")

    def is_git(self, path: str) -> bool:
        """Whether a path in the shared directory is a repository's own directory, or lies in it."""
        directory = self.path
        for part in self.parts(path):
            if looks_like_repository(directory) or dotgit.is_dotgit(os.fsencode(part)):
                return True
            directory = os.path.join(directory, part)
        return looks_like_repository(directory)

    def is_kept(self, parts: list[str]) -> bool:
        """Whether one of the names is ``.git``, or one that may not be changed."""
        return any(self.guard.name(os.fsencode(part))[0] >= Verdict.READONLY for part in parts)

    def is_unreadable(self, path: str) -> bool:
        """Whether a rule keeps the agent from reading a file of the shared directory."""
        verdicts = (self.guard.name(os.fsencode(part))[0] for part in self.parts(path))
        return any(verdict >= Verdict.DENY for verdict in verdicts)


def looks_like_repository(path: str) -> bool:
    """Whether a guard treats a directory as ``.git`` itself; False if that cannot be told.

    A symlink to one is the agent's to replace.
    """
    if os.path.islink(path):
        return False

    def mode_of(name: bytes) -> int | None:
        try:
            return os.lstat(os.path.join(path, os.fsdecode(name))).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return None

    try:
        return repository.is_repository(mode_of)
    except OSError:
        return False  # not sure to be guarded
