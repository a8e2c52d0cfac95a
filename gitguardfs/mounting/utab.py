"""Adds and removes the entry by which umount(8) finds the umount helper (/run/mount/utab).

Without an entry, umount(8) takes the type from statfs(2), which is only ``fuse``. It then unmounts
the view without the helper, which signals the daemon.
"""

from __future__ import annotations

import shutil
import subprocess

from gitguardfs.constants import FSTYPE, SUBTYPE, SYSTEM_PATH
from gitguardfs.linux import mountinfo

LIMIT = 5.0
"""Seconds for mount(8) to write one line; another process may hold the lock of the file."""


def add(mount: mountinfo.MountInfo) -> None:
    """Let mount(8), if it is installed, record that a view has an umount helper."""
    path = mount.path
    helper = ("-t", FSTYPE, "-o", f"uhelper={SUBTYPE}")
    _call("mount", "-f", *helper, "--", mount.source, path)


def remove(mount: mountinfo.MountInfo) -> None:
    """Let umount(8) remove the entry of a view that was unmounted without it."""
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
