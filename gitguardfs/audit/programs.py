"""Recognises values of git's configuration that make git read or run what the agent can write."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gitguardfs.audit.git_config import ConfigEntry, Git
from gitguardfs.audit.share import Share
from gitguardfs.audit.shell import Reader
from gitguardfs.audit.shell_words import SEPARATOR, command_words, file_run_by

PROGRAMS = re.compile(
    r"core\.(fsmonitor|sshcommand|editor|pager|askpass|gitproxy|alternaterefscommand)"
    r"|sequence\.editor|pager\..+|interactive\.difffilter|diff\.external|alias\..+"
    r"|diff\..*\.(command|textconv)|(difftool|mergetool|browser|man|guitool)\.(.+\.)?cmd"
    r"|(difftool|mergetool|browser|man)\..+\.path|tar\..+\.command|web\.browser|help\.browser"
    r"|merge\..*\.driver|filter\..*\.(clean|smudge|process)|credential\.(.+\.)?helper"
    r"|gpg\.(.+\.)?program|gpg\.ssh\.defaultkeycommand|gc\.recentobjectshook|trailer\..+\.(command|cmd)|hook\..+\.command"
    r"|uploadpack\.packobjectshook|remote\..+\.(uploadpack|receivepack|vcs)|submodule\..+\.update"
    r"|sendemail\.(.+\.)?(sendmailcmd|smtpserver|tocmd|cccmd|headercmd)|imap\.tunnel"
    r"|lfs\.(customtransfer\..+\.path|extension\..+\.(clean|smudge))"
    r"|instaweb\.(httpd|browser)|svn\..+-prog",
    re.DOTALL,
)
"""Keys whose value is a command (git-config(1)); sections and names are in lower case."""
DIRECTORIES = frozenset({"core.hookspath", "init.templatedir", "gitflow.path.hooks"})
"""Keys whose value is a directory with hooks."""
TRUSTED = frozenset({"gpg.ssh.allowedsignersfile", "gpg.ssh.revocationfile"})
"""Keys whose value is a file that says which signatures are good."""
COMMANDS_AFTER_MARK = re.compile(r"alias\..+|submodule\..+\.update", re.DOTALL)
"""Keys whose value is a shell command only after ``!``, and otherwise git's own keyword."""
EXTERNAL = "ext::"
"""The start of an address that is a command (git-remote-ext(1))."""
SUBMODULE_URL = re.compile(r"submodule\..+\.url", re.DOTALL)
ADDRESSES = re.compile(
    r"remote\..+\.(url|pushurl)|remote\.pushdefault|branch\..+\.(remote|pushremote)"
    rf"|{SUBMODULE_URL.pattern}",
    re.DOTALL,
)
"""Keys whose value is an address, or may be one instead of a remote's name."""
_REWRITES = re.compile(r"url\.(.+)\.(insteadof|pushinsteadof)", re.DOTALL)
"""Keys with an address in them, which replaces the start of others."""
TOOLS = frozenset(
    {"make", "gmake", "just", "task", "rake", "bundle", "npm", "npx", "yarn", "pnpm", "bun",
     "bunx", "deno", "composer", "cargo", "tox", "nox", "pytest", "poetry", "pipenv", "uv",
     "gradle", "mvn", "sbt", "dotnet", "go", "overcommit", "yorkie", "simple-git-hooks",
     "lint-staged", "commitlint", "eslint", "prettier", "stylelint", "jest", "vitest", "turbo",
     "nx", "lerna", "gulp", "grunt", "pre-commit", "mypy", "pylint", "flake8", "hatch", "pdm",
     "rubocop", "rspec", "phpstan", "phpunit", "mix", "Rscript", "cmake", "ninja", "meson", "ant",
     "bazel", "docker-compose", "nix", "nix-shell", "direnv", "mise"}
)  # fmt: skip
"""Programs that run what files of the work tree define."""
_PYTHON = re.compile(
    r"(?i)(?:python|pypy)[\w.]*((?:\s+-[XW]\s*[\w:=.]+|\s+-[A-Z]\S*)*(?:\s+-(?=\s|$)|\s*<)?)"
)
"""Python, also by the name of a variable, and its options, without quotes."""
_BOOLEAN = re.compile(r"(?i)(true|false|yes|no|on|off|\d+)?")
_STARTED_BY_GIT = re.compile(
    r"(?:^|\s)(?:-x|-O|--(?:exec|extcmd|open-files-in-pager|upload-pack|receive-pack)|run|foreach)"
    r"[\s=]*[\"']?([^\"'\s]+)"
)
"""In an alias: an option of one of git's commands, and the program that the command starts."""
_PASSED = re.compile(
    r"""-c\s*(?:'([\w.-]{1,250})=([^']*)'|"([\w.-]{1,250})=([^"]*)"
        |([\w.-]{1,250})=(?:'([^']*)'|"([^"]*)"|([^\s"']*)))""",
    re.VERBOSE,
)
"""A setting for one run of git."""
_SEARCHED = re.compile(r"\bPATH=[\"']?([^\"'\s]*)")
_FROM_TOP = re.compile(r"--show-(toplevel|prefix)|\$\(?pwd|\$\{?(PWD|GIT_PREFIX|GIT_WORK_TREE)")


