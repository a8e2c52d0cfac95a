"""The guard's rules, and the verdict that they give for a name. Pure: no I/O.

A refusal is EACCES, for root as well: a denied object is shown with mode 000, and a program
expects EACCES for such an object. EPERM would invite "try as root". EROFS would be untrue for the
rest of the mount. ENOENT would hide from the user why a command failed.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import lru_cache
from operator import itemgetter
from typing import Literal

from gitguardfs.base import secret_names
from gitguardfs.names import dotgit, repository, work_tree

_NormalForm = Literal["NFC", "NFD", "NFKC", "NFKD"]
_NORMAL_FORMS: tuple[_NormalForm, ...] = ("NFC", "NFD", "NFKC", "NFKD")


class Verdict(IntEnum):
    """The access that is granted to an object; a larger value is stricter."""

    ALLOW = 0
    READONLY = 1
    DENY = 2
    HIDE = 3


ALLOW, HIDE = Verdict.ALLOW, Verdict.HIDE
"""The verdicts that every request is compared with: an Enum takes 25 ns to give its member."""


class GitMode(Enum):
    """The value of ``--git``."""

    DENY = "deny"
    LIST = "list"
    READONLY = "readonly"
    HIDE = "hide"
    PRIVATE = "private"
    OFF = "off"


class LinkMode(Enum):
    """The value of ``--links``."""

    GUARDED = "guarded"
    RAW = "raw"


_GIT_VERDICT = {
    GitMode.DENY: Verdict.DENY,
    GitMode.LIST: Verdict.DENY,
    GitMode.READONLY: Verdict.READONLY,
    GitMode.HIDE: Verdict.HIDE,
    GitMode.PRIVATE: Verdict.DENY,
    GitMode.OFF: Verdict.ALLOW,
}


_SPECIAL = {b".git", *map(bytes.lower, (*repository.PARTS, *work_tree.OPENED))}
"""The portable names about which a rule on git says something."""


class Refused(PermissionError):  # noqa: N818  # what happened, not that something broke
    """The guard refuses a request. Carries the rule and the path for the audit log."""

    def __init__(self, rule: str, where: Callable[[], bytes] = bytes) -> None:
        """Keep ``where``: it returns the path in the mount, and is called only to log it."""
        super().__init__(errno.EACCES, os.strerror(errno.EACCES))
        self.rule = rule
        self.where = where


@dataclass(frozen=True)
class GuardRules:
    """The rules as the options give them."""

    git: GitMode = GitMode.DENY
    allow_bare: bool = False
    links: LinkMode = LinkMode.GUARDED
    deny: tuple[str, ...] = ()
    protect: tuple[str, ...] = ()
    hide: tuple[str, ...] = ()
    hide_secrets: bool = False
    """Whether names of environment files and keys are hidden, but for those of ``show``."""
    show: tuple[str, ...] = ()


class RuleSet:
    """The rules, compiled once and asked for every name."""

    def __init__(self, rules: GuardRules) -> None:
        self.git_verdict = _GIT_VERDICT[rules.git]
        """The verdict on a repository's metadata; ALLOW turns every git rule off."""
        self.guards_git = self.git_verdict is not Verdict.ALLOW
        """Whether the git rules are on."""
        self.checks_fake_repositories = self.guards_git and not rules.allow_bare
        """Whether directories that look like repositories are guarded (G2 to G4)."""
        self.contains_links = self.guards_git and rules.links is LinkMode.GUARDED
        """Whether new symlinks lead below their work tree, or nowhere (G6)."""
        self._globs = tuple(
            (verdict, f"{option} {glob}", _compile(glob))
            for verdict, option, globs in (
                (Verdict.HIDE, "--hide", rules.hide),
                (Verdict.DENY, "--deny", rules.deny),
                (Verdict.READONLY, "--protect", rules.protect),
            )
            for glob in globs
        )
        self._hides_secrets = rules.hide_secrets
        self._shown = tuple(map(_compile, rules.show))
        self.has_globs = bool(self._globs) or rules.hide_secrets
        """Whether there is a rule for names: of ``--deny``, ``--protect`` and the ``--hide…``."""
        self.has_rules = self.guards_git or self.has_globs
        """Whether any rule is on."""
        self.hides = self.git_verdict is Verdict.HIDE or bool(rules.hide)
        """Whether ``--git`` or ``--hide`` hides anything."""
        self._lists_dotgit = rules.git not in (GitMode.DENY, GitMode.PRIVATE)
        self.is_plain = lru_cache(dotgit.CACHED_NAMES)(self._is_plain)
        """Returns whether a name is one component about which no rule says anything; cached."""
        self.verdict_of_name = lru_cache(dotgit.CACHED_NAMES)(self._verdict_of_name)
        """Returns the verdict on a name and the rule behind it; cached."""

    def _is_plain(self, name: bytes) -> bool:
        if not dotgit.is_portable(name):
            return False
        spelling = name.lower().rstrip(b".")
        return (
            bool(spelling)
            and spelling not in _SPECIAL
            and not (self.has_globs and self.verdict_of_name(name)[0])
        )

    def _verdict_of_name(self, name: bytes) -> tuple[Verdict, str]:
        if self.guards_git and dotgit.is_dotgit(name):
            return max((self.git_verdict, "git"), self.verdict_by_globs(name), key=itemgetter(0))
        return self.verdict_by_globs(name)

    def verdict_by_globs(self, name: bytes) -> tuple[Verdict, str]:
        """Return the verdict of the rules that ``has_globs`` counts, and the rule behind it."""
        verdict, rule = Verdict.ALLOW, ""
        readings = _readings(name) if self.has_globs else ()
        for other, text, pattern in self._globs:
            if other > verdict and any(map(pattern.match, readings)):
                verdict, rule = other, text
        if self._hides_secrets and verdict < HIDE and any(map(self._is_hidden_secret, readings)):
            return HIDE, "--hide-secrets"
        return verdict, rule

    def _is_hidden_secret(self, reading: str) -> bool:
        """Return whether ``--hide-secrets`` hides one reading of a name.

        ``--show`` is compared with the same reading: it shows a name in all its spellings.
        """
        return secret_names.is_hidden(reading) and not any(
            pattern.match(reading) for pattern in self._shown
        )

    def is_listed(self, name: bytes) -> bool:
        """Return whether listings show an entry called ``name``.

        ``--git=deny`` leaves ``.git`` out: many programs that read a whole tree end at what they
        cannot open. A program that asks for ``.git`` by its name finds it. ``--git=private`` lists
        its own file of that name, and nothing else that git could take for it.
        """
        if self.verdict_of_name(name)[0] is HIDE:
            return False
        return self._lists_dotgit or not self.is_dotgit(name)

    def is_dotgit(self, name: bytes) -> bool:
        """Return whether ``name`` is guarded because git could take it for ``.git``."""
        return self.guards_git and dotgit.is_dotgit(name)


def _readings(name: bytes) -> tuple[str, ...]:
    """Return the names to compare with patterns: ``name``, and its components on NTFS and FAT.

    A name that is not ASCII is compared in every normal form as well: to macOS and to Linux
    casefold directories these are one name. Each byte that is not UTF-8 becomes one character
    (surrogateescape).
    """
    text = dotgit.without_ignorable(name.decode(errors="surrogateescape"))
    readings = (text, *dotgit.as_on_windows(text))
    if name.isascii():
        return readings
    return (*readings, *(_folded(text, form) for text in readings for form in _NORMAL_FORMS))


def _folded(text: str, form: _NormalForm) -> str:
    """Return ``text`` in a normal form, folded to one case (\u00df to ss)."""
    return unicodedata.normalize(form, unicodedata.normalize("NFD", text).casefold())


def _compile(glob: str) -> re.Pattern[str]:
    """Return a pattern of the names that ``glob`` matches, as it stands or composed (NFC).

    NFKC could make a wildcard of a character, and NFD two of one in ``[...]``.
    """
    given = dotgit.without_ignorable(glob)
    globs = (given,) if given.isascii() else (given, _folded(given, "NFC"))
    return re.compile("|".join(map(fnmatch.translate, globs)), re.IGNORECASE)
