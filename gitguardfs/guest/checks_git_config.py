"""Does git on the host read or run what the agent can write?

What the agent can write is everything in the shared directory, but not what is in a ``.git`` or a
bare repository there: that is what the guard keeps from it.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from errno import EIO
from typing import Any

from gitguardfs.core import names
from gitguardfs.guest import probes
from gitguardfs.guest.checks import Result, Row
from gitguardfs.guest.checks_ways import is_inside
from gitguardfs.guest.git_config import Entry, Git, NotRead
from gitguardfs.guest.probes import Lost, User
from gitguardfs.guest.probes_tree import holds_repository

ENTRIES = 1_000_000
"""Names that the search looks at: a directory with many projects and all they depend on."""
SECONDS = 120.0
"""How long the search may take: git is asked in each repository, some hundred a second."""
NAMED = 5
"""How many of what was found, or was not looked at, are named."""
ROW = Row(
    "host.git",
    "git reads and runs nothing that the agent can write",
    "git reads or runs what the agent can write",
)
HINT = "git config --show-origin --get-all KEY shows where it is set; git config --unset-all KEY"
BY_HAND = "git config --list --show-origin --includes, there, as its owner"

PROGRAMS = re.compile(
    r"core\.(fsmonitor|sshcommand|editor|pager|askpass|gitproxy|alternaterefscommand)"
    r"|sequence\.editor|pager\..+|interactive\.difffilter|diff\.external|alias\..+"
    r"|diff\..+\.(command|textconv)|(difftool|mergetool|browser|man|guitool|tar\..+)\.(.+\.)?cmd"
    r"|(difftool|mergetool|browser|man)\..+\.path|tar\..+\.command|web\.browser|help\.browser"
    r"|merge\..+\.driver|filter\..+\.(clean|smudge|process)|credential\.(.+\.)?helper"
    r"|gpg\.(.+\.)?program|gpg\.ssh\.defaultkeycommand|trailer\..+\.(command|cmd)|hook\..+\.command"
    r"|uploadpack\.packobjectshook|remote\..+\.(uploadpack|receivepack|vcs)|submodule\..+\.update"
    r"|sendemail\.(.+\.)?(sendmailcmd|smtpserver|tocmd|cccmd|headercmd)|imap\.tunnel"
    r"|instaweb\.(httpd|browser)|svn\..+-prog",
    re.DOTALL,
)
"""Keys whose value is a command (git-config(1)); sections and names are in small letters."""
DIRECTORIES = frozenset({"core.hookspath", "init.templatedir"})
"""Keys whose value is a directory with hooks."""
COMMANDS_AFTER_MARK = re.compile(r"alias\..+|submodule\..+\.update", re.DOTALL)
"""Keys whose value is a command only after ``!``, and otherwise a word of git's own."""
_BOOLEAN = re.compile(r"(?i)(true|false|yes|no|on|off|\d+)?")
_INTERPRETERS = re.compile(r"(.*/)?(sh|bash|dash|zsh|ksh|fish|python[\d.]*|perl|ruby|node|php)")
_FROM_TOP = re.compile(r"--show-(toplevel|prefix)|\$\(?pwd|\$\{?(PWD|GIT_PREFIX|GIT_WORK_TREE)")
_SEPARATOR = re.compile(r"""[;&|()<>`"'{}\n]""")


@dataclass
class Searched:
    """What a search of the shared directory has found."""

    problems: list[str] = field(default_factory=list)
    """What leads git to what the agent can write; each once, with the first repository."""
    unread: list[str] = field(default_factory=list)
    """Directories that could not be listed, configurations that could not be read, and why."""
    names: int = 0
    complete: bool = True

    def answer(self) -> dict[str, Any]:
        """It as JSON."""
        return asdict(self)


def check(user: User, directory: str | None, search_path: str) -> Result:
    """Read the configuration of every repository in and around the shared directory.

    Without a directory, what the user has for all repositories.
    """
    program = shutil.which("git", path=search_path)
    if program is None:
        return ROW.ok("no git here")
    git = Git(program, home_of(user))
    try:
        if directory is None:
            found = probes.apart(examine_user, git, user=user, limit=SECONDS + 60)
        else:
            found = probes.apart(search, git, directory, user=user, limit=SECONDS + 60)
        return judge(Searched(**found))
    except (Lost, OSError, TypeError) as error:
        return ROW.unknown(f"could not be checked: {error}", BY_HAND)