def is_program(entry: ConfigEntry) -> bool:
    """Return whether an entry makes git run a program, wherever that program is."""
    value = entry.value or ""
    if entry.key == "core.hookspath":
        return value != ""
    if external_command(entry.key, value) is not None:
        return True
    if not PROGRAMS.fullmatch(entry.key) or _BOOLEAN.fullmatch(value):
        return False
    return value.startswith("!") or not COMMANDS_AFTER_MARK.fullmatch(entry.key)


def external_command(key: str, value: str) -> str | None:
    """Return the command of an address ``ext::COMMAND`` in an entry; None if it has none."""
    rewrite = _REWRITES.fullmatch(key)
    address = rewrite[1] if rewrite else value if ADDRESSES.fullmatch(key) else ""
    return address.removeprefix(EXTERNAL) if address.startswith(EXTERNAL) else None


def imports_from_directory(command: str) -> bool:
    """Return whether a command makes Python look for modules in the working directory first.

    It does so with -m, -c or a program from standard input, unless -I or -P comes before that.
    """
    for found in _PYTHON.finditer(re.sub(r"[\"'`,{}]", " ", command)):
        for option in found[1].split():
            if option in ("-", "<"):
                return True
            letters = re.match(r"-[^\WIPmcXW]*([IPmc])", option)
            if letters is not None and letters[1] in "mc":
                return True
            if letters is not None:
                break
    return False


def tool_of(command: str) -> str | None:
    """Return the first of TOOLS that a shell command runs; None if it runs none."""
    for part in SEPARATOR.split(re.sub(r"\s-(exec|ok)(dir)?\s", ";", command)):  # find -exec
        words = command_words(part)
        if words and words[0] in TOOLS:
            return words[0]
    return None


