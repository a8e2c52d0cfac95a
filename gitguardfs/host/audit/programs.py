"""Recognises values of git's configuration that make git read or run what the agent can write."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from gitguardfs.base.findings import Severity
from gitguardfs.host.audit.git_config import ConfigEntry, Git
from gitguardfs.host.audit.runs import Runs
from gitguardfs.host.audit.share import Share
from gitguardfs.host.audit.shell import TOP

HIGH = Severity.HIGH

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
PYTHON = (
    "runs python, which looks for modules in the work tree first (-m, -c);"
    " it does not with -I, or with -P since Python 3.11"
)
UNFOLLOWED = "runs commands that audit cannot follow: read it"
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
_BOOLEAN = re.compile(r"(?i)(true|false|yes|no|on|off|\d+)?")


def command_of(entry: ConfigEntry) -> str | None:
    """Return the command of a shell that an entry makes git run; None if it is none."""
    value = entry.value or ""
    command = external_command(entry.key, value)
    if command is not None or not PROGRAMS.fullmatch(entry.key) or _BOOLEAN.fullmatch(value):
        return command
    is_command = value.startswith("!") or not COMMANDS_AFTER_MARK.fullmatch(entry.key)
    return value.removeprefix("!") if is_command else None


def external_command(key: str, value: str) -> str | None:
    """Return the command of an address ``ext::COMMAND`` in an entry; None if it has none."""
    rewrite = _REWRITES.fullmatch(key)
    address = rewrite[1] if rewrite else value if ADDRESSES.fullmatch(key) else ""
    return address.removeprefix(EXTERNAL) if address.startswith(EXTERNAL) else None


@dataclass(frozen=True)
class Harm:
    """What leads to the agent's files."""

    what: str
    """The end of a sentence that begins with the name of a hook or a setting."""
    places: list[str] = field(default_factory=list)
    """The files and symlinks that would have to be protected."""
    severity: Severity = HIGH


@dataclass(frozen=True)
class Judge:
    """Finds what leads git to files that the agent can write; a file may yet be to be made."""

    git: Git
    share: Share

    def severity(self, entry: ConfigEntry, worktree: str | None) -> Severity | None:
        """Return how bad an entry is; None if it does not lead to the agent's files.

        ``worktree`` is the repository's work tree; None for a bare repository, and for entries
        that hold in every repository. MEDIUM for a command that is not wholly understood.
        """
        value = entry.value or ""
        if entry.is_include:
            return HIGH if self.share.is_agents(self.git.path(value, entry.origin)) else None
        if entry.key in DIRECTORIES or entry.key in TRUSTED:
            if value == "" or not self.places(value, worktree):
                return None
            return Severity.MEDIUM if entry.key in TRUSTED else HIGH
        command = command_of(entry)
        if command is not None and SUBMODULE_URL.fullmatch(entry.key):
            return Severity.MEDIUM  # git submodule init and sync copy it from .gitmodules
        is_typed = entry.key.startswith("alias.")
        if is_typed and command is None:
            command = f"git {value}"
        if command is None:
            return None
        runs = Runs().read(command)
        if is_typed:  # a user who types an alias for make knows what make does
            runs.tools.clear()
        runs.others.clear()
        harm = self.harm(runs, worktree)
        return harm.severity if harm is not None else None

    def harm(self, runs: Runs, worktree: str | None) -> Harm | None:
        """Return the first thing in a command or script that leads to the agent's files.

        If there is none, but something that is not understood, returns that: MEDIUM.
        """
        for what, paths in (("runs", runs.files), ("runs files of", runs.directories)):
            for path in paths:
                if places := self.places(path, worktree):
                    return Harm(f"{what} {self.git.path(path, f'{worktree or TOP}/x')}", places)
        for key, value in runs.settings:
            entry = ConfigEntry(f"{worktree}/.git/config", key, value)
            severity = self.severity(entry, worktree)
            if severity is HIGH:
                return Harm(f"sets {key} for git to what the agent can write")
            if severity is not None:
                runs.unfollowed.append(key)
        if runs.imports and self.places(TOP, worktree):
            return Harm(PYTHON)
        if runs.tools:
            return Harm(f"runs {runs.tools[0]}, which obeys files of the work tree")
        given = [path for path in runs.arguments if self.places(path, worktree)]
        for what in [*runs.unfollowed, *runs.others, *given]:
            return Harm(f"{UNFOLLOWED} ({what})", severity=Severity.MEDIUM)
        return None

    def places(self, path: str, worktree: str | None) -> list[str]:
        """Return what the agent can write on a path, given absolute or by the work tree."""
        if path.startswith(("/", "~")):
            return self.share.agents_places(self.git.path(path, "/"))
        if worktree is None:
            return [] if self.share.is_kept(path.split("/")) else [path]
        return self.share.agents_places(os.path.normpath(os.path.join(worktree, path)))
