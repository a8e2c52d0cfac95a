"""Finds symlinks of the share that lead out of their work tree, or into a repository.

They are judged once the whole tree was read. What the walk has seen is not asked for again: a path
in the share costs no system call, however deep it is and however many symlinks lead along it.
"""

from __future__ import annotations

import os
from functools import lru_cache
from stat import S_IFLNK

from gitguardfs.audit import fixes, rows
from gitguardfs.audit.audit import Audit
from gitguardfs.audit.repository import is_dotgit
from gitguardfs.audit.share import looks_like_repository
from gitguardfs.audit.walk import ScannedDirectory, Unread
from gitguardfs.constants import MAX_SYMLINKS
from gitguardfs.findings import Severity
from gitguardfs.guard import links
from gitguardfs.paths import is_inside
from gitguardfs.render.quote import shell_printable

NEUTRAL = os.fsdecode(links.NEUTRAL)
GROUPED = 10
"""Up to so many symlinks of one work tree that lead the same way have a finding each."""
PASTED = 4000
"""Characters of a command: a terminal passes on lines of 4,095 bytes at most (termios(3))."""
_CACHED = 1 << 14
"""How many paths outside of the share are remembered: more than symlinks usually lead along."""


def note(audit: Audit, directory: ScannedDirectory) -> None:
    """Note the symlinks in a directory. Module ``repository`` judges a ``.git``."""
    for name, file_type in directory.entries.items():
        if file_type == S_IFLNK and not is_dotgit(name):
            path = os.path.join(directory.path, name)
            try:
                audit.symlinks[path] = os.readlink(name, dir_fd=directory.fd)
            except OSError:
                audit.unread(path, Unread("it was changed while it was read"))


def check(audit: Audit) -> None:
    """Add findings for the symlinks that were noted, and a note for those that lead nowhere."""
    judge = SymlinkJudge(audit)
    groups: dict[tuple[str, str, Severity], list[tuple[str, str]]] = {}
    neutral = []
    for link, text in sorted(audit.symlinks.items()):
        if judge.is_neutral(text):
            neutral.append(link)
            continue
        root = judge.root(os.path.dirname(link))
        target, repository = judge.target(link)
        verdict = judge.verdict(root, target, repository)
        if verdict is not None:
            groups.setdefault((root, *verdict), []).append((link, target))
    for (root, where, severity), found in groups.items():
        if len(found) > GROUPED:
            link, target = found[0]
            detail = f"{len(found)} symlinks in {root} lead {where}: {link} to {target}, and so on"
            fix = _remove_all(audit, [link for link, _ in found])
            audit.results.append(rows.SYMLINK.finding(detail, fix, severity))
            continue
        for link, target in found:
            detail = f"{link} leads {where}, to {target}"
            audit.results.append(rows.SYMLINK.finding(detail, fixes.remove(link), severity))
    if neutral:
        begin = "begins" if len(neutral) == 1 else "begin"
        detail = f"{len(neutral)} {begin} with {NEUTRAL}, for instance {neutral[0]}"
        title = "symlinks that were made through a view lead nowhere on this machine"
        audit.results.append(rows.SYMLINK.note(detail, title=title))


def _remove_all(audit: Audit, paths: list[str]) -> str:
    """Return the command that removes symlinks; if they are too many, some, and audits again."""
    words, length = ["rm", "-f", "--"], 0
    for link in paths:
        length += len(shell_printable([link])) + 1
        if length > PASTED and len(words) > 3:
            again = shell_printable(["gitguard", "audit", audit.share.path])
            return f"{shell_printable(words)} && {again}"
        words.append(link)
    return shell_printable(words)


class SymlinkJudge:
    """Finds where symlinks lead, and what that means."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        self._share = audit.share
        self._text_outside = lru_cache(_CACHED)(_readlink)
        self._is_repository_outside = lru_cache(_CACHED)(looks_like_repository)
        self._roots = {audit.share.path: audit.share.path}
        self._is_nowhere = not os.path.lexists(NEUTRAL)

    def is_neutral(self, text: str) -> bool:
        """Return whether a text leads nowhere, whatever comes after its beginning."""
        return self._is_nowhere and text.startswith(NEUTRAL)

    def root(self, directory: str) -> str:
        """Return the work tree of what lies in a directory; the share if there is none."""
        passed = []
        while directory not in self._roots and directory not in self._audit.work_trees:
            passed.append(directory)
            directory = os.path.dirname(directory)
        root = self._roots.get(directory, directory)
        self._roots |= dict.fromkeys(passed, root)
        return root

    def target(self, link: str) -> tuple[str, str | None]:
        """Return the path to which a symlink leads, and the repository that it enters, if any.

        A symlink that the kernel follows nowhere (a loop, or too many symlinks) leads to itself.
        """
        place, rest = os.path.dirname(link), [os.path.basename(link)]
        followed = 0
        while rest:
            name = rest.pop()
            if name in ("", "."):
                continue
            if name == "..":
                place = os.path.dirname(place)
                continue
            place = os.path.join(place, name)
            shared = self._share.holds(place)
            if is_dotgit(name) or (
                place in self._audit.bare if shared else self._is_repository_outside(place)
            ):
                return os.path.normpath(os.path.join(place, *rest[::-1])), place
            text = self._audit.symlinks.get(place) if shared else self._text_outside(place)
            if text is None:
                continue
            followed += 1
            if followed > MAX_SYMLINKS or self.is_neutral(text):
                return link, None
            place = "/" if text.startswith("/") else os.path.dirname(place)
            rest += text.split("/")[::-1]
        return place, None

    def verdict(
        self, root: str, target: str, repository: str | None
    ) -> tuple[str, Severity] | None:
        """Return where a symlink of a work tree leads, and how bad that is; None if it may."""
        if repository is not None and (
            self._share.holds(repository) or os.access(repository, os.W_OK)
        ):
            return "into a repository", Severity.HIGH
        if is_inside(target, root):
            return None
        if self._share.holds(target):
            return "out of its work tree", Severity.LOW
        if not os.path.lexists(target):
            return "out of the share to what does not exist", Severity.LOW
        if not os.access(target, os.W_OK):
            return None
        return "out of the share", Severity.MEDIUM if os.path.isdir(target) else Severity.LOW


def _readlink(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None  # not a symlink, or missing