def home_of(user: User) -> str:
    """Return the user's home, for git's configuration."""
    home = os.path.expanduser(f"~{user.name}")
    return home if home.startswith("/") else "/"


def judge(searched: Searched) -> Result:
    """Return what was found, and what was not looked at, as one row."""
    if searched.problems:
        return ROW.finding(_some(searched.problems), HINT)
    if not searched.complete:
        said = f"could not all be checked: only the first {searched.names} names were looked at"
        return ROW.unknown(said, "gitguard doctor --host for each directory in it")
    if searched.unread:
        return ROW.unknown(f"could not be checked: {_some(searched.unread)}", BY_HAND)
    return ROW.ok()


def _some(said: list[str]) -> str:
    more = f" and {len(said) - NAMED} more" if len(said) > NAMED else ""
    return "; ".join(said[:NAMED]) + more


# What leads to the agent


@dataclass(frozen=True)
class Judge:
    """What the agent can write, and what in a configuration leads there."""

    git: Git
    shared: str | None
    """The shared directory, resolved; None to look for what leads into any work tree."""

    def problems(self, entries: Iterable[Entry], worktree: str | None) -> Iterator[str]:
        """Say what leads git, in a repository with this work tree, to what the agent can write."""
        for origin in dict.fromkeys(entry.origin for entry in entries if entry.origin):
            if self.is_agents(origin):
                yield f"git reads {origin}"
        for entry in entries:
            value = entry.value or ""
            if self._leads_there(entry, value, worktree):
                where = f" (in {entry.origin})" if entry.origin else ""
                yield f"{entry.key} = {value}{where}"

    def _leads_there(self, entry: Entry, value: str, worktree: str | None) -> bool:
        if entry.is_include:
            return self.is_agents(self.git.path(value, entry.origin))
        if entry.key in DIRECTORIES:
            return value != "" and self._is_reached(value, worktree)
        if re.fullmatch(r"remote\..+\.(url|pushurl)", entry.key, re.DOTALL):
            return value.startswith("ext::") and self._runs(value[5:], worktree)
        if not PROGRAMS.fullmatch(entry.key) or _BOOLEAN.fullmatch(value):
            return False
        if COMMANDS_AFTER_MARK.fullmatch(entry.key) and not value.startswith("!"):
            return self._is_configured(value, worktree)
        return self._runs(value.removeprefix("!"), worktree)

    def _is_configured(self, words: str, worktree: str | None) -> bool:
        """Whether an alias gives git a value that leads there (-c KEY=VALUE)."""
        return any(
            self._leads_there(Entry("command", "", key.lower(), None), value, worktree)
            for key, value in re.findall(r"-c\s*[\"']?([\w.-]+)=([^\"']+|\S+)", words)
        )

    def _runs(self, command: str, worktree: str | None) -> bool:
        """Whether a command for the shell runs something by a relative path, or in the share.

        Each word counts that could be a program, or a script for one: better a finding too many.
        """
        if _FROM_TOP.search(command):
            return True
        for part in _SEPARATOR.split(command):
            words = [re.sub(r"^\w+=", "", word) for word in part.split()]
            if any(self._is_named(word, worktree) for word in words):
                return True
            program, *rest = words or [""]
            if "/" in program and not program.startswith(("/", "~", "$")):
                return True
            script = next((word for word in rest if not word.startswith("-")), "/")
            has_code = any(word in ("-c", "-e", "-m") for word in rest)
            is_script = not script.startswith(("/", "~", "$"))
            if _INTERPRETERS.fullmatch(program) and not has_code and is_script:
                return True
        return False

    def _is_named(self, word: str, worktree: str | None) -> bool:
        """Whether a word of a command is a path that the agent can write."""
        if word.startswith(("./", "../")):
            return True
        if word.startswith(("/", "~")):
            return self.is_agents(self.git.path(word, "/"))
        return "/" in word and worktree is not None and os.path.isfile(f"{worktree}/{word}")

    def _is_reached(self, directory: str, worktree: str | None) -> bool:
        """Whether a directory, which may be relative to the work tree, is one of the agent's."""
        if directory.startswith(("/", "~")):
            return self.is_agents(self.git.path(directory, "/"))
        return worktree is None or self.is_agents(os.path.join(worktree, directory))

    def is_agents(self, path: str) -> bool:
        """Whether the agent can write a file, or put it there; by its name and when resolved."""
        shared = self.shared
        return shared is not None and any(
            is_inside(one, shared) and not is_guarded(one, shared)
            for one in (os.path.normpath(path), os.path.realpath(path))
        )


