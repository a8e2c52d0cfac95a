"""Checks bare repositories in the share, and directories that are prepared to become one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from stat import S_IFDIR, S_IFLNK

from gitguardfs.base.findings import Severity
from gitguardfs.base.walk import FileTooLong, ScannedDirectory, Unread, opened, read_file
from gitguardfs.host.audit import fixes, hooks, rows, trust
from gitguardfs.host.audit.audit import Audit
from gitguardfs.host.audit.programs import command_of
from gitguardfs.names import repository

INIT = "git init --bare"
"""The command that makes a repository of a directory and keeps the hooks and config there."""
_GITS = frozenset(map(os.fsdecode, repository.PARTS)) | {
    "HEAD.lock", "config.lock", "description", "info", "branches", "packed-refs", "reftable",
    "shallow", "logs", "index",
}  # fmt: skip
"""Names that git puts into the top directory of a repository, or reads there."""


def is_repository(entries: Mapping[str, int]) -> bool:
    """Return whether a guard treats a directory with these entries like a ``.git``."""
    return repository.is_repository(lambda name: entries.get(os.fsdecode(name)))


def check(audit: Audit, directory: ScannedDirectory) -> None:
    """Add findings for a bare repository, and for each program that git runs in it."""
    path = directory.path
    if audit.share.is_kept(audit.share.parts(path)):
        return
    embedded = any(path.startswith(f"{top}/") for top in audit.work_trees)
    where = " in a work tree" if embedded else ""
    for armed in _armed(audit, directory):
        severity = Severity.HIGH if embedded else Severity.MEDIUM
        detail = f"{path}{where}: git runs {armed.what}"
        audit.report(rows.BARE, detail, armed.fix, severity)
    if audit.trusts_bare:
        fix = fixes.either(trust.FIX, fixes.rule("--protect", os.path.basename(path)))
        audit.report(rows.BARE, f"{path}{where}", fix, Severity.MEDIUM)
    else:
        detail = f"{path}{where}; git uses it only if told to (--git-dir)"
        audit.results.append(rows.BARE.note(detail))


def check_prepared(audit: Audit, directory: ScannedDirectory, is_git: bool = False) -> None:
    """Add findings for a directory that is not a repository yet but has hooks or a config.

    ``git init`` would keep both, and so would a checkout that brings the other parts. They are of
    low severity in a directory that nothing marks as a future repository: many projects have a
    directory ``hooks`` or a file ``config``.
    """
    entries = directory.entries
    if "config" not in entries and "hooks" not in entries and "config.worktree" not in entries:
        return
    is_head = "HEAD" in entries and entries["HEAD"] != S_IFDIR
    nearly = is_head or ("refs" in entries and "objects" in entries)
    has_part = "refs" in entries or "objects" in entries
    is_called_git = is_git or directory.path.endswith(".git")
    is_marked = nearly or has_part or is_called_git or entries.keys() <= _GITS
    is_named = is_called_git or (is_marked and len(entries) > 1)
    told = set()
    for armed in _armed(audit, directory):
        severity = Severity.HIGH if nearly else Severity.MEDIUM if is_named else Severity.LOW
        detail = f"{directory.path}: git would run {armed.what}"
        if not is_marked:  # one finding for each file is enough
            if armed.path in told or audit.share.is_kept(audit.share.parts(armed.path)):
                continue
            detail = f"{directory.path}: after {INIT} here git would run {armed.what}"
        told.add(armed.path)
        audit.report(rows.PREPARED, detail, armed.fix, severity)


@dataclass(frozen=True)
class Armed:
    """One thing that git would run, or a place to run in, if a directory were a repository."""

    path: str
    """The hook, the configuration file, or the symlink in place of one."""
    what: str
    fix: str


def _armed(audit: Audit, directory: ScannedDirectory) -> list[Armed]:
    """Return what git would run if the directory were a repository.

    Config files that git could read but this cannot (a symlink, too long) count as well.
    """
    found = []
    for name in ("config", "config.worktree"):
        path = os.path.join(directory.path, name)
        if directory.entries.get(name) == S_IFLNK:
            found.append(Armed(path, f"{path}, a symlink", fixes.remove(path)))
            continue
        try:
            content = read_file(directory.fd, name)
            entries = audit.git.entries_of(content, path)
        except FileTooLong as error:
            what = f"what {path} says, which was not read: {error}"
            found.append(Armed(path, what, fixes.remove(path)))
            continue
        except (OSError, Unread):
            continue  # git reads no such file; for a repository, config_check adds a finding
        found += [
            Armed(path, f"{entry.key} = {entry.value} (in {path})", fixes.unset(entry))
            for entry in entries
            if command_of(entry) is not None
            or entry.is_include
            or (entry.key == "core.hookspath" and entry.value)
        ]
        for entry in entries:
            tree = os.path.normpath(os.path.join(directory.path, entry.value or ""))
            if entry.key == "core.worktree" and not audit.share.holds(tree):
                what = f"in {tree} ({entry.key}, in {path})"
                found.append(Armed(path, what, fixes.unset(entry)))
    file_type, path = directory.entries.get("hooks"), os.path.join(directory.path, "hooks")
    if file_type == S_IFLNK:
        found.append(Armed(path, f"{path}, a symlink", fixes.remove(path)))
    elif file_type == S_IFDIR:
        try:
            with opened("hooks", directory.fd) as fd:
                places = [os.path.join(path, name) for name in hooks.active(fd)]
        except OSError:
            return found  # the walk adds a finding
        found += [Armed(hook, hook, fixes.remove(hook)) for hook in places]
    return found
