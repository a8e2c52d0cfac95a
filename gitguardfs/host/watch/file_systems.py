"""Finds file systems at and below a directory that give no events for changes made elsewhere."""

from __future__ import annotations

import os

from gitguardfs.base.errors import shown
from gitguardfs.base.paths import is_inside


def not_watchable(path: str) -> str | None:
    """Return why not all below ``path``, a path without symlinks, can be watched; None if all can.

    The server of a network file system, or of a FUSE, does not tell the kernel who else writes.
    """
    from gitguardfs.linux import mountinfo

    mounts = mountinfo.listed()
    around = [each for each in mounts if is_inside(path, each.path)]
    depth = max((len(each.path) for each in around), default=0)
    here = [each for each in around if len(each.path) == depth][-1:]
    for mount in (*here, *(each for each in mounts if is_inside(each.path, path))):
        if not (mount.is_local or mount.fstype == "overlay"):
            where = "" if mount in here else f" at {shown(os.path.relpath(mount.path, path))}"
            return f"{mount.fstype} tells of no changes made elsewhere{where}"
    return None
