"""Checks one repository: where its directories are, and what in them leads to the agent.

Everything in it is opened relative to a descriptor. A path that ``.git`` names is resolved first;
the resolved path is then opened without following a symlink.
"""

from __future__ import annotations

import os
from stat import S_IFDIR, S_IFLNK, S_IFREG

from gitguardfs.base.findings import Severity
from gitguardfs.base.walk import (
    DIRECTORY_FLAGS,
    ScannedDirectory,
    TreeScan,
    Unread,
    list_directory,
    open_directory,
    opened,
    read_file,
    read_path,
)
from gitguardfs.host.audit import bare, config_check, fixes, hooks, rows
from gitguardfs.host.audit.audit import Audit
from gitguardfs.host.audit.git_config import ConfigEntry

ALTERNATES = "info/alternates"
MAX_ALTERNATES = 100
"""How many object directories are followed for one repository; git itself goes five deep."""
_GITDIR = b"gitdir: "
_NEWLINES = b"\r\n"
"""The only characters that git strips from the end of a path in a file; blanks stay."""


def examine(audit: Audit, directory: ScannedDirectory, name: str) -> None:
    """Check the ``.git`` of a directory, which is spelled ``name`` there."""
    place = os.path.join(directory.path, name)
    file_type = directory.entries[name]
    try:
        if file_type == S_IFDIR:
            fd = os.open(name, DIRECTORY_FLAGS, dir_fd=directory.fd)
            path = place
        else:
            target = _target(directory, name, file_type)
            if target is None or not _may_be_there(audit, place, target, file_type == S_IFLNK):
                return
            path = audit.share.resolved(os.path.join(directory.path, target))
            try:
                fd = open_directory(path)
            except (FileNotFoundError, NotADirectoryError):
                return  # it leads nowhere
        try:
            examine_opened(audit, fd, path, directory.path)
        finally:
            os.close(fd)
    except (OSError, Unread) as error:
        audit.unread(place, error)


def _target(directory: ScannedDirectory, name: str, file_type: int) -> str | None:
    """Return where a ``.git`` that is not a directory leads; None if git ignores it."""
    if file_type == S_IFLNK:
        return os.readlink(name, dir_fd=directory.fd)
    content = read_file(directory.fd, name)
    if file_type != S_IFREG or not content.startswith(_GITDIR):
        return None
    return _path_in(content.removeprefix(_GITDIR))


def _path_in(content: bytes) -> str:
    """Return the path that git takes from a file: a C string, which ends at a NUL byte."""
    return os.fsdecode(content.rstrip(_NEWLINES).partition(b"\0")[0])


def _may_be_there(audit: Audit, place: str, target: str, is_link: bool) -> bool:
    """Add findings for a git directory's place; return False if the agent can write all of it."""
    share = audit.share
    path = os.path.join(os.path.dirname(place), target)
    real = audit.share.resolved(path)
    if share.is_agents(path):
        if os.path.isdir(real):
            fix = fixes.either(_moving(real, place), fixes.remove(place))
            audit.report(rows.DIRECTORY, f"{place} leads to {real}", fix)
        else:
            detail = f"{place} leads to {real}, where the agent could make a repository"
            audit.report(rows.DIRECTORY, detail, fixes.remove(place), Severity.MEDIUM)
        return False
    if share.holds(real):
        if not share.is_kept(share.parts(real)):
            _note_unnamed(audit, place, real)
    elif not is_link and not target.startswith("/"):
        detail = f"{place} leads to {target}, and elsewhere once a directory above is moved"
        line = fixes.command("printf", r"gitdir: %s\n", real)
        fix = f"{line} > {fixes.command(place)}"
        audit.report(rows.DIRECTORY, detail, fix, Severity.MEDIUM)
    return True


def _moving(git_directory: str, place: str) -> str:
    """Return the command that replaces what leads to a git directory by that directory."""
    return f"{fixes.remove(place)} && {fixes.command('mv', '--', git_directory, place)}"


def _note_unnamed(audit: Audit, place: str, real: str) -> None:
    """Add a finding for a git directory that is in the share but in no ``.git``.

    A guard recognises it by its content alone; with --allow-bare the guard does not check that.
    """
    top = real
    while audit.share.holds(parent := os.path.dirname(top)) and audit.share.is_git(parent):
        top = parent
    fix = fixes.rule("--protect", os.path.basename(top))
    if top == real:
        fix = fixes.either(_moving(real, place), fix)
    detail = f"{place} leads to {real}, which is in no .git"
    audit.report(rows.DIRECTORY, detail, fix, Severity.MEDIUM)


