"""Tells of the host's own node_modules, .venv and the like, which an agent may be able to change.

The host does not know whether the guest's view has ``--local``: the agent then has directories of
its own in their places, and neither sees nor changes these.
"""

from __future__ import annotations

import os
from functools import partial

from gitguardfs.base.walk import ScannedDirectory
from gitguardfs.host.audit import rows
from gitguardfs.host.audit.audit import Audit
from gitguardfs.names.local_names import DEPS, LocalNames

_NAMES = LocalNames((DEPS,))


def note(audit: Audit, directory: ScannedDirectory) -> None:
    """Note the directories that ``--local deps`` would replace, and that no rule guards."""
    for name in directory.enter:
        marker = _NAMES.marker(os.fsencode(name))
        path = os.path.join(directory.path, name)
        if (
            marker is not None
            and not audit.share.is_kept(audit.share.parts(path))
            and not any(path.startswith(f"{noted}/") for noted in audit.dependencies)
            and marker.is_met(
                os.fsencode(os.path.basename(directory.path)),
                is_there=True,
                is_beside=lambda at: os.fsdecode(at) in directory.entries,
                is_inside=partial(_is_inside, directory.fd, name),
            )
        ):
            audit.dependencies[path] = None


def _is_inside(directory: int, name: str, at: bytes) -> bool:
    try:
        os.stat(f"{name}/{os.fsdecode(at)}", dir_fd=directory)
    except OSError:
        return False
    return True


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
