"""Searches the shared directory, and the configuration and repositories around it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator

from gitguardfs.base.findings import Result, Status
from gitguardfs.base.walk import ScannedDirectory, TreeScan, Unread, list_directory, opened
from gitguardfs.host.audit import (
    bare,
    config_check,
    dependencies,
    repository,
    rows,
    secrets,
    symlinks,
    trust,
    work_tree,
)
from gitguardfs.host.audit.audit import Audit
from gitguardfs.names import dotgit

CHANGED = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
"""Errors for a directory that was moved, removed or replaced since it was listed."""


def search(audit: Audit, top: int, say: Callable[[int, str], None]) -> list[Result]:
    """Check everything below ``top``, the shared directory; return one result per finding.

    A kind without findings gives a result "ok". ``say`` is called with the number of names so far
    and the directory. Changes nothing and runs nothing of what it finds.
    """
    _check_user(audit)
    around = []
    for directory in _around(audit):
        around.append(directory.path)
        repository.examine(audit, directory, ".git")

    def failed(path: str, error: OSError) -> None:
        if error.errno in CHANGED:
            audit.unread(path, Unread("it was changed while it was read"))
        else:
            audit.unread(path, error)

    walk = TreeScan(top, audit.share.path, failed)
    for directory in walk.directories():
        say(walk.names, directory.path)
        _look(audit, directory)
    symlinks.check(audit)
    dependencies.check(audit)
    scope = _scope(audit, around)
    return ordered([scope, *audit.results], has_repository=scope.status is Status.OK)


def _scope(audit: Audit, around: list[str]) -> Result:
    path, number = audit.share.path, len(audit.work_trees) + len(audit.bare)
    detail = f"{number} {'repository' if number == 1 else 'repositories'} in {path}"
    if around:
        detail += f"; {path} lies in the repository {around[0]}"
    if around or number:
        return rows.SCOPE.ok(detail)
    hint = "name a directory that holds your repositories"
    return rows.SCOPE.note(detail, hint, title="there is no repository")


def _check_user(audit: Audit) -> None:
    """Check the user's own configuration, which holds in every repository."""
    config_check.check_environment(audit)
    try:
        own = audit.git.of_user()
        audit.user_entries = config_check.check(audit, own, None)
        setting = audit.git.bare_repositories(audit.share.is_agents)
    except Unread as error:
        audit.unread("the user's configuration", error)
        return
    result = trust.judge(setting)
    audit.trusts_bare = result.status is Status.FINDING
    audit.results.append(result)


def _around(audit: Audit) -> Iterator[ScannedDirectory]:
    """Yield the directories above the share that have a ``.git``: it may lie in a work tree."""
    path = audit.share.path
    while path != "/":
        path = os.path.dirname(path)
        if not os.path.lexists(os.path.join(path, ".git")):
            continue
        try:
            with opened(path) as fd:
                yield ScannedDirectory(path, fd, list_directory(fd), [])
        except OSError as error:
            audit.unread(path, error)


def _look(audit: Audit, directory: ScannedDirectory) -> None:
    try:
        if bare.is_repository(directory.entries):
            directory.enter.clear()
            audit.bare.add(directory.path)
            bare.check(audit, directory)
            repository.examine_opened(audit, directory.fd, directory.path, None)
            return
        for name in filter(lambda name: dotgit.is_dotgit(os.fsencode(name)), directory.entries):
            audit.work_trees.add(directory.path)
            repository.examine(audit, directory, name)
            directory.enter[:] = [one for one in directory.enter if one != name]
        bare.check_prepared(audit, directory)
        symlinks.note(audit, directory)
        work_tree.check(audit, directory)
        secrets.check(audit, directory)
        dependencies.note(audit, directory)
    except (OSError, Unread) as error:
        audit.unread(directory.path, error)


def ordered(results: list[Result], has_repository: bool) -> list[Result]:
    """Return each result once, in the order of the kinds.

    A kind without findings gives "ok", or a note if it says nothing without a repository.
    """
    found: list[Result] = []
    for row in rows.ALL:
        is_checked = has_repository or row not in rows.OF_REPOSITORIES
        ok = row.ok() if is_checked else row.not_checked("there is no repository")
        own = [result for result in dict.fromkeys(results) if result.id == row.id]
        found += sorted(own, key=lambda r: (-(r.severity or 0), r.detail)) or [ok]
    return found
