"""Looks at one repository: where its directories are, and what in them leads to the agent.

Everything in it is opened by descriptors. What ``.git`` names by a path is resolved first, and
that path is then walked without following a symlink.
"""

from __future__ import annotations

import os
from stat import S_IFDIR, S_IFLNK, S_IFREG

from gitguardfs.audit import bare, config_check, fixes, hooks, rows
from gitguardfs.audit.audit import Audit
from gitguardfs.audit.git_config import Entry
from gitguardfs.audit.walk import (
    Directory,
    Unread,
    list_directory,
    open_directory,
    read_file,
)
from gitguardfs.core import names
from gitguardfs.findings import Severity

_GITDIR = b"gitdir: "
_NEWLINES = b"\r\n"
"""What git leaves out at the end of a path in a file: nothing else, also not a blank."""


def examine(audit: Audit, directory: Directory, name: str) -> set[str]:
    """Look at the ``.git`` in a directory, called ``name``.

    Returns the programs (``hooks.MANAGERS``) that have put hooks into it.
    """
    place = os.path.join(directory.path, name)
    kind = directory.entries[name]
    try:
        if kind == S_IFDIR:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(name, flags, dir_fd=directory.fd)
            path = place
        else:
            target = _target(directory, name, kind)
            if target is None or not _may_be_there(audit, place, target, kind == S_IFLNK):
                return set()
            path = os.path.realpath(os.path.join(directory.path, target))
            try:
                fd = open_directory(path)
            except (FileNotFoundError, NotADirectoryError):
                return set()  # it leads nowhere
        try:
            return examine_opened(audit, fd, path, directory.path)
        finally:
            os.close(fd)
    except (OSError, Unread) as error:
        audit.unread(place, error)
        return set()


def _target(directory: Directory, name: str, kind: int) -> str | None:
    """Return where a ``.git`` that is no directory leads; None if git does not go by it."""
    if kind == S_IFLNK:
        return os.readlink(name, dir_fd=directory.fd)
    said = read_file(directory.fd, name)
    if kind != S_IFREG or not said.startswith(_GITDIR):
        return None
    return os.fsdecode(said.removeprefix(_GITDIR).rstrip(_NEWLINES))


def _may_be_there(audit: Audit, place: str, target: str, is_link: bool) -> bool:
    """Note what is wrong with where a git directory is; False if the agent can write all of it."""
    share = audit.share
    path = os.path.join(os.path.dirname(place), target)
    real = os.path.realpath(path)
    if share.is_agents(path):
        if os.path.isdir(real):
            fix = fixes.either(fixes.move_in(real, place), fixes.remove(place))
            audit.add(rows.DIRECTORY.finding(f"{place} leads to {real}", fix))
        else:
            said = f"{place} leads to {real}, where the agent could make a repository"
            audit.add(rows.DIRECTORY.finding(said, fixes.remove(place), Severity.MEDIUM))
        return False
    if share.holds(real):
        if not share.is_kept(share.parts(real)):
            _note_unnamed(audit, place, real)
    elif not is_link and not target.startswith("/"):
        said = f"{place} leads to {target}, elsewhere when a directory above it is moved"
        fix = fixes.point_to(place, real)
        audit.add(rows.DIRECTORY.finding(said, fix, Severity.MEDIUM))
    return True


def _note_unnamed(audit: Audit, place: str, real: str) -> None:
    """A git directory in the share, not in a ``.git``: only its content tells a guard what it is.

    A guard with --allow-bare does not look at that, nor does any other tool.
    """
    top = real
    while audit.share.holds(parent := os.path.dirname(top)) and audit.share.is_git(parent):
        top = parent
    fix = fixes.rule("--protect", os.path.basename(top))
    if top == real:
        fix = fixes.either(fixes.move_in(real, place), fix)
    said = f"{place} leads to {real}, which is in no .git"
    audit.add(rows.DIRECTORY.finding(said, fix, Severity.MEDIUM))