@dataclass(frozen=True)
class Judge:
    """Finds the entries of a configuration that lead to files that the agent can write."""

    git: Git
    share: Share

    def origins(self, entries: Sequence[ConfigEntry]) -> Iterator[str]:
        """Yield the files of these entries that the agent can write."""
        for origin in dict.fromkeys(entry.origin for entry in entries if entry.origin):
            if self.share.is_agents(origin):
                yield origin

    def problems(
        self, entries: Sequence[ConfigEntry], worktree: str | None
    ) -> Iterator[ConfigEntry]:
        """Yield the entries that lead git to files that the agent can write.

        ``worktree`` is the repository's work tree; None for a bare repository, and for entries
        that hold in every repository.
        """
        for entry in entries:
            if self._leads_there(entry, entry.value or "", worktree):
                yield entry

    def _leads_there(self, entry: ConfigEntry, value: str, worktree: str | None) -> bool:
        if entry.is_include:
            return self.share.is_agents(self.git.path(value, entry.origin))
        if entry.key in DIRECTORIES:
            return value != "" and self._is_reached(value, worktree)
        if entry.key in TRUSTED:
            return value != "" and self._is_reached(value, worktree)
        external = external_command(entry.key, value)
        if external is not None:
            # git submodule init and sync copy the address from .gitmodules, which the agent writes.
            is_copied = SUBMODULE_URL.fullmatch(entry.key) is not None
            return is_copied or self._runs(external, worktree)
        if not PROGRAMS.fullmatch(entry.key) or _BOOLEAN.fullmatch(value):
            return False
        if COMMANDS_AFTER_MARK.fullmatch(entry.key) and not value.startswith("!"):
            return self._is_configured(value, worktree)
        command = value.removeprefix("!")
        # A user who types an alias for make knows what make does.
        is_typed = entry.key.startswith("alias.")
        return self._runs(command, worktree) or (
            not is_typed and (tool_of(command) is not None or self._is_given(command, worktree))
        )

    def _is_configured(self, words: str, worktree: str | None) -> bool:
        """Return whether an alias passes git such a value (-c KEY=VALUE), or such a program."""
        started = _STARTED_BY_GIT.findall(words)
        return (
            any(self._runs(program, worktree) for program in started)
            or self.configured(words, worktree) is not None
        )

    def configured(self, command: str, worktree: str | None) -> str | None:
        """Return the key of a setting that leads to the agent's files, in ``git -c KEY=VALUE``.

        Returns None if the command passes git no such setting.
        """
        for found in _PASSED.finditer(command):
            key, value, *_ = [part for part in found.groups() if part] + [""]
            key = key.lower()
            if self._leads_there(ConfigEntry("", key, None), value, worktree):
                return key
        return None

    def is_unfollowed(self, entry: ConfigEntry) -> bool:
        """Return whether an entry makes a shell run a file, and it is not known which."""
        value = entry.value or ""
        if not is_program(entry) or entry.key in DIRECTORIES:
            return False
        return any(run.path is None for run in Reader().read(value.removeprefix("!")))

    def _runs(self, command: str, worktree: str | None) -> bool:
        """Return whether a shell command runs a file by a relative path, or one in the share.

        Each word counts that could be a program or a script: a false finding is better than none.
        """
        if _FROM_TOP.search(command):
            return True
        if imports_from_directory(command) and self._is_reached(".", worktree):
            return True
        if any(self.is_searched(path, worktree) for path in _SEARCHED.findall(command)):
            return True
        if self.configured(command, worktree) is not None or any(
            run.path is not None and self._is_reached(run.path, worktree)
            for run in Reader().read(command)
        ):
            return True
        for part in SEPARATOR.split(command):
            words = [re.sub(r"^\w+=", "", word) for word in part.split()]
            if any(self._is_named(word, worktree) for word in words):
                return True
            file = file_run_by(part)
            if not file.startswith(("/", "~", "$")) and not self.share.is_kept(file.split("/")):
                return True
        return False

    def _is_given(self, command: str, worktree: str | None) -> bool:
        """Return whether an argument of a command is a file of the work tree.

        It may be a configuration that names programs, as with ``ssh -F FILE``.
        """
        if worktree is None:
            return False
        arguments = [word for part in SEPARATOR.split(command) for word in part.split()[1:]]
        arguments += [word[2:] for word in arguments if word.startswith("-")]
        arguments += [word.rpartition("=")[2] for word in arguments]
        paths = [os.path.join(worktree, word) for word in arguments if word]
        return any(os.path.isfile(path) and self.share.is_agents(path) for path in paths)

    def is_searched(self, directories: str, worktree: str | None = None) -> bool:
        """Return whether the agent can write one of the directories of a PATH."""
        return any(
            not path.startswith("$") and self._is_reached(path or ".", worktree)
            for path in directories.split(":")
        )

    def _is_named(self, word: str, worktree: str | None) -> bool:
        """Return whether a word of a command is a path that the agent can write."""
        if word.startswith(("./", "../")):
            return not self.share.is_kept(word.split("/"))
        if word.startswith(("/", "~")):
            return self.share.is_agents(self.git.path(word, "/"))
        if "/" not in word or worktree is None:
            return False
        path = os.path.join(worktree, word)
        return os.path.isfile(path) and self.share.is_agents(path)

    def _is_reached(self, directory: str, worktree: str | None) -> bool:
        """Return whether the agent can write a directory, given absolute or by the work tree."""
        if directory.startswith(("/", "~")):
            return self.share.is_agents(self.git.path(directory, "/"))
        if worktree is None:
            return not self.share.is_kept(directory.split("/"))
        return self.share.is_agents(os.path.join(worktree, directory))
