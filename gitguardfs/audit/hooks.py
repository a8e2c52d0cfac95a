"""Checks whether the hooks of a repository run files of the work tree.

A hook in ``.git`` is the user's own. But it may be a symlink into the work tree, or a script that
runs a file there, or a tool that files there configure.
"""

from __future__ import annotations

import os
import re
from collections.abc import Set
from dataclasses import dataclass, field
from stat import S_IFDIR, S_IFLNK, S_ISREG

from gitguardfs.audit import fixes, hard_links, rows, work_tree
from gitguardfs.audit.audit import Audit
from gitguardfs.audit.config_check import UNFOLLOWED
from gitguardfs.audit.programs import imports_from_directory, tool_of
from gitguardfs.audit.shell import RELATIVE, Reader
from gitguardfs.audit.shell_words import INTERPRETERS, SEPARATOR, file_run_by
from gitguardfs.audit.walk import (
    DIRECTORY_FLAGS,
    Unread,
    list_directory,
    open_directory,
    read_file,
    resolved,
)
from gitguardfs.findings import Severity

NAMES = frozenset(
    {"applypatch-msg", "pre-applypatch", "post-applypatch", "pre-commit", "pre-merge-commit",
     "prepare-commit-msg", "commit-msg", "post-commit", "pre-rebase", "post-checkout",
     "post-merge", "pre-push", "pre-receive", "update", "proc-receive", "post-receive",
     "post-update", "reference-transaction", "push-to-checkout", "pre-auto-gc", "post-rewrite",
     "sendemail-validate", "fsmonitor-watchman", "p4-changelist", "p4-prepare-changelist",
     "p4-post-changelist", "p4-pre-submit", "post-index-change"}
)  # fmt: skip
"""All hooks of githooks(5)."""
MANAGERS = {
    "pre-commit": re.compile(r"hook-impl --config|pre[-_]commit(\s+run|\.com)"),
    "lefthook": re.compile(r"\blefthook\b"),
    "husky": re.compile(r"\bhusky\b"),
}
"""Programs that put hooks into repositories, and how to recognise their hooks."""
_FROM_TOP = re.compile(
    r"(?:--show-toplevel\)?|\$\(pwd\)|\$\{?(?:PWD|GIT_WORK_TREE)\}?)[\"'`)}]*/+([^\s\"'`;|&)]+)"
)
_FROM_HOOK = re.compile(r"dirname[^)`]*[)`][\"']?/+([^\s\"'`;|&)]+)")
_PRINTS = re.compile(r"\s*(echo|printf) ([^;|&`$]|\$(?!\())*$")
"""A line that prints, and runs no second command."""
_PRINTED = re.compile(
    r"""\b(?:echo|printf)(?:\s+(?:'[^']*'|"(?:[^"$`]|\$(?!\())*"|[^\s;|&`'"$)}]+))*"""
)
"""A command that prints, and what it prints."""
_TEXT = re.compile(r"\s*(?:(?:cat\b[^|]*|:)\s*)?<<-?\s*[\\\"']?(\w+)[\"']?\s*(?:>.*)?$")
"""The line before a text that is printed, or ignored; the word that ends it."""
_CONTINUES = re.compile(r"\\$|(\||&&)\s*$")
"""The end of a line whose command goes on in the next one."""
_OF_SHELL = re.compile(r"(?!#!)|#!.*\b(sh|bash|dash|zsh|ksh)\b")
"""The start of a script that a shell reads."""
_CASE = re.compile(r"^\s*[^\s()]+\)")
"""A pattern of a shell's ``case``."""
_JOINED = 1 << 12
"""The most characters of lines that are read as one command."""
_LIMIT = 1 << 18
"""Bytes of a hook that are read: scripts are far shorter."""


def active(hooks: int) -> dict[str, int]:
    """Return the hooks in a directory that git runs, and their types. Raises OSError."""
    return {
        name: file_type
        for name, file_type in sorted(list_directory(hooks).items())
        if name in NAMES and (file_type == S_IFLNK or _is_executable(hooks, name))
    }


def _is_executable(directory: int, name: str) -> bool:
    st = os.stat(name, dir_fd=directory, follow_symlinks=False)
    return S_ISREG(st.st_mode) and st.st_mode & 0o111 != 0


