"""The entry that lets umount(8) find the view's umount helper (/run/mount/utab).

Without one, umount(8) asks statfs(2) for the type, which says only ``fuse``, and unmounts the view
without telling its daemon.
"""

from __future__ import annotations

import shutil
import subprocess

from gitguardfs.constants import SYSTEM_PATH
from gitguardfs.linux import mountinfo

LIMIT = 5.0
"""Seconds for mount(8) to write one line; another one may hold the lock of the file."""


def add(mount: mountinfo.MountInfo) -> None:
    """Have mount(8), where it is installed, note that a view has a helper."""
    path = mount.path
    helper = ("-t", mountinfo.FSTYPE, "-o", f"uhelper={mountinfo.SUBTYPE}")
    _call("mount", "-f", *helper, "--", mount.source, path)


def remove(mount: mountinfo.MountInfo) -> None:
    """Have umount(8) forget a view that was unmounted without it."""
    _call("umount", "--fake", "--", mount.path)


def _call(program: str, *arguments: str) -> None:
    found = shutil.which(program, path=SYSTEM_PATH)
    if found is None:
        return
    try:
        # -c: the path is the kernel's, and a user may have put a symlink there since.
        subprocess.run(
            [found, "-i", "-c", *arguments],
            stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=LIMIT,
            env={"PATH": SYSTEM_PATH, "LC_ALL": "C"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return
