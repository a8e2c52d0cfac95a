"""Tells of the host's own node_modules, .venv and the like, which an agent may be able to change.

The host does not know whether the guest's view has ``--local``: the agent then has directories of
its own in their places, and neither sees nor changes these.
"""

from __future__ import annotations

import os

from gitguardfs.base.walk import ScannedDirectory
from gitguardfs.host.audit import rows
from gitguardfs.host.audit.audit import Audit
from gitguardfs.names.local_names import DEPS, LocalNames, Marker

_NAMES = LocalNames((DEPS,))


def note(audit: Audit, directory: ScannedDirectory) -> None:
    """Note the directories that ``--local deps`` would replace, and that no rule guards."""
    for name in directory.enter:
        marker = _NAMES.marker(os.fsencode(name))
        path = os.path.join(directory.path, name)
        if marker is None or not _has(directory, name, marker) or _is_noted(audit, directory.path):
            continue
        if not audit.share.is_kept(audit.share.parts(path)):
            audit.dependencies[path] = None


def _has(directory: ScannedDirectory, name: str, marker: Marker) -> bool:
    """Return whether a directory has its marker, if it needs one."""

    def is_inside(at: bytes) -> bool:
        try:
            os.stat(f"{name}/{os.fsdecode(at)}", dir_fd=directory.fd)
        except OSError:
            return False
        return True

    return marker.is_met(
        os.fsencode(os.path.basename(directory.path)),
        is_there=True,
        is_beside=lambda at: os.fsdecode(at) in directory.entries,
        is_inside=is_inside,
    )


def _is_noted(audit: Audit, path: str) -> bool:
    """Return whether the directory ``path`` lies in one that was noted."""
    while audit.share.holds(path) and path != "/":
        if path in audit.dependencies:
            return True
        path = os.path.dirname(path)
    return False


def check(audit: Audit) -> None:
    """Add a note on all that were noted."""
    found = list(audit.dependencies)
    if not found:
        return
    names = ", ".join(dict.fromkeys(map(os.path.basename, found)))
    detail = (
        f"{len(found)} ({names}), the first is {found[0]}: programs of the host put them there, or"
        " an agent whose view lacks --local"
    )
    hint = "with --local deps in the guest the agent has its own instead, and cannot change these"
    audit.results.append(rows.LOCAL.note(detail, hint, rows.LOCAL.failed))