def check(audit: Audit, git_dir: int, path: str, worktree: str | None) -> set[str]:
    """Check the hooks of a git directory; return the ``MANAGERS`` that have put some there.

    Without a work tree (module ``bare`` judges the hooks then) checks only their hard links.
    """
    managers: set[str] = set()
    hooks = os.path.join(path, "hooks")
    file_type = list_directory(git_dir).get("hooks")
    if file_type == S_IFLNK:
        target = resolved(hooks)
        if places := audit.share.agents_places(hooks):
            fix = fixes.either(fixes.remove(hooks), _protect(places))
            audit.results.append(rows.HOOK.finding(f"{hooks} leads to {target}", fix))
        elif os.path.isdir(target):
            managers = check_directory(audit, target, worktree)
    elif file_type == S_IFDIR:
        fd = os.open("hooks", DIRECTORY_FLAGS, dir_fd=git_dir)
        try:
            managers = _check(audit, fd, hooks, worktree)
        finally:
            os.close(fd)
    return managers


def check_directory(audit: Audit, path: str, worktree: str | None) -> set[str]:
    """Do the same as ``check`` for a hooks directory, by a path without symlinks. OSError."""
    fd = open_directory(path)
    try:
        return _check(audit, fd, path, worktree)
    finally:
        os.close(fd)


def _check(audit: Audit, hooks: int, path: str, worktree: str | None) -> set[str]:
    managers: set[str] = set()
    hard_links.check(audit, hooks, path, sorted(NAMES))  # by another name it can be made executable
    if worktree is None:
        return managers
    for name, file_type in active(hooks).items():
        hook = os.path.join(path, name)
        try:
            directory, base = hooks, name
            opened = -1
            if file_type == S_IFLNK:
                target = resolved(hook)
                if places := audit.share.agents_places(hook):
                    fix = fixes.either(fixes.remove(hook), _protect(places))
                    audit.results.append(rows.HOOK.finding(f"{hook} leads to {target}", fix))
                    continue
                opened = directory = open_directory(os.path.dirname(target))
                base = os.path.basename(target)
            try:
                if file_type == S_IFLNK:
                    hard_links.check(audit, directory, os.path.dirname(target), [base])
                text = read_file(directory, base, _LIMIT, whole=False)
            finally:
                if opened >= 0:
                    os.close(opened)
        except FileNotFoundError:
            continue  # a symlink that leads nowhere
        except (OSError, Unread) as error:
            audit.unread(hook, error)
            continue
        if not text.startswith(b"#!") and b"\0" in text:
            continue  # a compiled program of the user's; git runs a text without #! by sh
        script = text.decode(errors="surrogateescape").replace("\0", " ")
        found = {manager for manager, mark in MANAGERS.items() if mark.search(script)}
        managers |= found
        _judge(audit, hook, script, worktree, found)
    return managers


def _judge(audit: Audit, hook: str, text: str, worktree: str, managers: set[str]) -> None:
    """Add a finding for the first file that a script runs and the agent can write, or tool."""
    stop = fixes.chmod("a-x", hook)
    found = runs(audit, hook, text, worktree, managers)
    for path in found.files:
        fix = fixes.either(stop, _protect(audit.share.agents_places(path)))
        audit.results.append(rows.HOOK.finding(f"{hook} runs {path}", fix))
        return
    for path in found.directories:
        is_top = path in (worktree, audit.share.path)
        fix = stop if is_top else fixes.either(stop, _protect(audit.share.agents_places(path)))
        audit.results.append(rows.HOOK.finding(f"{hook} runs files of {path}", fix))
        return
    if found.key is not None:
        detail = f"{hook} sets {found.key} for git to what the agent can write"
        audit.results.append(rows.HOOK.finding(detail, stop))
        return
    for manager in sorted(managers):
        files = [name for name, reader in work_tree.TOOLS.items() if reader == manager]
        if not any(
            audit.share.is_kept([name]) or os.path.lexists(os.path.join(worktree, name))
            for name in files
        ):
            detail = f"{hook} runs {manager}, which obeys {files[0]}: the agent can make that file"
            audit.results.append(rows.HOOK.finding(detail, stop))
            return
    if any(map(imports_from_directory, _lines(text))) and audit.share.is_agents(worktree):
        detail = (
            f"{hook} runs python, which looks for modules in the work tree first (-m, -c);"
            " it does not with -I, or with -P since Python 3.11"
        )
        audit.results.append(rows.HOOK.finding(detail, stop, Severity.MEDIUM))
        return
    tool = next(filter(None, map(tool_of, _lines(text))), None)
    if tool is not None and not managers:
        detail = f"{hook} runs {tool}, which obeys files of the work tree"
        audit.results.append(rows.HOOK.finding(detail, stop, Severity.MEDIUM))
    elif found.unfollowed:
        detail = f"{hook}, line {found.unfollowed}, {UNFOLLOWED}"
        audit.results.append(rows.HOOK.finding(detail, stop, Severity.LOW))


