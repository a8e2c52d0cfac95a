"""Finds symlinks of the share that lead out of it, or into a repository.

They are judged once the whole tree was read. What the walk has seen is not asked for again: a path
in the share costs no system call, however deep it is and however many symlinks lead along it.
"""

from __future__ import annotations

import os
import re
from itertools import accumulate
from stat import S_IFLNK

from gitguardfs.base.findings import Severity
from gitguardfs.base.quote import shell_printable
from gitguardfs.base.walk import ScannedDirectory, Unread, steps
from gitguardfs.host.audit import fixes, rows
from gitguardfs.host.audit.audit import Audit
from gitguardfs.names import dotgit, links

NEUTRAL = os.fsdecode(links.NEUTRAL)
GROUPED = 10
"""Up to so many symlinks that lead the same way have a finding each."""
PASTED = 4000
"""Characters of a command: a terminal passes on lines of 4,095 bytes at most (termios(3))."""


def note(audit: Audit, directory: ScannedDirectory) -> None:
    """Note the symlinks in a directory. Module ``repository`` judges a ``.git``."""
    for name, file_type in directory.entries.items():
        if file_type == S_IFLNK and not dotgit.is_dotgit(os.fsencode(name)):
            path = os.path.join(directory.path, name)
            try:
                audit.symlinks[path] = os.readlink(name, dir_fd=directory.fd)
            except OSError:
                audit.unread(path, Unread("it was changed while it was read"))


def check(audit: Audit) -> None:
    """Add findings for the symlinks that were noted, and a note for those that lead nowhere."""
    judge = SymlinkJudge(audit)
    groups: dict[tuple[str, Severity], list[tuple[str, str]]] = {}
    neutral = []
    for link, text in sorted(audit.symlinks.items()):
        if judge.is_neutral(text):
            neutral.append(link)
            continue
        target, repository = judge.target(link)
        verdict = judge.verdict(link, target, repository)
        if verdict is not None:
            groups.setdefault(verdict, []).append((link, target))
    for (where, severity), found in groups.items():
        if len(found) > GROUPED:
            link, target = found[0]
            detail = f"{len(found)} symlinks lead {where}: {link} to {target}, and so on"
            lengths = accumulate(len(shell_printable([one])) + 1 for one, _ in found)
            fits = sum(length < PASTED for length in lengths)
            fix = fixes.remove(*(one for one, _ in found[: max(1, fits)]))
            audit.report(rows.SYMLINK, detail, fix, severity)
            continue
        for link, target in found:
            detail = f"{link} leads {where}, to {target}"
            audit.report(rows.SYMLINK, detail, fixes.remove(link), severity)
    if neutral:
        begin = "begins" if len(neutral) == 1 else "begin"
        detail = f"{len(neutral)} {begin} with {NEUTRAL}, for instance {neutral[0]}"
        title = "symlinks that were made through a view lead nowhere on this machine"
        audit.results.append(rows.SYMLINK.note(detail, title=title))


class SymlinkJudge:
    """Finds where symlinks lead, and what that means."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        self._share = audit.share
        self._is_nowhere = not os.path.lexists(NEUTRAL)

    def is_neutral(self, text: str) -> bool:
        """Return whether a text leads nowhere, whatever comes after its beginning."""
        return self._is_nowhere and text.startswith(NEUTRAL)

    def target(self, link: str) -> tuple[str, str | None]:
        """Return the path to which a symlink leads, and the repository that it enters, if any.

        A symlink that the kernel follows nowhere (a loop, or too many symlinks) leads to itself.
        """
        place, text = link, None
        for place, text, rest in steps(
            os.path.basename(link), self._readlink, os.path.dirname(link)
        ):
            shared = self._share.holds(place)
            if dotgit.is_dotgit(os.fsencode(os.path.basename(place))) or (
                place in self._audit.bare if shared else self._share.is_repository(place)
            ):
                return os.path.normpath(os.path.join(place, *rest[::-1])), place
            if text is not None and self.is_neutral(text):
                break
        return (place, None) if text is None else (link, None)

    def _readlink(self, path: str) -> str | None:
        if self._share.holds(path):
            return self._audit.symlinks.get(path)
        return self._share.readlink(path)

    def verdict(
        self, link: str, target: str, repository: str | None
    ) -> tuple[str, Severity] | None:
        """Return where a symlink leads, and how bad that is; None if it may lead there."""
        if repository is not None and (
            self._share.holds(repository) or os.access(repository, os.W_OK)
        ):
            return "into a repository", Severity.HIGH
        if self._share.holds(target) or _is_python(link, target):
            return None
        if not os.path.lexists(target):
            return "out of the share to what does not exist", Severity.LOW
        if not os.access(target, os.W_OK):
            return None
        return "out of the share", Severity.MEDIUM if os.path.isdir(target) else Severity.LOW


def _is_python(link: str, target: str) -> bool:
    """Return whether a symlink is the interpreter of a virtual environment (PEP 405)."""
    names = f"{os.path.basename(link)} {os.path.basename(target)}"
    marker = os.path.join(os.path.dirname(os.path.dirname(link)), "pyvenv.cfg")
    is_named = re.fullmatch(r"(python|pypy)[\d.]* (python|pypy)[\d.]*", names) is not None
    return is_named and os.path.isfile(target) and os.path.lexists(marker)