def is_guarded(path: str, shared: str) -> bool:
    """Whether ``path`` is in a repository's own directory, as the guard has it (or is ``.git``)."""
    directory = shared
    for part in os.path.relpath(path, shared).split("/"):
        if names.is_dotgit(os.fsencode(part)):
            return True
        try:
            if holds_repository(directory):
                return True
        except OSError:
            return False  # not sure to be guarded
        directory = os.path.join(directory, part)
    return False


# Run as the user


def bare_repositories(git: Git) -> str:
    """Return the user's safe.bareRepository, which git takes from no repository. Raises OSError."""
    try:
        said = [one.value for one in git.of_user() if one.key == "safe.barerepository"]
    except NotRead as error:
        raise OSError(EIO, str(error)) from None
    return (said[-1] or "") if said else ""


def examine_user(git: Git) -> dict[str, Any]:
    """Return a ``Searched``'s answer about what holds for the user in all repositories."""
    searched = Searched()
    _examine(searched, Judge(git, None), "the user's configuration", None)
    return searched.answer()


def search(git: Git, top: str, entries: int = ENTRIES, seconds: float = SECONDS) -> dict[str, Any]:
    """Return a ``Searched``'s answer about all repositories in ``top``, and those around it.

    What this user may not list is no place where the user has git run; symlinks to directories are
    not followed, but a ``.git`` that is one is.
    """
    searched = Searched()
    judge = Judge(git, os.path.realpath(top))
    _examine(searched, judge, "the user's configuration", None)
    deadline = time.monotonic() + seconds
    queue = [top]
    for directory in _around(top):
        _examine(searched, judge, os.path.join(directory, ".git"), directory)
    while queue:
        directory = queue.pop()
        try:
            listed = list(_entries(directory))
            is_bare = any(one.name == "HEAD" for one in listed) and holds_repository(directory)
        except OSError as error:
            searched.unread.append(f"{directory}: {error.strerror}")
            continue
        searched.names += len(listed)
        if searched.names > entries or time.monotonic() > deadline:
            searched.complete = False
            break
        if is_bare:
            _examine(searched, judge, directory, directory)
            continue
        for entry in listed:
            if entry.name == ".git":
                _examine(searched, judge, entry.path, directory)
            elif entry.is_dir(follow_symlinks=False):
                queue.append(entry.path)
    searched.problems = list(dict.fromkeys(searched.problems))
    return searched.answer()


def _examine(searched: Searched, judge: Judge, place: str, worktree: str | None) -> None:
    """Read one configuration, and note what is wrong with it."""
    try:
        if not os.path.isabs(place):
            entries: Sequence[Entry] = judge.git.of_user()
        elif is_repository(place):
            entries = judge.git.of_repository(place)
        else:
            return
        searched.problems += judge.problems(entries, worktree)
    except OSError as error:
        searched.unread.append(f"{place}: {error.strerror}")
    except NotRead as error:
        searched.unread.append(f"{place}: {error}")


def is_repository(place: str) -> bool:
    """Whether git goes by a ``.git``, or a bare repository: not if it is empty or leads nowhere.

    Raises OSError if that cannot be told.
    """
    st = _stat(place)
    if st is None:
        return False
    if stat.S_ISDIR(st.st_mode):
        return _stat(os.path.join(place, "HEAD"), follow=False) is not None
    if not stat.S_ISREG(st.st_mode):
        return False
    with open(place, "rb") as file:
        said = file.read(4096).removeprefix(b"gitdir:").strip()
    return _stat(os.path.join(os.path.dirname(place), os.fsdecode(said))) is not None


def _stat(path: str, follow: bool = True) -> os.stat_result | None:
    try:
        return os.stat(path, follow_symlinks=follow)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _around(top: str) -> Iterator[str]:
    """Yield the directories above that have a ``.git``: the shared one may lie in a work tree."""
    directory = os.path.dirname(os.path.realpath(top))
    while True:
        if os.path.lexists(os.path.join(directory, ".git")):
            yield directory
        if directory == "/":
            return
        directory = os.path.dirname(directory)


def _entries(directory: str) -> Iterator[os.DirEntry[str]]:
    try:
        listing = os.scandir(directory)
    except (PermissionError, FileNotFoundError):
        return
    with listing:
        yield from listing