def _protect(places: list[str]) -> str:
    return fixes.rule("--protect", *map(os.path.basename, places))


def _lines(text: str) -> list[str]:
    first, _, rest = text.partition("\n")
    return [first.removeprefix("#!"), *(re.sub(r"(^|\s)#.*", "", x) for x in rest.splitlines())]


@dataclass
class Found:
    """What a script runs."""

    files: list[str] = field(default_factory=list)
    """Files that the agent can write, by absolute paths."""
    directories: list[str] = field(default_factory=list)
    """Directories of which it runs files."""
    key: str | None = None
    """A setting that it passes to git, and that leads to what the agent can write."""
    unfollowed: int = 0
    """The number of the first line that runs a file of unknown name; 0 if there is none."""


def runs(
    audit: Audit, hook: str, text: str, worktree: str, managers: Set[str] = frozenset()
) -> Found:
    """Return what a script runs and the agent can write."""
    found = Found()
    named: list[str] = []
    directories: list[str] = []
    ends: str | None = None
    reader = Reader(os.path.dirname(hook)) if _OF_SHELL.match(text) else None
    begun = ""
    lines = _lines(text)
    for number, one in enumerate(lines, 1):
        if ends is not None and one.strip() == ends:
            ends = None
        line, begun = begun + one, ""
        is_short = number < len(lines) and len(line) < _JOINED
        if ends is None and is_short and _CONTINUES.search(line):
            begun = line.removesuffix("\\") + " "
            continue
        if _PRINTS.match(line):
            continue  # prints a name, and runs nothing
        here = [os.path.join(worktree, rest) for rest in _FROM_TOP.findall(line)]
        here += [os.path.join(os.path.dirname(hook), rest) for rest in _FROM_HOOK.findall(line)]
        for part in SEPARATOR.split(line):
            here += _named(part.split(), worktree)
        if ends is None:  # a file counts whether it exists or not: the agent can make it
            command = _CASE.sub("", line)
            files = map(file_run_by, SEPARATOR.split(_PRINTED.sub("", command)))
            here += [os.path.join(worktree, file) for file in files if RELATIVE.fullmatch(file)]
            found.key = found.key or audit.judge.configured(command, worktree)
            for run in reader.read(command) if reader is not None else []:
                if run.path is None:
                    found.unfollowed = found.unfollowed or number
                    continue
                path = audit.git.path(run.path, os.path.join(worktree, "x"))
                if managers and f"{path}/".startswith(f"{worktree}/node_modules/"):
                    continue  # what lefthook's hook runs if lefthook itself is not installed
                (directories if run.is_directory else named).append(path)
                # After cd the same word names another file than it would at the top.
                other = os.path.normpath(os.path.join(worktree, run.word))
                here = [one for one in here if path == other or os.path.normpath(one) != other]
        named += here
        if text_begins := _TEXT.match(line):
            ends = text_begins[1]
    found.directories = [path for path in directories if audit.share.is_agents(path)]
    found.files = [
        os.path.normpath(path)
        for path in named
        if audit.share.is_agents(path) and not os.path.isdir(path)
    ]
    return found


def _named(words: list[str], worktree: str) -> list[str]:
    found = []
    after_interpreter = False
    for word in (re.sub(r"^[\w-]+=", "", word) for word in words):
        inside = os.path.join(worktree, word)
        if word.startswith("/"):
            found.append(word)
        elif word.startswith(("./", "../")):
            found.append(inside)
        elif word.startswith("$"):
            rest = word.partition("/")[2]
            if rest and os.path.isfile(os.path.join(worktree, rest)):
                found.append(os.path.join(worktree, rest))
        elif ("/" in word or after_interpreter) and os.path.isfile(inside):
            found.append(inside)
        after_interpreter = word in (".", "source") or (
            INTERPRETERS.fullmatch(word) is not None or (after_interpreter and word[:1] == "-")
        )
    return found