def examine_opened(audit: Audit, fd: int, path: str, worktree: str | None) -> None:
    """Check a git directory; ``worktree`` is None for a bare repository. Raises OSError, Unread."""
    entries = list_directory(fd)
    if "HEAD" not in entries:
        bare.check_prepared(audit, ScannedDirectory(path, fd, entries, []), is_git=True)
        return
    if (uid := os.fstat(fd).st_uid) != audit.uid:
        detail = f"{path} belongs to uid {uid}: git works there only with safe.directory"
        audit.results.append(rows.OWNER.note(detail, title=rows.OWNER.failed))
    common, common_path = fd, path
    if "commondir" in entries:
        target = _path_in(read_file(fd, "commondir"))
        named = os.path.join(path, target)
        common_path = audit.share.resolved(named)
        if audit.share.is_agents(named):
            detail = f"{path}/commondir leads to {common_path}"
            fix = fixes.remove(os.path.join(path, "commondir"))
            audit.report(rows.DIRECTORY, detail, fix)
            return
        common = open_directory(common_path)
    try:
        _check_symlinks(audit, path, entries)
        own = _entries(audit, fd, path, entries, "config.worktree")
        if common is not fd:
            entries = list_directory(common)
            _check_symlinks(audit, common_path, entries)
        own = [*_entries(audit, common, common_path, entries, "config"), *own]
        _check_alternates(audit, common, common_path)
        moved = [one.value for one in own if one.key == "core.worktree" and one.value]
        if moved and common is fd and worktree is not None:
            worktree = os.path.normpath(os.path.join(path, moved[-1]))
        every = config_check.check(audit, own, worktree)
        if common is fd:
            _check_others(audit, fd, path, worktree)
        hooks.check(audit, common, common_path, worktree)
        if worktree is not None:
            _other_hooks(audit, every, worktree)
    finally:
        if common is not fd:
            os.close(common)


def _check_others(audit: Audit, fd: int, path: str, worktree: str | None) -> None:
    """Check the git directories inside a git directory: of linked work trees and of submodules.

    A submodule that is not checked out comes back with the hooks and configuration kept there.
    """
    for name in ("worktrees", "modules"):
        try:
            inner = os.open(name, DIRECTORY_FLAGS, dir_fd=fd)
        except (FileNotFoundError, NotADirectoryError):
            continue
        try:
            walk = TreeScan(inner, os.path.join(path, name), audit.unread)
            for found in walk.directories():
                if "HEAD" not in found.entries:
                    continue
                found.enter.clear()
                if name == "worktrees":
                    own = _entries(audit, found.fd, found.path, found.entries, "config.worktree")
                    config_check.check(audit, own, None)
                else:
                    place = os.path.relpath(found.path, walk.path)
                    examine_opened(
                        audit, found.fd, found.path, os.path.join(worktree or path, place)
                    )
        finally:
            os.close(inner)


def _check_symlinks(audit: Audit, path: str, entries: dict[str, int]) -> None:
    """Add findings for symlinks in a git directory; module ``hooks`` checks ``hooks`` itself."""
    for name, file_type in entries.items():
        link = os.path.join(path, name)
        if file_type == S_IFLNK and name != "hooks" and audit.share.is_agents(link):
            detail = f"{link} leads to {audit.share.resolved(link)}"
            audit.report(rows.DIRECTORY, detail, fixes.remove(link))


def _entries(
    audit: Audit, fd: int, path: str, entries: dict[str, int], name: str
) -> list[ConfigEntry]:
    """Return the entries of a configuration file; add a finding if it cannot be read."""
    file = os.path.join(path, name)
    try:
        if entries.get(name) == S_IFLNK:
            if audit.share.is_agents(file):
                return []  # _check_symlinks added a finding
            parent, base = os.path.split(audit.share.resolved(file))
            with opened(parent) as above:
                hooks.check_links(audit, above, parent, [base])
                content = read_file(above, base)
        else:
            hooks.check_links(audit, fd, path, [name])
            content = read_file(fd, name)
        return audit.git.entries_of(content, file)
    except FileNotFoundError:
        pass
    except (OSError, Unread) as error:
        audit.unread(file, error)
    return []


def _check_alternates(audit: Audit, common: int, path: str) -> None:
    """Add findings for alternates that the agent can write, followed through other repositories."""
    objects = os.path.join(path, "objects")
    file = os.path.join(objects, ALTERNATES)
    try:
        with opened("objects", common) as above, opened("info", above) as info:
            places = _alternates(read_file(info, "alternates"), objects)
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, Unread) as error:
        audit.unread(file, error)
        return
    repack = fixes.command("git", f"--git-dir={path}", "repack", "-a", "-d", "-q")
    fix = f"{repack} && {fixes.remove(file)}"
    for place in places:  # grows meanwhile: those may name others
        if audit.share.is_agents(place):
            detail = f"{path} takes objects from {os.path.normpath(place)}"
            audit.report(rows.ALTERNATES, detail, fix, Severity.MEDIUM)
            continue
        real = audit.share.resolved(place)
        if not audit.share.holds(real) and len(places) < MAX_ALTERNATES:
            further = os.path.join(real, ALTERNATES)
            try:
                more = _alternates(
                    read_path(audit.share.resolved(further)), audit.share.resolved(place)
                )
            except (FileNotFoundError, NotADirectoryError):
                continue
            except (OSError, Unread) as error:
                audit.unread(further, error)
                continue
            places += [one for one in more if one not in places]


def _alternates(content: bytes, objects: str) -> list[str]:
    """Return the directories that ``info/alternates`` of an object directory names."""
    lines = os.fsdecode(content.partition(b"\0")[0]).split("\n")
    named = [line.strip('"') for line in lines if line and not line.startswith("#")]
    return [os.path.join(objects, name) for name in named]


def _other_hooks(audit: Audit, entries: list[ConfigEntry], worktree: str) -> None:
    """Check the hooks in each core.hooksPath directory that the agent cannot write."""
    for entry in [*audit.user_entries, *entries]:
        if entry.key != "core.hookspath" or not entry.value:
            continue
        named = audit.git.path(entry.value, os.path.join(worktree, "x"))
        path = audit.share.resolved(named)
        if audit.share.is_agents(named) or not os.path.isdir(path):
            continue
        try:
            hooks.check_directory(audit, path, worktree)
        except OSError as error:
            audit.unread(path, error)
