"""Checks whether the user can write a file that root runs for the mount."""

from __future__ import annotations

import errno
import importlib.util
import itertools
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress

from gitguardfs.base.findings import Result, Row
from gitguardfs.doctor.context import CheckedSystem
from gitguardfs.linux import processes, run_as
from gitguardfs.linux.run_as import NoAnswer, User
from gitguardfs.mounting.guards import GuardDaemon

FILES = 20_000
"""Files that are checked below one directory."""


def check(user: User, system: CheckedSystem, daemons: tuple[GuardDaemon, ...]) -> Result:
    """Check the programs and libraries that root runs for the mount, as the user."""
    row = Row(
        "rights.files",
        f"{user.name} cannot write what root runs for the mount",
        f"{user.name} can write what root runs for the mount",
    )
    paths = [*system.run_by_root, *_programs(system), *_libraries(system), *_run_by(daemons)]
    unsure = "could not be checked"
    try:
        writable, unfinished = run_as.run_as(writable_among, paths, user=user, limit=60.0)
    except (NoAnswer, OSError, TypeError, ValueError) as error:
        return row.unknown(f"{unsure}: {error}", "check whether a file system there hangs")
    if writable:
        more = f" and {len(writable) - 3} more" if len(writable) > 3 else ""
        hint = "chown root:root and chmod go-w: a user who can write it can become root"
        return row.finding(", ".join(map(str, writable[:3])) + more, hint)
    if unfinished:
        detail = f"{unsure}: {', '.join(map(str, unfinished))} (more than {FILES} files)"
        return row.unknown(detail, "remove what does not belong there")
    return row.ok()


def _programs(system: CheckedSystem) -> list[str]:
    found = (shutil.which(name, path=system.search_path) for name in system.programs)
    return [path for path in found if path is not None]


def _libraries(system: CheckedSystem) -> list[str]:
    specs = (importlib.util.find_spec(name) for name in system.libraries)
    origins = [spec.origin for spec in specs if spec is not None and spec.origin is not None]
    return [
        os.path.dirname(origin) if origin.endswith("__init__.py") else origin for origin in origins
    ]


def _run_by(daemons: tuple[GuardDaemon, ...]) -> list[str]:
    """Return the interpreter and the script of each daemon."""
    found: list[str] = []
    for daemon in daemons:
        with suppress(OSError):  # it has ended
            found += processes.arguments_of(str(daemon.pid))[:3]
    return [word for word in found if word.startswith("/") and os.path.isfile(word)]


def writable_among(paths: list[str], limit: int = FILES) -> tuple[list[str], list[str]]:
    """Return the files of ``paths``, below and above them that this process's user can change.

    The second list has those of ``paths`` with more than ``limit`` names below them: these were
    checked only in part.
    """
    found: dict[str, None] = {}
    unfinished = []
    for path in paths:
        if not os.path.lexists(path):
            continue
        for step in _paths_to(path):
            if could_change(step):
                found[step] = None
        below = _below(path)
        for inner in itertools.islice(below, limit):
            if not os.path.islink(inner) and could_change(inner):
                found[inner] = None
        if next(below, None) is not None:
            unfinished.append(path)
    return list(found), unfinished


def _below(path: str) -> Iterator[str]:
    left = [path]  # os.walk() of Python 3.11 calls itself, and fails in a deep tree
    while left:
        try:
            with os.scandir(left.pop()) as listing:
                entries = list(listing)
        except OSError as error:
            _check_closed(error)
            continue
        for entry in entries:
            yield entry.path
            if entry.is_dir(follow_symlinks=False):
                left.append(entry.path)


def _check_closed(error: OSError) -> None:
    """Raise ``error`` unless it is a lack of permission, or the object is gone or too deep."""
    closed = (errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
    if error.errno not in closed:
        raise error


def _paths_to(path: str) -> list[str]:
    """Return ``path``, its target if it is a symlink, and the parents that allow a replacement."""
    steps = []
    for end in dict.fromkeys((os.path.abspath(path), os.path.realpath(path))):
        if not os.path.islink(end):
            steps.append(end)
        child, parent = end, os.path.dirname(end)
        while child != parent:
            if not _is_kept(parent, child):
                steps.append(parent)
            child, parent = parent, os.path.dirname(parent)
    return steps


def _is_kept(parent: str, child: str) -> bool:
    """Return whether a sticky directory of root protects root's entry from other users."""
    try:
        st = os.stat(parent)
        return bool(st.st_mode & stat.S_ISVTX) and st.st_uid == os.lstat(child).st_uid == 0
    except OSError:
        return False


def could_change(path: str) -> bool:
    """Return whether this process's user may write to ``path``, or owns it (and may chmod it)."""
    try:
        owner = os.lstat(path).st_uid
    except OSError as error:
        _check_closed(error)
        return False
    return owner == os.geteuid() or os.access(path, os.W_OK, effective_ids=True)
