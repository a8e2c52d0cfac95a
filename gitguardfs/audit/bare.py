"""Checks bare repositories in the share, and directories that are prepared to become one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from stat import S_IFDIR, S_IFLNK

from gitguardfs.audit import fixes, hooks, rows
from gitguardfs.audit.audit import Audit
from gitguardfs.audit.programs import is_program
from gitguardfs.audit.walk import Directory, TooLong, Unread, read_file
from gitguardfs.findings import Severity
from gitguardfs.guard import repository

TRUST_FIX = "git config --global safe.bareRepository explicit"
_GITS = frozenset(map(os.fsdecode, repository.READ_AT_TOP | {b"commondir", b"config.worktree"}))


def is_repository(entries: Mapping[str, int]) -> bool:
    """Return whether a guard treats a directory with these entries like a ``.git``."""
    return repository.is_repository(lambda name: entries.get(os.fsdecode(name)))


def check(audit: Audit, directory: Directory) -> None:
    """Add findings for a bare repository, and for each program that git runs in it."""
    path = directory.path
    if audit.share.is_kept(audit.share.parts(path)):
        return
    embedded = any(path.startswith(f"{top}/") for top in audit.work_trees)
    where = " in a work tree" if embedded else ""
    for what, fix in _armed(audit, directory):
        severity = Severity.HIGH if embedded else Severity.MEDIUM
        audit.add(rows.BARE.finding(f"{path}{where}: git runs {what}", fix, severity))
    if audit.trusts_bare:
        fix = fixes.either(TRUST_FIX, fixes.rule("--protect", os.path.basename(path)))
        audit.add(rows.BARE.finding(f"{path}{where}", fix, Severity.MEDIUM))
    else:
        audit.add(rows.BARE.note(f"{path}{where}; git uses it only if told to (--git-dir)", "", ""))


def check_prepared(audit: Audit, directory: Directory, is_git: bool = False) -> None:
    """Add findings for a directory that is not a repository yet but has hooks or a config.

    ``git init`` would keep both.
    """
    entries = directory.entries
    if "config" not in entries and "hooks" not in entries and "config.worktree" not in entries:
        return
    is_head = "HEAD" in entries and entries["HEAD"] != S_IFDIR
    nearly = is_head or ("refs" in entries and "objects" in entries)
    is_called_git = is_git or directory.path.endswith(".git")
    if not nearly and not entries.keys() <= _GITS and not is_called_git:
        return
    waiting = _armed(audit, directory)
    named = is_called_git or len(entries) > 1
    for what, fix in waiting:
        severity = Severity.HIGH if nearly else Severity.MEDIUM if named else Severity.LOW
        detail = f"{directory.path}: git would run {what}"
        audit.add(rows.PREPARED.finding(detail, fix, severity))
    if nearly and not waiting:
        fix = fixes.remove_tree(directory.path)
        detail = f"{directory.path} is almost a repository"
        audit.add(rows.PREPARED.finding(detail, fix, Severity.MEDIUM))


def _armed(audit: Audit, directory: Directory) -> list[tuple[str, str]]:
    """Return what git would run if the directory were a repository: pairs of text and fix.

    Config files that git could read but this cannot (a symlink, too long) count as well.
    """
    found = []
    for name in ("config", "config.worktree"):
        path = os.path.join(directory.path, name)
        if directory.entries.get(name) == S_IFLNK:
            found.append((f"{path}, a symlink", fixes.remove(path)))
            continue
        try:
            content = read_file(directory.fd, name)
            entries = audit.git.entries_of(content, path)
        except TooLong as error:
            found.append((f"what {path} says, which was not read: {error}", fixes.remove(path)))
            continue
        except (OSError, Unread):
            continue  # git reads no such file; for a repository, config_check adds a finding
        found += [
            (f"{entry.key} = {entry.value} (in {path})", fixes.unset(entry))
            for entry in entries
            if is_program(entry) or entry.is_include
        ]
    kind, path = directory.entries.get("hooks"), os.path.join(directory.path, "hooks")
    if kind == S_IFLNK:
        found.append((f"{path}, a symlink", fixes.remove(path)))
    elif kind == S_IFDIR:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open("hooks", flags, dir_fd=directory.fd)
        except OSError:
            return found  # the walk adds a finding
        try:
            for name in hooks.active(fd):
                hook = os.path.join(path, name)
                found.append((hook, fixes.remove(hook)))
        finally:
            os.close(fd)
    return found