def examine_opened(audit: Audit, fd: int, path: str, worktree: str | None) -> set[str]:
    """Look at a git directory; ``worktree`` is None for a bare repository. Raises OSError, Unread.

    Returns the programs that have put hooks into it.
    """
    entries = list_directory(fd)
    if "HEAD" not in entries:
        bare.check_prepared(audit, Directory(path, fd, entries, []), is_git=True)
        return set()
    _check_owner(audit, fd, path)
    common, common_path = fd, path
    if entries.get("commondir") == S_IFREG:
        said = os.fsdecode(read_file(fd, "commondir").rstrip(_NEWLINES))
        named = os.path.join(path, said)
        common_path = os.path.realpath(named)
        if audit.share.is_agents(named):
            told = f"{path}/commondir leads to {common_path}"
            fix = fixes.remove(os.path.join(path, "commondir"))
            audit.add(rows.DIRECTORY.finding(told, fix))
            return set()
        common = open_directory(common_path)
    try:
        _check_symlinks(audit, path, entries)
        own = _entries(audit, fd, path, entries, "config.worktree")
        if common is not fd:
            entries = list_directory(common)
            _check_symlinks(audit, common_path, entries)
        own = [*_entries(audit, common, common_path, entries, "config"), *own]
        _check_alternates(audit, common, common_path)
        every = config_check.check(audit, own, worktree)
        if worktree is None:
            return set()
        managers = hooks.check(audit, common, common_path, worktree)
        return managers | _other_hooks(audit, every, worktree)
    finally:
        if common is not fd:
            os.close(common)


def _check_owner(audit: Audit, fd: int, path: str) -> None:
    uid = os.fstat(fd).st_uid
    if uid != audit.uid:
        said = f"{path} belongs to {uid}: git works there only with a safe.directory"
        audit.add(rows.OWNER.note(said, title=rows.OWNER.failed))


def _check_symlinks(audit: Audit, path: str, entries: dict[str, int]) -> None:
    """Note symlinks in a git directory that lead to the agent; of hooks ``hooks`` tells more."""
    for name, kind in entries.items():
        link = os.path.join(path, name)
        if kind == S_IFLNK and name != "hooks" and audit.share.is_agents(os.path.realpath(link)):
            said = f"{link} leads to {os.path.realpath(link)}"
            audit.add(rows.DIRECTORY.finding(said, fixes.remove(link)))


def _entries(audit: Audit, fd: int, path: str, entries: dict[str, int], name: str) -> list[Entry]:
    """Return what a file of configuration says; a file that cannot be read is a finding."""
    file = os.path.join(path, name)
    opened = -1
    try:
        if entries.get(name) == S_IFLNK:
            target = os.path.realpath(file)
            if audit.share.is_agents(target):
                return []  # noted as a symlink
            opened = open_directory(os.path.dirname(target))
            content = read_file(opened, os.path.basename(target))
        else:
            content = read_file(fd, name)
        return audit.git.entries_of(content, file)
    except FileNotFoundError:
        return []
    except (OSError, Unread) as error:
        audit.unread(file, error)
        return []
    finally:
        if opened >= 0:
            os.close(opened)


def _check_alternates(audit: Audit, common: int, path: str) -> None:
    objects = os.path.join(path, "objects")
    file = os.path.join(objects, "info/alternates")
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    opened = [common]
    try:
        for name in ("objects", "info"):
            opened.append(os.open(name, flags, dir_fd=opened[-1]))
        lines = os.fsdecode(read_file(opened[-1], "alternates")).split("\n")
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, Unread) as error:
        audit.unread(file, error)
        return
    finally:
        for fd in opened[1:]:
            os.close(fd)
    for line in lines:
        named = os.path.join(objects, line.strip('"'))
        if line and not line.startswith("#") and audit.share.is_agents(named):
            said = f"{path} takes objects from {os.path.normpath(named)}"
            audit.add(rows.ALTERNATES.finding(said, fixes.unshare(path, file), Severity.MEDIUM))


def _other_hooks(audit: Audit, entries: list[Entry], worktree: str) -> set[str]:
    """Judge the hooks where a core.hooksPath leads that is not the agent's."""
    managers: set[str] = set()
    for entry in [*audit.user_entries, *entries]:
        if entry.key != "core.hookspath" or not entry.value:
            continue
        named = audit.git.path(entry.value, os.path.join(worktree, "x"))
        path = os.path.realpath(named)
        if audit.share.is_agents(named) or not os.path.isdir(path):
            continue
        try:
            managers |= hooks.check_directory(audit, path, worktree)
        except OSError as error:
            audit.unread(path, error)
    return managers


def is_dotgit(name: str) -> bool:
    """Whether some host's git takes a name for ``.git``."""
    return names.is_dotgit(os.fsencode(name))
