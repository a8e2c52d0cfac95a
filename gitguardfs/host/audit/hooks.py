"""Checks whether the hooks of a repository run files of the work tree.

A hook in ``.git`` is the user's own. But it may be a symlink into the work tree, or a script that
runs a file there, or a tool that files there configure.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from stat import S_IFDIR, S_IFLNK, S_ISREG

from gitguardfs.base.findings import Severity
from gitguardfs.base.walk import Unread, list_directory, opened, read_file
from gitguardfs.host.audit import fixes, rows, work_tree
from gitguardfs.host.audit.audit import Audit
from gitguardfs.host.audit.runs import Runs

NAMES = frozenset(
    {"applypatch-msg", "pre-applypatch", "post-applypatch", "pre-commit", "pre-merge-commit",
     "prepare-commit-msg", "commit-msg", "post-commit", "pre-rebase", "post-checkout",
     "post-merge", "pre-push", "pre-receive", "update", "proc-receive", "post-receive",
     "post-update", "reference-transaction", "push-to-checkout", "pre-auto-gc", "post-rewrite",
     "sendemail-validate", "fsmonitor-watchman", "p4-changelist", "p4-prepare-changelist",
     "p4-post-changelist", "p4-pre-submit", "post-index-change"}
)  # fmt: skip
"""All hooks of githooks(5)."""
_OF_SHELL = re.compile(r"(?!#!)|#! */(\S*/)?(env +)?(sh|bash|dash|zsh|ksh)( +-\w+)?\s*\n")
"""The start of a script that a shell reads."""
_SAID = re.compile(r"(?m)(^|\s)#.*|\b(echo|printf|[ef]?grep|curl|wget)\s[^;&|\n]*")
"""Comments, and commands that run none of their words."""
_CONFIG = re.compile(r"\s--config[= ]([^\s'\")/][^\s'\")]*)")
"""How a hook of pre-commit names the file that it obeys."""


def check_links(audit: Audit, directory: int, path: str, names: Iterable[str]) -> None:
    """Add a finding for each file of ``names`` in a directory that has more than one hard link.

    The guard protects names: a file that the user has moved into ``.git`` keeps the links that the
    agent had made to it before. ``path`` is the directory's own. A file outside of the share counts
    only if it is the user's: the agent has the user's rights there, and no more.
    """
    for name in names:
        try:
            st = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            continue
        if not S_ISREG(st.st_mode) or st.st_nlink == 1:
            continue
        if st.st_uid == audit.uid or audit.share.holds(path):
            file = os.path.join(path, name)
            detail = f"{file} has {st.st_nlink} hard links: the agent may write it by another name"
            audit.report(rows.LINKED, detail, _copying(file), Severity.MEDIUM)


def _copying(path: str) -> str:
    copied = f"{path}.copy"
    copy = fixes.command("cp", "-p", "--", path, copied)
    return f"{copy} && {fixes.command('mv', '-f', '--', copied, path)}"


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


def check(audit: Audit, git_dir: int, path: str, worktree: str | None) -> None:
    """Check the hooks of a git directory.

    Without a work tree (module ``bare`` judges the hooks then) checks only their hard links.
    """
    hooks = os.path.join(path, "hooks")
    file_type = list_directory(git_dir).get("hooks")
    if file_type == S_IFLNK:
        target = audit.share.resolved(hooks)
        if places := audit.share.agents_places(hooks):
            fix = fixes.either(fixes.remove(hooks), fixes.protect(*places))
            audit.report(rows.HOOK, f"{hooks} leads to {target}", fix)
        elif os.path.isdir(target):
            check_directory(audit, target, worktree)
    elif file_type == S_IFDIR:
        with opened("hooks", git_dir) as fd:
            _check(audit, fd, hooks, worktree)


def check_directory(audit: Audit, path: str, worktree: str | None) -> None:
    """Do the same as ``check`` for a hooks directory, by a path without symlinks. OSError."""
    with opened(path) as fd:
        _check(audit, fd, path, worktree)


def _check(audit: Audit, hooks: int, path: str, worktree: str | None) -> None:
    check_links(audit, hooks, path, sorted(NAMES))  # by another name it can be made executable
    if worktree is None:
        return
    for name, file_type in active(hooks).items():
        hook = os.path.join(path, name)
        try:
            if file_type == S_IFLNK:
                target = audit.share.resolved(hook)
                if places := audit.share.agents_places(hook):
                    fix = fixes.either(fixes.remove(hook), fixes.protect(*places))
                    audit.report(rows.HOOK, f"{hook} leads to {target}", fix)
                    continue
                with opened(os.path.dirname(target)) as directory:
                    base = os.path.basename(target)
                    check_links(audit, directory, os.path.dirname(target), [base])
                    text = read_file(directory, base)
            else:
                text = read_file(hooks, name)
        except FileNotFoundError:
            continue  # a symlink that leads nowhere
        except (OSError, Unread) as error:
            audit.unread(hook, error)
            continue
        _judge(audit, hook, text.decode(errors="surrogateescape"), worktree)


def _judge(audit: Audit, hook: str, text: str, worktree: str) -> None:
    """Add a finding for a hook that runs what the agent can write, or perhaps does."""
    stop = fixes.command("chmod", "a-x", "--", hook)
    done = _SAID.sub("", text)
    managers = {n: one for n, one in work_tree.MANAGERS.items() if re.search(one.mark, done)}
    for name, manager in managers.items():
        named = _CONFIG.findall(done) if ".pre-commit-config.yaml" in manager.files else []
        files = named or manager.files
        if agents := [file for file in files if not audit.share.is_kept(file.split("/"))]:
            fix = fixes.either(stop, manager.rule or fixes.protect(*agents))
            detail = f"{hook} runs {name}, which obeys {agents[0]}"
            audit.report(rows.HOOK, detail, fix)
            return
    runs = Runs()
    if "\0" not in text and _OF_SHELL.match(text):
        runs.read(text)
    else:
        runs.unfollowed.append("it is no script of a shell")
    runs.files += re.findall(r"\A#!\s*(\S+)", text)
    if managers:  # what they obey is protected
        runs.others += runs.tools
        runs.tools.clear()
    if (harm := audit.judge.harm(runs, worktree)) is not None:
        fix = fixes.either(stop, fixes.protect(*harm.places))
        audit.report(rows.HOOK, f"{hook} {harm.what}", fix, harm.severity)
